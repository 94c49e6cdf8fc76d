// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// createSegment makes the segment's file and maps it. The descriptor is the caller's to close.
func createSegment(c *Config) (*os.File, *segment, error) {
	const op = "shm: create segment"
	l, err := newLayout(c.Size, c.Slot, c.Area, c.Arena, math.MaxInt)
	if err != nil {
		return nil, nil, err
	}
	f, err := createFile(c)
	if err != nil {
		return nil, nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	fail := func(err error) (*os.File, *segment, error) {
		_ = f.Close()
		return nil, nil, cohort.Newf(op, cohort.Exhausted, "%d bytes: %w", l.totalSize, err)
	}
	if err = f.Truncate(int64(l.totalSize)); err != nil {
		return fail(err)
	}
	// Reserve what is always used now: a full file system must be an error here, not a bus error later.
	if err = reserve(f, 0, l.arenasAt); err != nil {
		return fail(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, l.totalSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail(err)
	}
	// No process may shrink the file below the mappings. A plain file cannot be sealed; it has no name, which is as good.
	_, _ = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	s := &segment{layout: l, mem: mem}
	s.header().describe(&l)
	return f, s, nil
}

func createFile(c *Config) (*os.File, error) {
	if !c.MappedFile {
		fd, err := unix.MemfdCreate("cohort-shm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err == nil {
			return os.NewFile(uintptr(fd), "cohort-shm"), nil
		}
	}
	folders := []string{c.Dir}
	if c.Dir == "" {
		folders = []string{"/dev/shm", os.TempDir()}
	}
	var first error
	for _, dir := range folders {
		f, err := os.CreateTemp(dir, "cohort-shm-")
		if err == nil {
			_ = os.Remove(f.Name())
			return f, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// reservePart is what is reserved at a time. A signal, of a profiler for example, undoes all that a call has done so far.
const reservePart = 16 << 20

// reserve allocates a range of the file. File systems without the call are taken as they are. The file may be closed meanwhile.
func reserve(f *os.File, from, size int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	for part := 0; size > 0; from, size = from+part, size-part {
		part = min(size, reservePart)
		var failed error
		if raw.Control(func(fd uintptr) {
			for failed = unix.EINTR; failed == unix.EINTR; {
				failed = unix.Fallocate(int(fd), 0, int64(from), int64(part))
			}
		}) != nil { // nothing else can go wrong
			return os.ErrClosed
		}
		switch failed {
		case nil:
		case unix.EOPNOTSUPP, unix.ENOSYS:
			return nil
		default:
			return failed
		}
	}
	return nil
}

// openSegment maps a segment whose descriptor another rank sent.
func openSegment(f *os.File, ranks int) (*segment, error) {
	const op = "shm: map segment"
	// Where a kernel or a sandbox has no memory that can be sealed, it says so by the seal against seals.
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err == nil && seals&(unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL) == 0 {
		return nil, cohort.Newf(op, cohort.Protocol, "the segment is not sealed, so it can shrink below its users")
	}
	info, err := f.Stat()
	if err != nil {
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	if info.Size() < pageSize {
		return nil, cohort.Newf(op, cohort.Protocol, "a segment of %d bytes", info.Size())
	}
	head := make([]byte, pageSize) // a copy: what has been checked must not change before it is used
	if _, err = f.ReadAt(head, 0); err != nil {
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	l, err := adopt((&segment{mem: head}).header(), info.Size(), ranks)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, l.totalSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, cohort.Wrap(op, cohort.Exhausted, err)
	}
	return &segment{layout: l, mem: mem}, nil
}

func (s *segment) unmap() { _ = unix.Munmap(s.mem) }

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
