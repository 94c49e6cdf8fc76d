// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "iter"

// fork is who holds a fork, and since when.
type fork struct {
	life
	since Time
}

// forks are the forks of an object. Most objects have one in all their life, that of their creator, so one has its place here
// and only further ones need a table.
type forks struct {
	first ID
	of    fork // of first
	one   bool // first is there
	more  map[ID]fork
}

func (f *forks) len() int {
	if f.one {
		return 1 + len(f.more)
	}
	return len(f.more)
}

func (f *forks) get(id ID) (fork, bool) {
	if f.one && f.first == id {
		return f.of, true
	}
	k, known := f.more[id]
	return k, known
}

// add enters a fork that is not there.
func (f *forks) add(id ID, k fork) {
	if !f.one {
		f.first, f.of, f.one = id, k, true
		return
	}
	if f.more == nil {
		f.more = map[ID]fork{}
	}
	f.more[id] = k
}

func (f *forks) remove(id ID) {
	if f.one && f.first == id {
		f.first, f.of, f.one = ID{}, fork{}, false
		return
	}
	delete(f.more, id)
}

// all goes through the forks in no order that counts. They may be removed meanwhile.
func (f *forks) all() iter.Seq2[ID, fork] {
	return func(yield func(ID, fork) bool) {
		if f.one && !yield(f.first, f.of) {
			return
		}
		for id, k := range f.more {
			if !yield(id, k) {
				return
			}
		}
	}
}
