// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"github.com/cohort-dist/cohort/internal/native/wire"
)

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

// newArrival returns an arrival with room for n bytes.
func (m *Mesh) newArrival(n int) *arrival {
	a := m.mu.spare
	if a != nil {
		m.mu.spare = a.next
	} else {
		a = new(arrival)
	}
	data := a.data
	*a = arrival{order: m.mu.order}
	m.mu.order++
	if cap(data) < n {
		data = make([]byte, n)
	}
	a.data = data[:n]
	return a
}

func (m *Mesh) recycle(a *arrival) {
	if cap(a.data) > EagerMax {
		a.data = nil
	}
	a.next = m.mu.spare
	m.mu.spare = a
}
