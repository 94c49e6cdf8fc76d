// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/internal/link"
)

// A large message is copied by the kernel, into it and out of it, and by nobody else but for a few bytes behind headers: so at
// most two copies per byte that is sent, and a hundredth.
func TestLargeMessagesAreNotCopiedAgain(t *testing.T) {
	for _, size := range []int{64 << 10, 1 << 20, 8 << 20} {
		meshes := connect(t, 2, nil)
		const count = 4
		var wg sync.WaitGroup
		for r, m := range meshes {
			wg.Go(func() {
				var ops []*link.Op
				for i := range count {
					in := &link.Op{Peer: 1 - r, Slot: 3, Buf: make([]byte, size)}
					out := &link.Op{Peer: 1 - r, Slot: 3, Buf: bytes.Repeat([]byte{byte(i + 1)}, size)}
					m.Recv(in)
					m.Send(out)
					ops = append(ops, in, out)
				}
				for i, op := range ops {
					if err := wait(t, m, op); err != nil {
						t.Error(errors.Join(err))
					}
					if want := byte(i/2 + 1); op.Buf[0] != want || op.Buf[size-1] != want {
						t.Errorf("message %d of %d bytes has %d and %d at its ends", i/2, size, op.Buf[0], op.Buf[size-1])
					}
				}
			})
		}
		wg.Wait()
		for r, m := range meshes {
			m.mu.Lock()
			copied := m.mu.copied
			m.mu.Unlock()
			if share := float64(copied) / float64(count*size); share > 0.01 {
				t.Errorf("rank %d: %.3f copies per byte of %d, besides the kernel's two", r, share, size)
			}
		}
	}
}
