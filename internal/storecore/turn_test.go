// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"fmt"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// TestPutOffAreServed: a request that has to wait for a turn with room is done although others have large requests done at the beginning
// of each turn, as clients do that send theirs without waiting for replies. All that wait have one turn each.
func TestPutOffAreServed(t *testing.T) {
	const greedy, askers = 10, 5
	b := newBench(workLimits)
	names := make([]string, 100)
	values := make([][]byte, len(names))
	for i := range names {
		names[i], values[i] = fmt.Sprint("/k", i), make([]byte, 3000)
	}
	b.send(b.dial(wire.V), wire.AppendMultiSet(nil, wire.V, names, values))
	var flood []byte
	for range 200 {
		flood = wire.AppendKeys(flood, wire.V, wire.MultiGet, names...)
	}
	var clients, asking []*Conn
	for range greedy {
		clients = append(clients, b.dial(wire.V))
	}
	for range askers {
		asking = append(asking, b.dial(wire.Native))
	}
	for _, c := range clients {
		b.m.Receive(c, flood)
	}
	for i, c := range asking {
		b.m.Receive(c, frame(uint32(i), func(f []byte) []byte { return wire.AppendPlain(f, wire.Native, wire.Stats) }))
	}
	answered := func() (n int) {
		for _, c := range asking {
			if c.Owed() > 0 {
				n++
			}
		}
		return n
	}
	turns := 0
	for ; turns < 100 && answered() < askers; turns++ {
		b.m.Tick(b.m.clock.now)
		for _, c := range clients { // they read all they get
			b.m.Sent(c, c.Owed())
		}
		b.m.Resume()
	}
	if turns > 2*greedy {
		t.Errorf("%d of %d were answered after %d turns", answered(), askers, turns)
	}
	for i, c := range clients {
		if c.Owed() == 0 && len(c.in.buf) > 0 && !c.Paused() {
			t.Errorf("client %d is forgotten", i)
		}
	}
}
