// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"
	"testing"
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
