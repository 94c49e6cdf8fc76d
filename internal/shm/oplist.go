// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import "github.com/cohort-dist/cohort/internal/link"

// opList is a queue of operations, linked through the operations themselves.
type opList struct{ head, tail *link.Op }

func (l *opList) push(op *link.Op) {
	op.State.Next = nil
	if l.tail == nil {
		l.head = op
	} else {
		l.tail.State.Next = op
	}
	l.tail = op
}

func (l *opList) pop() *link.Op {
	op := l.head
	if op != nil {
		l.remove(op)
	}
	return op
}

// first returns the oldest operation that fits.
func (l *opList) first(fits func(*link.Op) bool) *link.Op {
	for op := l.head; op != nil; op = op.State.Next {
		if fits(op) {
			return op
		}
	}
	return nil
}

func (l *opList) bySlot(slot uint64) *link.Op {
	for op := l.head; op != nil; op = op.State.Next {
		if op.Slot == slot {
			return op
		}
	}
	return nil
}

func (l *opList) byID(id uint64) *link.Op {
	for op := l.head; op != nil; op = op.State.Next {
		if op.State.Aux == id {
			return op
		}
	}
	return nil
}

func (l *opList) remove(op *link.Op) bool {
	var before *link.Op
	for x := l.head; x != nil; before, x = x, x.State.Next {
		if x != op {
			continue
		}
		if before == nil {
			l.head = x.State.Next
		} else {
			before.State.Next = x.State.Next
		}
		if l.tail == x {
			l.tail = before
		}
		x.State.Next = nil
		return true
	}
	return false
}

// arrival is a message, or the offer of one, that came before its receive was posted.
type arrival struct {
	slot  uint64
	id    uint64 // of an offer
	total uint64
	offer bool
	order uint64 // among all arrivals of the mesh
	data  []byte
}
