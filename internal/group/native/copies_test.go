// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

// TestLargeMessagesAreNotCopied: from 256 KiB on no collective copies what it sends or receives: a message goes from and to where its data
// belongs. So the copies of a byte that is sent are those of the wire. A rank copies no more than its own block, which it does not send,
// to its result.
func TestLargeMessagesAreNotCopied(t *testing.T) {
	sizes := []int{256 << 10, 1 << 20, 4 << 20}
	for _, c := range collectives {
		if c.kind == collective.Barrier {
			continue
		}
		for _, n := range []int{2, 3, 4, 6, 8, 16} {
			for _, bytes := range sizes {
				meshes, engines := record(t, c.kind, n, bytes)
				for rank, e := range engines {
					what := fmt.Sprintf("%s of %d bytes, rank %d of %d", c.name, bytes, rank, n)
					sent, kept := e.Copied()
					if sent != 0 {
						t.Errorf("%s copies %d bytes of messages; it sends %d", what, sent, meshes[rank].sent())
					}
					own := bytes
					switch c.kind {
					case collective.AllReduce, collective.Broadcast:
						own = 0
					case collective.Reduce:
						own = (bytes/4 + n - 1) / n * 4
					default:
					}
					if kept > own {
						t.Errorf("%s copies %d bytes of its own", what, kept)
					}
				}
			}
		}
	}
}

// sent is the bytes that a rank has sent.
func (m *recordingMesh) sent() int {
	sum := 0
	for _, e := range m.events {
		if e.kind == posts {
			sum += e.bytes
		}
	}
	return sum
}
