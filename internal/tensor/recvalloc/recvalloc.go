// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package recvalloc allocates memory for announced data as the data arrives. Announcing a size costs a peer only a few
// bytes, so it is not believed: beyond a first piece a storage grows with the bytes that have arrived, and memory
// allocated ahead of them, by all connections together, comes out of a [Budget]. A connection that finds the budget empty
// does not wait; it grows in smaller steps, which cost it copies.
package recvalloc

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort/tensor"
)

const (
	// small is what is allocated without asking.
	small = 64 << 10
	// first is how much of a claim is allocated before any of it has arrived, and growth how many times as much as has
	// arrived afterwards: the copies are one sixteenth of what is received.
	first  = 64 << 20
	growth = 16
	// standard is the default budget.
	standard = 1 << 30
)

// Budget is how many bytes may be allocated ahead of their arrival, by all who share it.
type Budget struct{ left atomic.Int64 }

// NewBudget returns a budget of n bytes; zero means 1 GiB.
func NewBudget(n int64) *Budget {
	if n <= 0 {
		n = standard
	}
	b := &Budget{}
	b.left.Store(n)
	return b
}

// take returns how much of n bytes is granted: all, what is left, or nothing.
func (b *Budget) take(n int64) int64 {
	for {
		left := b.left.Load()
		granted := min(n, left)
		if granted <= 0 {
			return 0
		}
		if b.left.CompareAndSwap(left, left-granted) {
			return granted
		}
	}
}

func (b *Budget) give(n int64) { b.left.Add(n) }

// Left returns how much is not granted at this moment.
func (b *Budget) Left() int64 { return b.left.Load() }

// Storage returns a storage of n bytes from alloc, which fill has filled: it is called with one part behind the other, and
// an error of it ends the attempt.
func Storage(n int, alloc func(int) (*tensor.Storage, error), budget *Budget, fill func([]byte) error) (*tensor.Storage, error) {
	var s *tensor.Storage
	for have := 0; ; {
		size, granted := n, int64(0)
		if n-have > small {
			believed := min(n, max(first, growth*have))
			granted = budget.take(int64(believed - have))
			// Without a grant it doubles: never more than has arrived, and never in steps so small that copies add up.
			size = have + max(int(granted), min(max(have, small), n-have))
		}
		next, err := grown(s, have, size, alloc)
		if err == nil {
			s = next
			var b []byte
			if b, err = s.Bytes(); err == nil {
				err = fill(b[have:size])
			}
		}
		budget.give(granted)
		if err != nil {
			if s != nil {
				s.Release()
			}
			return nil, err
		}
		if have = size; have == n {
			return s, nil
		}
	}
}

// grown returns a storage of size bytes with the first have bytes of s, which is released.
func grown(s *tensor.Storage, have, size int, alloc func(int) (*tensor.Storage, error)) (*tensor.Storage, error) {
	next, err := alloc(size)
	if err != nil || s == nil {
		return next, err
	}
	to, err := next.Bytes()
	if err == nil {
		var from []byte
		if from, err = s.Bytes(); err == nil {
			copy(to, from[:have])
		}
	}
	if err != nil {
		next.Release()
		return nil, err
	}
	s.Release()
	return next, nil
}
