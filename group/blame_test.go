// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/tcpstore"
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
			lost := &cohort.Error{Op: "test", Code: cohort.PeerLost, Rank: 2, Detail: "it died"}
			must(t, names2(groups[1].formed.Failure.Judge(lost)))
			must(t, groups[1].Close())
			must(t, names2(message.Wait(ctx)))
		})
	}
}

// TestWhoClosedIsNotBlamedWithoutAStore: the store dies, then rank 2, which rank 1 sees before it closes its group.
// Rank 0 has seen only that, and waits for a message of rank 1. It names the rank that went first, because the goodbye
// of rank 1 says so.
func TestWhoClosedIsNotBlamedWithoutAStore(t *testing.T) {
	t.Parallel()
	ctx := ctxOf(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	s, err := tcpstore.Dial(ctx, server.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	groups := newWorldOver(t, s, 3, WithTransport(TCP))
	must(t, server.Close())
	message := groups[0].Recv(ctx, from(int64(0)), 1, 0)
	mesh, ok := groups[1].mesh.(interface{ Cut(rank int) })
	if !ok {
		t.Fatalf("connections of %T cannot be cut", groups[1].mesh)
	}
	mesh.Cut(2)
	must(t, names2(groups[1].Recv(ctx, from(int64(0)), 2, 0).Wait(ctx)))
	must(t, groups[1].Close())
	must(t, names2(message.Wait(ctx)))
}
