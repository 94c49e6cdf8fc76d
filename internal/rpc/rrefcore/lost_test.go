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
