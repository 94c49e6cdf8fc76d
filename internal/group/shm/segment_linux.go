// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
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
