// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

// List is a first-in first-out list of ops, linked through the ops themselves, so that queueing takes no memory. An op is
// in one list at a time. The zero value is empty.
type List struct {
	Head, Tail *Op
	Len        int
}

// Push appends op.
func (l *List) Push(op *Op) {
	op.State.Next = nil
	if l.Tail == nil {
		l.Head = op
	} else {
		l.Tail.State.Next = op
	}
	l.Tail = op
	l.Len++
}

// Pop takes the oldest op out; nil when there is none.
func (l *List) Pop() *Op {
	op := l.Head
	if op != nil {
		l.Remove(op)
	}
	return op
}

// Remove takes op out and reports whether it was there.
func (l *List) Remove(op *Op) bool {
	var before *Op
	for at := l.Head; at != nil; before, at = at, at.State.Next {
		if at != op {
			continue
		}
		if before == nil {
			l.Head = op.State.Next
		} else {
			before.State.Next = op.State.Next
		}
		if l.Tail == op {
			l.Tail = before
		}
		op.State.Next = nil
		l.Len--
		return true
	}
	return false
}

// Index returns the position of op, or -1.
func (l *List) Index(op *Op) int {
	i := 0
	for at := l.Head; at != nil; at = at.State.Next {
		if at == op {
			return i
		}
		i++
	}
	return -1
}

// First returns the oldest op that fits, or nil.
func (l *List) First(fits func(*Op) bool) *Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if fits(op) {
			return op
		}
	}
	return nil
}

// OnSlot returns the oldest op of a slot, or nil.
func (l *List) OnSlot(slot uint64) *Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if op.Slot == slot {
			return op
		}
	}
	return nil
}

// Replace puts with in the place of op, which must be in the list.
func (l *List) Replace(op, with *Op) {
	with.State.Next = op.State.Next
	if l.Head == op {
		l.Head = with
	} else {
		at := l.Head
		for at.State.Next != op {
			at = at.State.Next
		}
		at.State.Next = with
	}
	if l.Tail == op {
		l.Tail = with
	}
	op.State.Next = nil
}
