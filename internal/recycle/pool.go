// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package recycle

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
	collect func() // runtime.GC, or what a test puts in its place
	work    sync.WaitGroup

	mu      sync.Mutex
	classes map[int]*class
	kept    int // bytes that wait
	pace    pacer
	trim    *time.Timer
	closed  bool
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
	return &Pool{collect: runtime.GC, classes: map[int]*class{}, pace: newPacer()}
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
	if p.closed {
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
		p.kept -= c.size
	}
	collect := p.pace.lend(c.size)
	if collect {
		p.work.Go(p.collection)
	}
	p.mu.Unlock()
	if block == nil {
		block = make([]byte, c.size)
	}
	runtime.SetFinalizer(&block[0], c.found)
	return tensor.WrapStorage(block[:n], "received", func() {
		runtime.SetFinalizer(&block[0], nil)
		p.put(c.size, block, true)
	}), nil
}

// class returns the class of a size. Called with the lock.
func (p *Pool) class(size int) *class {
	c := p.classes[size]
	if c == nil {
		c = &class{size: size}
		c.found = func(first *byte) {
			p.put(size, unsafe.Slice(first, size), false) //nolint:gosec // the block that the finalizer was set for
		}
		p.classes[size] = c
	}
	return c
}

// put takes a block back: it was released, or found to be unreachable.
func (p *Pool) put(size int, block []byte, released bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.back(size, released)
	if p.closed || p.kept+size > keep {
		return
	}
	p.kept += size
	c := p.class(size)
	c.free = append(c.free, block)
	if p.trim == nil {
		p.trim = time.AfterFunc(idle, p.drop)
	}
}

// drop lets the blocks go that nobody wanted for a while.
func (p *Pool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for size, c := range p.classes {
		p.kept -= c.unused * size
		c.free = append([][]byte(nil), c.free[c.unused:]...)
		if c.unused = len(c.free); c.unused == 0 {
			delete(p.classes, size)
		}
	}
	p.trim = nil
	if p.kept > 0 {
		p.trim = time.AfterFunc(idle, p.drop)
	}
}

// collection runs the garbage collector once.
func (p *Pool) collection() {
	start := time.Now()
	p.collect()
	p.mu.Lock()
	p.pace.collected(time.Now(), time.Since(start))
	p.mu.Unlock()
}

// Close gives all blocks that wait to the garbage collector and ends the pool's work. What is lent stays valid.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	clear(p.classes)
	p.kept = 0
	if p.trim != nil {
		p.trim.Stop()
	}
	p.mu.Unlock()
	p.work.Wait()
}
