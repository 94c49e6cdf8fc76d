// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"slices"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// joinSim is one gateway with two clients of PyTorch's, connected to a store.
func joinSim(t *testing.T) (s *sim, g *simGate, first, second *simClient) {
	t.Helper()
	s = newSim(t, 1)
	g = s.gates[0]
	s.connect(g)
	s.clients = nil
	for len(s.clients) < 2 {
		if s.addClient(g); s.clients[len(s.clients)-1].native {
			s.clients = s.clients[:len(s.clients)-1]
		}
	}
	for !g.gate.Ready() {
		s.exchange(g)
	}
	return s, g, s.clients[0], s.clients[1]
}

// exchange moves all bytes between a gateway and the store.
func (s *sim) exchange(g *simGate) {
	s.toStore(g)
	s.read(g, len(g.down))
	s.turn()
}

func (s *sim) toStore(g *simGate) {
	g.up = append(g.up, g.gate.Take(1<<20)...)
	s.store.Receive(g.conn, g.up)
	g.up = nil
	s.turn()
}

func (c *simClient) ask(b []byte) { c.gate.machine.Receive(c.conn, b) }

// TestNoAnswerFromBefore: a client that asks after a question was sent does not get the answer to that one.
func TestNoAnswerFromBefore(t *testing.T) {
	s, g, first, second := joinSim(t)
	get := wire.AppendKey(nil, wire.V, wire.Get, "/k")
	first.ask(get)
	s.toStore(g)                       // answered: the key is not there
	other := s.store.Open("test", nil) // then it is set
	s.store.Receive(other, wire.AppendSet(wire.AppendValidate(nil), wire.V, "/k", []byte("new")))
	second.ask(get)
	for range 3 {
		s.exchange(g)
	}
	if got := string(first.got); got != string(wire.AppendString(nil, "")) {
		t.Errorf("the first got %q", got)
	}
	if got := string(second.got); got != string(wire.AppendString(nil, "new")) {
		t.Errorf("the second, who asked after the key was set, got %q", got)
	}
}

// TestWritesAreNotOvertaken: a client that has set a key and adds to a counter does not add with another client's request that stands
// before its own write.
func TestWritesAreNotOvertaken(t *testing.T) {
	s, g, first, second := joinSim(t)
	first.ask(wire.AppendAdd(nil, wire.V, "/n", 1))
	second.ask(wire.AppendAdd(wire.AppendSet(nil, wire.V, "/k", []byte("v")), wire.V, "/n", 1))
	if asked := len(g.gate.queue); asked != 3 {
		t.Errorf("%d requests are to be sent, want 3", asked)
	}
	s.exchange(g)
	if string(second.got) != string(wire.AppendInt(nil, 2)) || string(s.get("/k")) != "v" {
		t.Errorf("%q", second.got)
	}
}

// TestAskedOnce: what clients ask for before it is sent is one request.
func TestAskedOnce(t *testing.T) {
	s, g, first, second := joinSim(t)
	before := g.gate.Counts().Asked
	for _, c := range []*simClient{first, second} {
		c.ask(wire.AppendAdd(nil, wire.V, "/n", 2))
	}
	s.exchange(g)
	if asked := g.gate.Counts().Asked - before; asked != 1 {
		t.Errorf("%d requests, want 1", asked)
	}
	if string(first.got)+string(second.got) != string(wire.AppendInt(wire.AppendInt(nil, 2), 4)) {
		t.Errorf("%q and %q", first.got, second.got)
	}
}

// TestWaits: a gateway says which of its clients wait for which keys, whether that was sent or not, until they have the answer. What is
// answered at once is not among them.
func TestWaits(t *testing.T) {
	s, g, first, second := joinSim(t)
	names := func() (all []string) {
		for _, w := range g.gate.waits(func(moment int64) time.Time { return time.Unix(0, moment) }) {
			if w.Waiter == "" || w.Since.UnixNano() > s.now {
				t.Errorf("%+v", w)
			}
			text := w.Key
			if w.Barrier {
				text += " (barrier)"
			}
			all = append(all, text)
		}
		return all
	}
	first.ask(wire.AppendKeys(nil, wire.V, wire.Wait, "/a", "/b"))
	s.exchange(g)
	second.ask(wire.AppendKeys(nil, wire.V, wire.Wait, "/a", "/b")) // behind the one that is sent
	if got := names(); !slices.Equal(got, []string{"/a", "/b", "/a", "/b"}) {
		t.Errorf("they wait for %q", got)
	}
	other := s.store.Open("test", nil)
	s.store.Receive(other, wire.AppendSet(wire.AppendSet(wire.AppendValidate(nil), wire.V, "/a", nil), wire.V, "/b", nil))
	for range 3 {
		s.exchange(g)
	}
	if got := names(); len(got) > 0 {
		t.Errorf("they wait for %q, which is there", got)
	}
	first.ask(wire.AppendAdd(nil, wire.V, "/n", 1))
	second.ask(wire.AppendBarrier(nil, wire.V, "/x", 2))
	if got := names(); !slices.Equal(got, []string{"/x (barrier)"}) {
		t.Errorf("they wait for %q", got)
	}
}
