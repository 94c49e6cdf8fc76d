// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package match

import "github.com/cohort-dist/cohort/internal/link"

// opList is a first-in first-out list of ops, linked through the ops themselves.
type opList struct {
	head, tail *link.Op
	len        int
}

func (l *opList) push(op *link.Op) {
	op.State.Next = nil
	if l.tail == nil {
		l.head = op
	} else {
		l.tail.State.Next = op
	}
	l.tail = op
	l.len++
}

func (l *opList) pop() *link.Op {
	op := l.head
	l.head = op.State.Next
	if l.head == nil {
		l.tail = nil
	}
	op.State.Next = nil
	l.len--
	return op
}

// index returns the position of op, or -1.
func (l *opList) index(op *link.Op) int {
	i := 0
	for at := l.head; at != nil; at = at.State.Next {
		if at == op {
			return i
		}
		i++
	}
	return -1
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
		l.len--
		return true
	}
	return false
}

// replace puts with in the place of op, which must be in the list.
func (l *opList) replace(op, with *link.Op) {
	with.State.Next = op.State.Next
	if l.head == op {
		l.head = with
	} else {
		at := l.head
		for at.State.Next != op {
			at = at.State.Next
		}
		at.State.Next = with
	}
	if l.tail == op {
		l.tail = with
	}
	op.State.Next = nil
}

// replaceGhost puts op in the place of the oldest withdrawn receive, which must exist.
func (l *opList) replaceGhost(op *link.Op) {
	at := l.head
	for at.State.Aux&isGhost == 0 {
		at = at.State.Next
	}
	l.replace(at, op)
}
