// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// TestLoopDoesNotAskForWhatItWillNotRead: a client whose output is waiting goes on sending until it is paused. From then on
// the loop must not be told that there is something to read, or it would never rest.
func TestLoopDoesNotAskForWhatItWillNotRead(t *testing.T) {
	s := startServer(t)
	d, ok := s.driver.(*loop)
	if !ok {
		t.Fatalf("%T is not the loop", s.driver)
	}
	c := dialV(t, s)
	write(t, c, wire.AppendSet(nil, wire.V, "/k", make([]byte, 16<<10)))
	get := wire.AppendKey(nil, wire.V, wire.Get, "/k")
	paused, asked := false, uint32(0)
	look := func() {
		d.do(func(*core) {
			for _, c := range d.conns {
				if c != nil {
					paused, asked = c.state.Paused(), c.wants
				}
			}
		})
	}
	for look(); !paused; look() { // one by one, so that the socket is full before the client is paused
		write(t, c, get)
	}
	for range 10 {
		write(t, c, get)
	}
	eventually(t, "the loop asks for room only", func() bool { look(); return asked == unix.EPOLLOUT })
	time.Sleep(20 * time.Millisecond)
	if look(); !paused || asked != unix.EPOLLOUT {
		t.Errorf("paused: %v, asked for %#x", paused, asked)
	}
}
