// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-dist/cohort"
)

// Alignment is where the memory of a [NewStorage] begins: a multiple of a cache line, which suits every vector unit.
const Alignment = 64

// Storage owns the memory of one or more tensors: bytes from the heap, from a pool or from a segment that several
// processes share. It corresponds to torch.UntypedStorage.
//
// Heap memory is freed by the garbage collector; pooled and shared memory goes back with [Storage.Release]. A tensor of
// a released storage has no data: its accessors return errors.
type Storage struct {
	data    []byte
	origin  string
	release func()
	state   atomic.Uint32
}

const storageReleased = 1

// NewStorage returns n zeroed bytes from the heap, aligned to [Alignment].
func NewStorage(n int) (*Storage, error) {
	if n < 0 || n > maxBytes {
		return nil, cohort.Newf("tensor: new storage", cohort.InvalidArgument, "%d bytes: want 0 to %d", n, maxBytes)
	}
	return &Storage{data: alignedBytes(n), origin: "heap"}, nil
}

// maxBytes bounds one storage: far above any memory, far below where index arithmetic could wrap.
const maxBytes = 1 << (30 + 16*(^uint(0)>>63))

func alignedBytes(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	raw := make([]byte, n+Alignment-1)
	//nolint:gosec // a view of elements as bytes; lengths are checked
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (Alignment - 1)
	return raw[skip : skip+n : skip+n]
}

// WrapStorage makes a storage of memory that lives elsewhere, without a copy. origin names where it lives ("shared
// segment", "pool") in errors; release, when not nil, is called once by [Storage.Release].
func WrapStorage(data []byte, origin string, release func()) *Storage {
	return &Storage{data: slices.Clip(data), origin: origin, release: release}
}

// Len returns the number of bytes.
func (s *Storage) Len() int { return len(s.data) }

// Origin names where the memory lives: "heap", "slice" or what [WrapStorage] was told.
func (s *Storage) Origin() string { return s.origin }

// Released reports whether the memory was given back. The storage of a zero Tensor, nil, counts as released.
func (s *Storage) Released() bool { return s == nil || s.state.Load() == storageReleased }

// Bytes returns the memory, without a copy.
func (s *Storage) Bytes() ([]byte, error) {
	switch {
	case s == nil:
		return nil, cohort.New("tensor: storage", cohort.InvalidArgument, "the tensor has no memory: it was not made by this package")
	case s.Released():
		return nil, cohort.New("tensor: storage", cohort.Closed, "the "+s.origin+" memory was released")
	}
	return s.data, nil
}

// Release gives pooled or shared memory back. No tensor of this storage may be used any more, nor any slice that was
// taken from one. It is idempotent; for heap memory it only marks the storage.
func (s *Storage) Release() {
	if s.state.Swap(storageReleased) == storageReleased {
		return
	}
	if s.release != nil {
		s.release()
	}
}

// Pool lends aligned storages and takes them back when they are released, so that a loop that needs a buffer per step leaves no
// garbage. The zero value is ready to use and keeps nothing; see [NewPool].
type Pool struct {
	keep int

	mu   sync.Mutex
	kept int              // bytes in free
	free map[int][][]byte // by capacity, a power of two
}

// NewPool returns a pool that keeps at most keep bytes of released memory.
func NewPool(keep int) *Pool { return &Pool{keep: keep, free: map[int][][]byte{}} }

// Get returns a storage of n bytes. Its contents are whatever the last user left. [Storage.Release] gives it back.
func (p *Pool) Get(n int) (*Storage, error) {
	if n < 0 || n > maxBytes {
		return nil, cohort.Newf("tensor: pool", cohort.InvalidArgument, "%d bytes: want 0 to %d", n, maxBytes)
	}
	size := max(Alignment, 1<<bits.Len(uint(max(n, 1)-1)))
	p.mu.Lock()
	var data []byte
	if list := p.free[size]; len(list) > 0 {
		data = list[len(list)-1]
		p.free[size] = list[:len(list)-1]
		p.kept -= size
	}
	p.mu.Unlock()
	if data == nil {
		data = alignedBytes(size)
	}
	return WrapStorage(data[:n], "pool", func() { p.put(data) }), nil
}

func (p *Pool) put(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept+len(data) > p.keep {
		return // the garbage collector has it
	}
	p.kept += len(data)
	p.free[len(data)] = append(p.free[len(data)], data)
}

// String reports how large the storage is and where its memory is from.
func (s *Storage) String() string {
	if s.Released() {
		return "released storage"
	}
	return fmt.Sprintf("storage of %d bytes (%s)", s.Len(), s.Origin())
}

// String reports how much memory the pool keeps.
func (p *Pool) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("pool (%d of %d bytes kept)", p.kept, p.keep)
}
