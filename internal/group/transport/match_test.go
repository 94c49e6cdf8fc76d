// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestTakeFor(t *testing.T) {
	t.Parallel()
	var recvs, anyRecvs List
	own, other := &Op{Peer: 1, Slot: 5}, &Op{Peer: 1, Slot: 6}
	picky, open := &Op{Peer: AnyPeer, Slot: 5, From: []int{2}}, &Op{Peer: AnyPeer, Slot: 5}
	for _, op := range []*Op{other, own} {
		recvs.Push(op)
	}
	for _, op := range []*Op{picky, open} {
		anyRecvs.Push(op)
	}
	for _, want := range []*Op{own, open, nil} { // the own one first; picky does not accept rank 1
		if got := TakeFor(&recvs, &anyRecvs, 5, 1); got != want || got != nil && got.Source != 1 {
			t.Errorf("took %+v, want %+v", got, want)
		}
	}
	if recvs.Head != other || anyRecvs.Head != picky {
		t.Error("what does not match was taken out")
	}
	var ended []*Op
	gone := []bool{false, false, true}
	anyRecvs.Push(open)
	EndOrphans(&anyRecvs, func(rank int) bool { return !gone[rank] }, 3, func(op *Op) { ended = append(ended, op) })
	if !slices.Equal(ended, []*Op{picky}) || anyRecvs.Head != open {
		t.Errorf("ended %v", ended)
	}
}

// TestListIsAQueue compares a list with a slice under random calls.
func TestListIsAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l List
		var want []*Op
		pick := func(t *rapid.T) *Op {
			if len(want) == 0 || rapid.IntRange(0, 5).Draw(t, "other rank") == 0 {
				return &Op{}
			}
			return want[rapid.IntRange(0, len(want)-1).Draw(t, "which")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				op := &Op{Slot: rapid.Uint64Range(0, 3).Draw(t, "slot")}
				l.Push(op)
				want = append(want, op)
			},
			"pop": func(t *rapid.T) {
				got := l.Pop()
				if len(want) == 0 {
					if got != nil {
						t.Fatal("popped from an empty list")
					}
					return
				}
				if got != want[0] {
					t.Fatal("not the oldest")
				}
				want = want[1:]
			},
			"remove": func(t *rapid.T) {
				op := pick(t)
				i := slices.Index(want, op)
				if at := l.Index(op); at != i {
					t.Fatalf("at %d, want %d", at, i)
				}
				if l.Remove(op) != (i >= 0) {
					t.Fatal("remove")
				}
				if i >= 0 {
					want = slices.Delete(want, i, i+1)
				}
			},
			"replace": func(t *rapid.T) {
				op := pick(t)
				if i := slices.Index(want, op); i >= 0 {
					want[i] = &Op{Slot: op.Slot}
					l.Replace(op, want[i])
				}
			},
			"": func(t *rapid.T) {
				var all []*Op
				for op := l.Head; op != nil; op = op.State.Next {
					all = append(all, op)
				}
				if !slices.Equal(all, want) || l.Len != len(want) || len(want) > 0 && l.Tail != want[len(want)-1] ||
					len(want) == 0 && l.Tail != nil {
					t.Fatalf("%d ops, want %d", l.Len, len(want))
				}
				for slot := range uint64(4) {
					fits := func(op *Op) bool { return op.Slot == slot }
					var first *Op
					if i := slices.IndexFunc(want, fits); i >= 0 {
						first = want[i]
					}
					if l.OnSlot(slot) != first || l.First(fits) != first {
						t.Fatalf("slot %d", slot)
					}
				}
			},
		})
	})
}
