// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

// opList is a first-in first-out list of ops, linked through the ops themselves.
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
		l.head = op.State.Next
		if l.head == nil {
			l.tail = nil
		}
		op.State.Next = nil
	}
	return op
}

// first returns the first op of a slot.
func (l *opList) first(slot uint64) *link.Op {
	for op := l.head; op != nil; op = op.State.Next {
		if op.Slot == slot {
			return op
		}
	}
	return nil
}

// remove takes op out and reports whether it was there.
func (l *opList) remove(op *link.Op) bool {
	var before *link.Op
	for at := l.head; at != nil; before, at = at, at.State.Next {
		if at != op {
			continue
		}
		if before == nil {
			l.head = op.State.Next
		} else {
			before.State.Next = op.State.Next
		}
		if l.tail == op {
			l.tail = before
		}
		op.State.Next = nil
		return true
	}
	return false
}

// The states of an op, in OpState.Flag.
const (
	opIdle uint32 = iota
	opPending
	opDone
)

func isDone(op *link.Op) bool { return atomic.LoadUint32(&op.State.Flag) == opDone }

// start prepares an op that was posted.
func start(op *link.Op) {
	atomic.StoreUint32(&op.State.Flag, opPending)
	op.State.Err, op.State.Aux, op.State.Next = nil, 0, nil
	if op.State.Done != nil { // a signal for the previous use
		select {
		case <-op.State.Done:
		default:
		}
	}
}

// complete ends an op. The mesh must not touch it afterwards: its owner may reuse it at once.
func complete(op *link.Op, err error) {
	op.State.Err = err
	done := op.State.Done
	atomic.StoreUint32(&op.State.Flag, opDone)
	poke(done)
}

// poke wakes whoever sleeps on a channel of capacity one.
func poke(ch chan struct{}) {
	if ch == nil {
		return
	}
	select {
	case ch <- struct{}{}:
	default:
	}
}

// arrival is a message that came before its receive: a small one with its bytes, or the announcement of a large one.
type arrival struct {
	slot    uint64
	order   uint64 // over all connections
	total   uint64
	call    wire.Call
	called  bool
	request bool   // announced, not here
	whole   bool   // all bytes are here
	data    []byte // of an eager message
	next    *arrival
}

// arrivals is a list of them in the order of arrival.
type arrivals struct{ head, tail *arrival }

func (l *arrivals) push(a *arrival) {
	a.next = nil
	if l.tail == nil {
		l.head = a
	} else {
		l.tail.next = a
	}
	l.tail = a
}

// first returns the first arrival of a slot.
func (l *arrivals) first(slot uint64) *arrival {
	for a := l.head; a != nil; a = a.next {
		if a.slot == slot {
			return a
		}
	}
	return nil
}

func (l *arrivals) remove(a *arrival) {
	var before *arrival
	for at := l.head; at != nil; before, at = at, at.next {
		if at != a {
			continue
		}
		if before == nil {
			l.head = a.next
		} else {
			before.next = a.next
		}
		if l.tail == a {
			l.tail = before
		}
		a.next = nil
		return
	}
}
