// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestLoopsHaveTheirDirtyConnections: what a request does to a connection of another home is told to that home.
func TestLoopsHaveTheirDirtyConnections(t *testing.T) {
	m := New(Config{Limits: testLimits, Loops: 3})
	var conns []*Conn
	for i := range 6 {
		home := m.Quietest()
		if home != i%3 {
			t.Fatalf("connection %d goes to home %d", i, home)
		}
		c := m.OpenAt(home, "peer", nil)
		m.Receive(c, wire.AppendValidate(nil))
		conns = append(conns, c)
	}
	m.Receive(conns[1], wire.AppendKeys(nil, wire.V, wire.Wait, "/k"))
	m.Receive(conns[2], wire.AppendKeys(nil, wire.V, wire.Wait, "/k"))
	if m.DirtyLoops() != 0 {
		t.Errorf("dirty loops %b while all wait", m.DirtyLoops())
	}
	m.Receive(conns[0], wire.AppendSet(nil, wire.V, "/k", nil))
	if m.DirtyLoops() != 0b110 {
		t.Errorf("dirty loops %b, want the loops of those that waited", m.DirtyLoops())
	}
	for home, want := range [][]*Conn{nil, {conns[1]}, {conns[2]}} {
		if got := m.DirtyAt(home); !slices.Equal(got, want) {
			t.Errorf("home %d: %d connections are dirty, want %d", home, len(got), len(want))
		}
	}
	if m.DirtyLoops() != 0 {
		t.Errorf("dirty loops %b after all was taken", m.DirtyLoops())
	}
	m.Close(conns[4])
	if home := m.Quietest(); home != 1 {
		t.Errorf("the next connection goes to home %d, where one is missing at 1", home)
	}
}

// TestPendingStays: a driver writes what is pending while others use the machine. Whatever they do, those bytes stay.
func TestPendingStays(t *testing.T) {
	limits := testLimits
	limits.Memory = 1 << 20
	for i, d := range []wire.Dialect{wire.V, wire.Native, wire.V, wire.Native} {
		size := 3000 // which is copied into the reply
		if i >= 2 {
			size = 30_000 // which it refers to
		}
		b := newBench(limits)
		c, other := b.dial(d), b.dial(wire.V)
		ask := func(id uint32, write func(b []byte) []byte) {
			if d == wire.Native {
				b.m.Receive(c, frame(id, write))
			} else {
				b.m.Receive(c, write(nil))
			}
		}
		b.m.Receive(other, wire.AppendSet(nil, wire.V, "/k", bytes.Repeat([]byte("v"), size)))
		ask(1, func(b []byte) []byte { return wire.AppendKey(b, d, wire.Get, "/k") })
		ask(2, func(b []byte) []byte { return wire.AppendKeys(b, d, wire.Wait, "/later", "/never") })
		pieces := c.Pending(nil, math.MaxInt)
		want := bytes.Join(pieces, nil)
		check := func(what string) {
			if !bytes.Equal(bytes.Join(pieces, nil), want) {
				t.Errorf("%v: %s changes what is being written", d, what)
			}
		}
		if len(want) < size {
			t.Fatalf("%v: %d bytes are pending", d, len(want))
		}
		b.m.Receive(other, wire.AppendSet(nil, wire.V, "/k", bytes.Repeat([]byte("w"), size)))
		check("a set of the value")
		b.m.Receive(other, wire.AppendKeyValue(nil, wire.V, wire.Append, "/k", bytes.Repeat([]byte("x"), 100)))
		check("an append to the value")
		b.m.Receive(other, wire.AppendSet(nil, wire.V, "/k", []byte("short")))
		check("a set of a short value")
		b.m.Receive(other, wire.AppendKey(nil, wire.V, wire.DeleteKey, "/k"))
		check("the end of the key")
		b.m.Receive(other, wire.AppendSet(wire.AppendSet(nil, wire.V, "/later", nil), wire.V, "/never", nil))
		check("the answer to a wait")
		for i := range 200 {
			b.m.Receive(other, wire.AppendSet(nil, wire.V, fmt.Sprint("/", i), make([]byte, 2000)))
		}
		ask(3, func(b []byte) []byte { return wire.AppendPlain(b, d, wire.ListKeys) })
		b.m.Resume()
		check("a listing")
		b.m.enforce(int(limits.Memory))
		check("the memory limit")
		b.m.Clear()
		b.m.Close(c)
		check("the end")
	}
}
