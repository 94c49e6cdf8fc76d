// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensorpool lends large blocks of memory and takes each back when the garbage collector finds that nothing can
// reach it any more. A program that receives a tensor need not return it, and may keep it, or a slice of it, for ever.
//
// A new block costs more than receiving bytes into it, because the kernel faults in and clears every page. So a block has
// a finalizer, which puts it back into the pool instead of letting it be freed. That is as safe as garbage collection
// itself: a block returns only when its memory could have been given to another allocation. A block whose storage is
// released returns at once.
//
// The pool never triggers a collection. A program that wants its blocks back at once releases the tensors that it has
// received.
//
// Under the race detector memory is never reused, because the detector cannot know that the collector orders the last use
// of a block before the next.
package tensorpool

import (
	"math/bits"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

const (
	// smallest is the size below which the heap is as good: its own size classes are recycled without page faults.
	smallest = 64 << 10
	// keep bounds what waits in a pool, and a block is at most half of it: one is filled while another is used.
	keep = 256 << 20
	// idle is how long a block may at least wait to be used again; it goes after at most twice that.
	idle = 5 * time.Second
)

// Pool lends blocks. Its methods are safe for concurrent use.
type Pool struct {
	mu struct {
		sync.Mutex
		classes map[int]*class
		kept    int // bytes that wait
		trim    *time.Timer
		closed  bool
	}
}

// class is the blocks of one size.
type class struct {
	size   int
	free   [][]byte
	unused int         // the fewest that waited since the last trim
	found  func(*byte) // the finalizer of its blocks
}

// New returns an empty pool.
func New() *Pool {
	p := &Pool{}
	p.mu.classes = map[int]*class{}
	return p
}

// round returns the size of the class for n bytes: one of eight per power of two.
func round(n int) int {
	step := 1 << max(bits.Len(uint(n-1))-4, 0)
	return (n + step - 1) &^ (step - 1)
}

// Get returns a storage of n bytes, whose contents are whatever the last user left.
func (p *Pool) Get(n int) (*tensor.Storage, error) {
	if n < smallest || n > keep/2 || raceDetector {
		return tensor.NewStorage(n)
	}
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return tensor.NewStorage(n)
	}
	c := p.class(round(n))
	var block []byte
	if last := len(c.free) - 1; last >= 0 {
		block = c.free[last]
		c.free[last] = nil
		c.free = c.free[:last]
		c.unused = min(c.unused, last)
		p.mu.kept -= c.size
	}
	p.mu.Unlock()
	if block == nil {
		block = make([]byte, c.size)
	}
	runtime.SetFinalizer(&block[0], c.found)
	return tensor.WrapStorage(block[:n], "received", func() {
		runtime.SetFinalizer(&block[0], nil)
		p.put(c.size, block)
	}), nil
}

// class returns the class of a size. Called with the lock.
func (p *Pool) class(size int) *class {
	c := p.mu.classes[size]
	if c == nil {
		c = &class{size: size}
		c.found = func(first *byte) {
			p.put(size, unsafe.Slice(first, size)) //nolint:gosec // the block that the finalizer was set for
		}
		p.mu.classes[size] = c
	}
	return c
}

// put takes a block back: it was released, or found to be unreachable.
func (p *Pool) put(size int, block []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || p.mu.kept+size > keep {
		return
	}
	p.mu.kept += size
	c := p.class(size)
	c.free = append(c.free, block)
	if p.mu.trim == nil {
		p.mu.trim = time.AfterFunc(idle, p.drop)
	}
}

// drop frees the blocks that were not used for a while.
func (p *Pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	for size, c := range p.mu.classes {
		p.mu.kept -= c.unused * size
		c.free = append([][]byte(nil), c.free[c.unused:]...)
		if c.unused = len(c.free); c.unused == 0 {
			delete(p.mu.classes, size)
		}
	}
	p.mu.trim = nil
	if p.mu.kept > 0 {
		p.mu.trim = time.AfterFunc(idle, p.drop)
	}
}

// Close gives all blocks that wait to the garbage collector and stops the pool's timer. What is lent stays valid.
func (p *Pool) Close() {
	p.mu.Lock()
	p.mu.closed = true
	clear(p.mu.classes)
	p.mu.kept = 0
	if p.mu.trim != nil {
		p.mu.trim.Stop()
	}
	p.mu.Unlock()
}
