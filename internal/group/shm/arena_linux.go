// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// arena lends memory of this rank's part of the segment. It keeps the mapping alive while any of it is lent.
type arena struct {
	memory  []byte
	base    int                        // offset of memory in the segment
	reserve func(from, size int) error // gives the segment's file room before the first use; may take long

	mu struct {
		sync.Mutex
		seg    *segment
		free   []span // by offset, no two adjacent
		lent   int
		closed bool
	}
	reserved struct {
		sync.Mutex
		high int // bytes of memory that the file has room for
	}
}

type span struct{ from, to int }

func (a *arena) init(seg *segment, rank int) {
	a.mu.seg, a.memory, a.base = seg, seg.arenaOf(rank), seg.arenasAt+rank*seg.arena
	if seg.arena > 0 {
		a.mu.free = []span{{0, seg.arena}}
	}
}

// Alloc returns n zeroed or previously used bytes in the segment, aligned to 128 bytes. An operation
// whose buffers all lie in the segment copies nothing in or out. Release gives the memory back; after Close the mapping
// stays until the last storage is released.
func (e *Engine) Alloc(n int) (*tensor.Storage, error) { return e.arena.alloc(n) }

func (a *arena) alloc(n int) (*tensor.Storage, error) {
	const op = "shm: alloc"
	if n < 0 {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "%d bytes", n)
	}
	if n > len(a.memory) {
		return nil, cohort.Newf(op, cohort.Exhausted, "%d bytes from an arena of %d: raise Config.Arena on rank 0", n, len(a.memory))
	}
	got, err := a.take(max(roundUp(n, 2*lineSize), 2*lineSize))
	if err != nil {
		return nil, err
	}
	if err := a.reserveTo(got.to); err != nil {
		a.giveBack(got)
		if errors.Is(err, os.ErrClosed) {
			return nil, cohort.New(op, cohort.Closed, "the engine was closed meanwhile")
		}
		return nil, cohort.Newf(op, cohort.Exhausted, "%d bytes: %w", n, err)
	}
	return tensor.WrapStorage(a.memory[got.from:got.from+n], "shared segment", func() { a.giveBack(got) }), nil
}

// take lends the first part of the arena that is free and large enough.
func (a *arena) take(size int) (span, error) {
	const op = "shm: alloc"
	failpoint.At("shm.arena.take")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return span{}, cohort.New(op, cohort.Closed, "the engine is closed")
	}
	for i, s := range a.mu.free {
		if s.to-s.from < size {
			continue
		}
		got := span{s.from, s.from + size}
		if a.mu.free[i].from = got.to; got.to == s.to {
			a.mu.free = slices.Delete(a.mu.free, i, i+1)
		}
		a.mu.lent++
		return got, nil
	}
	return span{}, cohort.Newf(op, cohort.Exhausted, "%d bytes: the arena of %d is used up or fragmented", size, len(a.memory))
}

// reserveTo makes sure that the file has memory behind the arena up to an offset. That takes the kernel a while if it is much, so
// heartbeats and the end of the group must not wait for it: it has a separate lock.
func (a *arena) reserveTo(to int) error {
	failpoint.At("shm.arena.reserve")
	a.reserved.Lock()
	defer a.reserved.Unlock()
	if to <= a.reserved.high || a.reserve == nil {
		return nil
	}
	to = min(roundUp(to, 1<<20), len(a.memory))
	if err := a.reserve(a.base+a.reserved.high, to-a.reserved.high); err != nil {
		return err
	}
	a.reserved.high = to
	return nil
}

func (a *arena) giveBack(s span) {
	failpoint.At("shm.arena.give_back")
	a.mu.Lock()
	defer a.mu.Unlock()
	i, _ := slices.BinarySearchFunc(a.mu.free, s.from, func(f span, from int) int { return f.from - from })
	a.mu.free = slices.Insert(a.mu.free, i, s)
	if i+1 < len(a.mu.free) && a.mu.free[i].to == a.mu.free[i+1].from {
		a.mu.free[i].to = a.mu.free[i+1].to
		a.mu.free = slices.Delete(a.mu.free, i+1, i+2)
	}
	if i > 0 && a.mu.free[i-1].to == a.mu.free[i].from {
		a.mu.free[i-1].to = a.mu.free[i].to
		a.mu.free = slices.Delete(a.mu.free, i, i+1)
	}
	a.mu.lent--
	a.unmapIfIdle()
}

// close ends lending. The memory is unmapped now or with the last release.
func (a *arena) close() {
	failpoint.At("shm.arena.close")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.closed = true
	a.unmapIfIdle()
}

func (a *arena) unmapIfIdle() {
	if a.mu.closed && a.mu.lent == 0 && a.mu.seg != nil {
		a.mu.seg.unmap()
		a.mu.seg = nil
	}
}

// offset returns where a buffer lies in the segment, if it lies in this rank's arena.
func (a *arena) offset(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > len(a.memory) {
		return 0, false
	}
	//nolint:gosec // addresses are only compared
	p, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(a.memory)))
	if p < from || p-from > uintptr(len(a.memory)-len(b)) {
		return 0, false
	}
	return a.base + int(p-from), true
}

// whileMapped calls f unless the memory is gone.
func (a *arena) whileMapped(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.seg != nil {
		f()
	}
}
