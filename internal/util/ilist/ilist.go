// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ilist is an intrusive doubly linked list: an element contains its own links, so that adding it allocates
// nothing, and it can be removed in constant time from any number of lists that it is on.
package ilist

// Place is the place of a T in a list. It must not be copied while it is in one.
type Place[T any] struct {
	of         *T
	prev, next *Place[T]
}

// Of returns what the place belongs to, or nil when it has never been in a list.
func (p *Place[T]) Of() *T { return p.of }

// Next returns the next element, or nil.
func (p *Place[T]) Next() *Place[T] { return p.next }

// List holds places in the order in which they were added. Its zero value is empty.
type List[T any] struct{ first, last *Place[T] }

// First returns the place that was added first, or nil.
func (l *List[T]) First() *Place[T] { return l.first }

// Add puts p, which is a place of t and in no list, at the end.
func (l *List[T]) Add(p *Place[T], t *T) {
	p.of, p.prev, p.next = t, l.last, nil
	if l.last == nil {
		l.first = p
	} else {
		l.last.next = p
	}
	l.last = p
}

// Remove takes p, which is in this list, out of it.
func (l *List[T]) Remove(p *Place[T]) {
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
}
