// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math/bits"
	"sync"

	"github.com/cohort-dist/cohort"
)

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
