// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"testing"

	"github.com/cohort-dist/cohort/dist"
)

// TestWhoClosedAfterAFailureIsNotBlamed: rank 2 died, which rank 1 has found and recorded before it closed its group. Rank 0 has seen only
// that, and waits for a message of rank 1. It names the rank that went first.
func TestWhoClosedAfterAFailureIsNotBlamed(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			groups := newWorld(t, 3, WithTransport(transport))
			ctx := ctxOf(t)
			message := groups[0].Recv(ctx, from(int64(0)), 1, 0)
			lost := &dist.Error{Op: "test", Code: dist.PeerLost, Rank: 2, Detail: "it died"}
			must(t, names2(groups[1].formed.Verdict.Judge(lost)))
			must(t, groups[1].Close())
			must(t, names2(message.Wait(ctx)))
		})
	}
}
