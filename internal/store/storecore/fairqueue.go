// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

// This file is a line in which hosts take turns: the members of one host have their order, and however many of them wait, one
// from elsewhere waits for one of theirs.

import "slices"

// fairQueue is who waits. Make it with [New].
type fairQueue[T any] struct {
	gone   func(T) bool
	hosts  []*hostQueue[T] // in the order of their turns
	byName map[string]*hostQueue[T]
	since  int64 // when the line was empty last
}

// hostQueue is the members of one host. Those that are gone stay among them for a while.
type hostQueue[T any] struct {
	name    string
	members []T
	gone    int // how many
}

// newFairQueue returns an empty line. gone tells of a member that it does not wait any more: Left is called when that has become so.
func newFairQueue[T any](gone func(T) bool) fairQueue[T] {
	return fairQueue[T]{gone: gone, byName: map[string]*hostQueue[T]{}}
}

// Empty reports whether nobody waits.
func (l *fairQueue[T]) Empty() bool { return len(l.hosts) == 0 }

// Since is when the first came to the line while it was empty.
func (l *fairQueue[T]) Since() int64 { return l.since }

// Len is how many are in the line.
func (l *fairQueue[T]) Len() int {
	n := 0
	for _, h := range l.hosts {
		n += len(h.members)
	}
	return n
}

// Push puts a member behind the others of its host, or before them.
func (l *fairQueue[T]) Push(member T, hostName string, before bool, now int64) {
	if l.Empty() {
		l.since = now
	}
	h := l.byName[hostName]
	if h == nil {
		h = &hostQueue[T]{name: hostName}
		l.byName[hostName] = h
		l.hosts = append(l.hosts, h)
	}
	if before {
		h.members = slices.Insert(h.members, 0, member)
	} else {
		h.members = append(h.members, member)
	}
}

// First returns the one whose turn it is; false when nobody waits.
func (l *fairQueue[T]) First() (member T, found bool) {
	for !l.Empty() {
		h := l.hosts[0]
		if m := h.members[0]; !l.gone(m) {
			return m, true
		}
		h.dropFirst()
		h.gone--
		l.dropEmpty(h)
	}
	return member, false
}

// Pop takes the first one off the line. Its host goes to the end.
func (l *fairQueue[T]) Pop() {
	h := l.hosts[0]
	h.dropFirst()
	l.hosts = append(slices.Delete(l.hosts, 0, 1), h)
	l.dropEmpty(h)
}

// Left notes that a member of a host is gone, and returns the work that it took: when most of a host's are gone they are removed.
func (l *fairQueue[T]) Left(hostName string) (work int) {
	h := l.byName[hostName]
	if h.gone++; h.gone <= len(h.members)/2 {
		return 0
	}
	work = len(h.members)
	h.members = slices.DeleteFunc(h.members, l.gone)
	h.gone = 0
	l.dropEmpty(h)
	return work
}

func (h *hostQueue[T]) dropFirst() {
	var none T
	h.members[0] = none
	h.members = h.members[1:]
}

func (l *fairQueue[T]) dropEmpty(h *hostQueue[T]) {
	if len(h.members) > 0 {
		return
	}
	delete(l.byName, h.name)
	at := slices.Index(l.hosts, h)
	l.hosts = slices.Delete(l.hosts, at, at+1)
}
