// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestLoopDoesNotAskForWhatItWillNotRead: a client whose output is waiting goes on sending until it is paused. From then on
// the loop must not be told that there is something to read, or it would never rest.
func TestLoopDoesNotAskForWhatItWillNotRead(t *testing.T) {
	s := startServer(t)
	c := dialV(t, s)
	write(t, c, wire.AppendSet(nil, wire.V, "/k", make([]byte, 16<<10)))
	get := wire.AppendKey(nil, wire.V, wire.Get, "/k")
	for range 4000 { // one by one, so that the socket is full before the client is paused, and far more than sockets hold
		write(t, c, get)
	}
	testkit.Until(t, "the loop asks for room only, for as long as there is none", func() bool {
		if askedFor(t, s) != unix.EPOLLOUT {
			return false
		}
		time.Sleep(20 * time.Millisecond)
		return askedFor(t, s) == unix.EPOLLOUT
	})
}

// askedFor is what the kernel is asked for about the only connection.
func askedFor(t *testing.T, s *testServer) (events uint32) {
	t.Helper()
	all := slices.Concat(asked(t, s)...)
	if len(all) != 1 {
		t.Fatalf("%d connections", len(all))
	}
	return all[0]
}
