// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "testing"

// TestReplace: one worker after the other has the id 1. Each creates an object here, the PyTorch workers with the same ids, and may be
// given what is here; what the one before held is gone.
func TestReplace(t *testing.T) {
	lives := []struct {
		kind    PeerKind
		epoch   Epoch
		deletes bool // it deletes its fork before it goes
	}{
		{PyTorch, 0, true},
		{PyTorch, 0, false},
		{Cohort, 8, false},
		{PyTorch, 0, false},
		{PyTorch, 0, true},
		{Cohort, 9, true},
		{Cohort, 10, false},
		{PyTorch, 0, true},
	}
	for _, told := range []bool{true, false} { // whether the end of each was known before its successor came
		for _, waits := range []Time{0, 60e9} { // and whether it was long ago
			m, now := New(0, 7, Options{}), Time(0)
			for i, x := range lives {
				m.Replace(1, x.kind, x.epoch)
				id, root := ID{On: 1, N: 0, Epoch: x.epoch}, ID{On: 1, N: 1, Epoch: x.epoch}
				if code := m.CallArrived(1, id, root, Key{1}); code != OK {
					t.Fatalf("told %v, after %v: life %d cannot create an object: %v", told, waits, i, code)
				}
				m.Valued(id)
				if _, code := m.ShareOwned(id, 1); code != OK {
					t.Errorf("told %v, after %v: life %d cannot be given a reference: %v", told, waits, i, code)
				}
				if w, code := m.Create(1); code != OK || m.handles[w.Fork].state == failed {
					t.Errorf("told %v, after %v: nothing can be created at life %d: %v", told, waits, i, code)
				}
				if x.deletes {
					m.Control(1, Message{Kind: Delete, ID: id, Fork: root})
				}
				if told {
					m.PeerDied(1)
				}
				now += waits
				m.Tick(now)
			}
			m.Replace(1, PyTorch, 0)
			m.PeerDied(1)
			m.Tick(now + 60e9)
			if c := m.Counts(); c.OwnerRRefs != 0 || c.Forks != 0 || c.PendingUsers != 0 || c.ConfirmedUsers != 0 {
				t.Errorf("told %v, after %v: left are %+v", told, waits, c)
			}
		}
	}
}

// TestFormerObject: what a PyTorch worker has made outlives it, since another worker holds it. Its successor, whose ids are the same,
// neither gets at it nor makes another one of its id.
func TestFormerObject(t *testing.T) {
	m := New(0, 7, Options{})
	m.AddPeer(2, PyTorch, 0)
	id, root, child := ID{On: 1}, ID{On: 1, N: 1}, ID{On: 1, N: 2}
	m.Replace(1, PyTorch, 0)
	m.CallArrived(1, id, root, Key{})
	m.Valued(id)
	m.Control(2, Message{Kind: ForkRequest, ID: id, Fork: child, Root: root})
	m.Control(1, Message{Kind: Delete, ID: id, Fork: root})
	if !m.MayUse(1, id) || !m.MayUse(2, id) {
		t.Fatal("its creator or its holder may not use it")
	}
	m.PeerDied(1)
	m.Replace(1, PyTorch, 0)
	if code := m.CallArrived(1, id, root, Key{}); code != CreateFailed {
		t.Errorf("the creation of another one: %v", code)
	}
	if m.MayUse(1, id) || !m.MayUse(2, id) {
		t.Errorf("the successor may use it: %v, its holder may: %v", m.MayUse(1, id), m.MayUse(2, id))
	}
	if _, code := m.Receive(1, Wire{ID: id, Fork: ID{On: 1, N: 3}, Root: root, Owner: 0, Parent: 1}); code != Gone {
		t.Errorf("the successor hands it to its owner: %v", code)
	}
	if _, code := m.Receive(2, Wire{ID: id, Fork: ID{On: 2, N: 3}, Root: root, Owner: 0, Parent: 2}); code != OK {
		t.Errorf("its holder hands it to its owner: %v", code)
	}
	m.ReleaseLocal(id)
	m.Control(1, Message{Kind: Delete, ID: id, Fork: root})
	m.Control(1, Message{Kind: Delete, ID: id, Fork: child})
	if m.objects[id] == nil {
		t.Fatal("the successor has deleted it")
	}
	m.Control(2, Message{Kind: Delete, ID: id, Fork: child})
	if m.objects[id] != nil {
		t.Error("it stays")
	}
}

// TestDeleteOvertakes: the delete of a PyTorch worker comes before what it deletes. What comes late does not make the fork again.
func TestDeleteOvertakes(t *testing.T) {
	m := New(0, 7, Options{})
	m.AddPeer(1, PyTorch, 0)
	m.AddPeer(2, PyTorch, 0)
	id, root, child := ID{On: 1, N: 0}, ID{On: 1, N: 1}, ID{On: 1, N: 2}
	m.Control(1, Message{Kind: Delete, ID: id, Fork: root})
	if code := m.CallArrived(1, id, root, Key{}); code != Cancelled {
		t.Errorf("the call that creates a deleted object: %v", code)
	}
	if code := m.FetchArrived(id); code != Gone {
		t.Errorf("the fetch of a deleted object: %v", code)
	}
	other := m.Own()
	m.Control(2, Message{Kind: Delete, ID: other, Fork: child})
	m.Control(2, Message{Kind: ForkRequest, ID: other, Fork: child})
	if c := m.Counts(); c.Forks != 0 || c.OwnerRRefs != 0 {
		t.Errorf("left are %+v", c)
	}
}
