// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "testing"

// TestStuck: a child that was given to a PyTorch worker which cannot speak any more, or with a message that was lost, is told from the rest; a
// worker that leaves lets go of what it only kept for such children.
func TestStuck(t *testing.T) {
	m := New(0, 7, Options{})
	for w, kind := range map[Worker]PeerKind{1: PyTorch, 2: PyTorch, 3: Cohort, 4: Cohort} {
		m.AddPeer(w, kind, Epoch(w))
	}
	deaf := func(w Worker) bool { return w != 1 }
	h, _ := m.Create(3)
	m.CreateReplied(h.Fork, true)
	wires := map[Worker]Wire{}
	for _, w := range []Worker{1, 2, 4} {
		var code Code
		if wires[w], code = m.Share(h.Fork, w); code != OK {
			t.Fatal(code)
		}
	}
	if n := m.Stuck(deaf); n != 1 {
		t.Errorf("%d children are stuck, want that of worker 2", n)
	}
	m.Undelivered(1, wires[1])
	m.Undelivered(4, wires[4])
	if n := m.Stuck(deaf); n != 1 {
		t.Errorf("%d children are stuck at once, want that of worker 2", n)
	}
	m.Tick(stuckAfter)
	if n := m.Stuck(deaf); n != 2 {
		t.Errorf("%d children are stuck, want those of workers 1 and 2", n)
	}
	m.UnpinStuck(deaf)
	m.DropAll()
	if c := m.Counts(); c.PendingChildren != 1 || c.ConfirmedUsers != 1 {
		t.Errorf("with a child of a Go worker, left are %+v", c)
	}
	m.handle(m.peer(4), Message{Kind: ChildAccept, Fork: wires[4].Fork})
	if c := m.Counts(); c.PendingChildren != 0 || c.ConfirmedUsers != 0 {
		t.Errorf("left are %+v", c)
	}
}
