// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "testing"

// TestOnlyHoldersEndThings: a member of the world sends every control message there is about an object that another one made and
// holds. The object, its value and its forks stay.
func TestOnlyHoldersEndThings(t *testing.T) {
	for _, kind := range []PeerKind{Cohort, PyTorch} {
		m := New(0, 7, Options{})
		m.AddPeer(1, kind, 8)
		m.AddPeer(2, kind, 9)
		id, root := ID{On: 1, N: 5, Epoch: 8}, ID{On: 1, N: 6, Epoch: 8}
		if code := m.CallArrived(1, id, root, Key{}); code != OK {
			t.Fatalf("the creating call: %v", code)
		}
		m.Take(nil)
		stands := func() bool {
			o := m.objects[id]
			if o == nil {
				return false
			}
			holder, _ := o.forks.get(root)
			return !o.valued && !o.cancelled && o.forks.len() == 1 && holder.worker == 1
		}
		for _, fork := range []ID{root, id, {On: 2, N: 1, Epoch: 9}, {On: 1, N: 99, Epoch: 8}, {}} {
			for _, attack := range []Kind{Delete, Cancel, Withdraw, ChildAccept, ForkReply, Created, Announce} {
				m.Control(2, Message{Kind: attack, ID: id, Fork: fork, Root: root})
				for _, e := range m.Take(nil) {
					if e.Kind == Free || e.Kind == CancelRun || e.Kind == Orphaned {
						t.Errorf("peer kind %v: %v of fork %v had the effect %+v", kind, attack, fork, e)
					}
				}
				if !stands() {
					t.Fatalf("peer kind %v: %v of fork %v by another worker changed the object: %+v", kind, attack, fork, m.objects[id])
				}
			}
		}
		other := ID{On: 1, N: 50, Epoch: 8} // not made yet
		m.Control(2, Message{Kind: Announce, ID: other, Fork: ID{On: 1, N: 51, Epoch: 8}})
		if m.objects[other] != nil {
			t.Errorf("peer kind %v: a worker announced the creation of another", kind)
		}
		if code := m.CallArrived(2, id, root, Key{}); code == OK || !stands() {
			t.Errorf("peer kind %v: a worker created an object under the ids of another: %v", kind, code)
		}
		child := ID{On: 1, N: 7, Epoch: 8} // the creator gives it to a third worker, whose fork is deleted by the second before it is there
		m.AddPeer(3, PyTorch, 0)
		m.Control(2, Message{Kind: Delete, ID: id, Fork: child})
		m.Control(3, Message{Kind: ForkRequest, ID: id, Fork: child, Root: root})
		if holder, _ := m.objects[id].forks.get(child); holder.worker != 3 {
			t.Errorf("peer kind %v: a fork that another worker deleted in advance is not registered: %+v", kind, m.objects[id])
		}
		m.Control(3, Message{Kind: Delete, ID: id, Fork: child})
		m.Control(1, Message{Kind: Delete, ID: id, Fork: root})
		if m.objects[id] != nil {
			t.Errorf("peer kind %v: the holder could not delete its fork", kind)
		}
	}
}
