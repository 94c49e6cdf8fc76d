// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"testing"
	"time"
)

// torchOwner is a PyTorch worker as it treats deletes: it knows an object once its function has ended, and ignores what it does not know.
type torchOwner struct{ known bool }

// told takes what a machine has to say to it, and acknowledges everything.
func (o *torchOwner) told(m *Machine) (deletes int) {
	for _, e := range m.Take(nil) {
		if e.Kind != Send {
			continue
		}
		if e.Msg.Kind == Delete {
			deletes++
			o.known = false
		}
		m.RequestDone(e.To, e.Msg, true)
	}
	return deletes
}

// TestLostCreation: the pipe to a PyTorch owner is cut while a function makes an object there. However late the function ends, the object
// is deleted; and a creation that was given up before the cut ends like one that was not.
func TestLostCreation(t *testing.T) {
	for _, timedOut := range []bool{false, true} {
		m, o := New(0, 7, Options{}), &torchOwner{}
		m.AddPeer(1, PyTorch, 0)
		w, _ := m.Create(1)
		if timedOut {
			m.CreateTimedOut(w.Fork)
		}
		if n := o.told(m); n != 0 {
			t.Fatalf("%d deletes before anything is known", n)
		}
		m.CreateLost(w.Fork)
		m.Drop(w.Fork)
		if c := m.Counts(); c.PendingUsers+c.ConfirmedUsers+c.FailedUsers != 0 {
			t.Errorf("timed out %v: left are %+v", timedOut, c)
		}
		now, sent := Time(0), o.told(m)
		for range 100 { // the function takes as long
			now += 10 * time.Second
			m.Tick(now)
			sent += o.told(m)
		}
		if sent < 10 || sent > 101 {
			t.Errorf("timed out %v: %d deletes", timedOut, sent)
		}
		o.known = true
		m.Tick(now + 20*time.Second)
		if o.told(m); o.known {
			t.Errorf("timed out %v: the object of a late function is left", timedOut)
		}
		m.PeerDied(1)
		m.Tick(now + time.Hour)
		if n := o.told(m); n != 0 {
			t.Errorf("timed out %v: %d deletes for a dead worker", timedOut, n)
		}
	}
}

// TestStuck: a child that was given to a PyTorch worker which cannot speak any more, or with a message that was lost,
// is told from the rest; a worker that leaves lets go of what it only kept for such children.
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
