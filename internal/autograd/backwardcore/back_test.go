// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import "testing"

// TestPeerBack: a PyTorch worker that comes in the place of one that has gone numbers its contexts from the beginning again.
func TestPeerBack(t *testing.T) {
	m := New(0, sum, Options{})
	id, other := Context{1, 0}, Context{2, 0}
	for _, x := range []Context{id, other} {
		if _, ok := m.Record(x); !ok {
			t.Fatal("no context")
		}
		m.Receive(Message[int64]{Kind: Cleanup, From: x.Origin, Context: x})
	}
	m.PeerBack(1)
	if _, ok := m.Record(id); ok {
		t.Error("a late message revives a context of a worker that has been there all the time")
	}
	m.PeerDied(1)
	m.PeerBack(1)
	if _, ok := m.Record(id); !ok {
		t.Error("the successor cannot open a context with the number of one that is over")
	}
	if _, ok := m.Record(other); ok {
		t.Error("the context of another worker is revived")
	}
}

// TestOpenerIsNotCleaned: a clean-up that others began, because the worker that opened the context leaves, does not
// reach that worker: until it has left it is within the context.
func TestOpenerIsNotCleaned(t *testing.T) {
	m := New(0, sum, Options{})
	id := Context{1, 0}
	for _, w := range []Worker{1, 2, 3} {
		if !m.Meet(id, w) {
			t.Fatal("no context")
		}
	}
	m.Take()
	m.Receive(Message[int64]{Kind: Cleanup, From: 2, Context: id})
	told := map[Worker]bool{}
	for _, e := range m.Take() {
		if e.Kind == Send && e.Msg.Kind == Cleanup {
			told[e.Msg.To] = true
		}
	}
	if !told[3] || told[1] || len(told) != 1 {
		t.Errorf("told %v, want 3", told)
	}
}
