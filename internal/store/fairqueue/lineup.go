// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package fairqueue is a line in which hosts take turns: the members of one host have their order, and however many of them wait, one
// from elsewhere waits for one of theirs.
package fairqueue

import "slices"

// Line is who waits. Make it with [New].
type Line[T any] struct {
	gone   func(T) bool
	hosts  []*host[T] // in the order of their turns
	byName map[string]*host[T]
	since  int64 // when the line was empty last
}

// host is the members of one host. Those that are gone stay among them for a while.
type host[T any] struct {
	name    string
	members []T
	gone    int // how many
}

// New returns an empty line. gone tells of a member that it does not wait any more: Left is called when that has become so.
func New[T any](gone func(T) bool) Line[T] {
	return Line[T]{gone: gone, byName: map[string]*host[T]{}}
}

// Empty reports whether nobody waits.
func (l *Line[T]) Empty() bool { return len(l.hosts) == 0 }

// Since is when the first came to the line while it was empty.
func (l *Line[T]) Since() int64 { return l.since }

// Len is how many are in the line.
func (l *Line[T]) Len() int {
	n := 0
	for _, h := range l.hosts {
		n += len(h.members)
	}
	return n
}

// Push puts a member behind the others of its host, or before them.
func (l *Line[T]) Push(member T, hostName string, before bool, now int64) {
	if l.Empty() {
		l.since = now
	}
	h := l.byName[hostName]
	if h == nil {
		h = &host[T]{name: hostName}
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
func (l *Line[T]) First() (member T, found bool) {
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
func (l *Line[T]) Pop() {
	h := l.hosts[0]
	h.dropFirst()
	l.hosts = append(slices.Delete(l.hosts, 0, 1), h)
	l.dropEmpty(h)
}

// Left notes that a member of a host is gone, and returns the work that it took: when most of a host's are gone they are removed.
func (l *Line[T]) Left(hostName string) (work int) {
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

func (h *host[T]) dropFirst() {
	var none T
	h.members[0] = none
	h.members = h.members[1:]
}

func (l *Line[T]) dropEmpty(h *host[T]) {
	if len(h.members) > 0 {
		return
	}
	delete(l.byName, h.name)
	at := slices.Index(l.hosts, h)
	l.hosts = slices.Delete(l.hosts, at, at+1)
}
