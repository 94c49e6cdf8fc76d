// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
)

// cost is what a process has used so far, or used between two times.
type cost struct {
	cpu         time.Duration // of all threads
	switches    int64         // of context, wanted or not
	allocations uint64
	futex       int64 // calls of the group's own code, see spinwait.Calls
	epoll       int64
	yields      int64
}

// costNow reads the counters. Reading them stops the process for some microseconds, so it belongs outside of what is timed.
func costNow() cost {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c := processCost()
	c.allocations = m.Mallocs
	c.futex, c.epoll, c.yields = spinwait.Calls.Futex.Load(), spinwait.Calls.Epoll.Load(), spinwait.Calls.Yields.Load()
	return c
}

func (c cost) since(before cost) cost {
	return cost{
		c.cpu - before.cpu, c.switches - before.switches, c.allocations - before.allocations,
		c.futex - before.futex, c.epoll - before.epoll, c.yields - before.yields,
	}
}

// costRow is a line of output.
type costRow struct {
	name  string
	value float64
	unit  string
}

// emitCost prints the cost of one of n operations on the rank where it was highest, each value by itself. It is collective.
func (b *collBench) emitCost(ctx context.Context, name string, c cost, n int, wall time.Duration) error {
	each := float64(n)
	rows := []costRow{
		{"cores", c.cpu.Seconds() / wall.Seconds(), "cores"},
		{"cpu", micros(c.cpu) / each, "us"},
		{"switches", float64(c.switches) / each, "1/op"},
		{"allocs", float64(c.allocations) / each, "1/op"},
	}
	if b.group.Transport() != group.Gloo { // there the Go runtime waits, and no hook counts its calls
		rows = append(rows, costRow{"futex", float64(c.futex) / each, "1/op"}, costRow{"epoll", float64(c.epoll) / each, "1/op"}, costRow{"yields", float64(c.yields) / each, "1/op"})
	}
	values := make([]float64, len(rows))
	for i, row := range rows {
		values[i] = row.value
	}
	if err := group.AllReduceSlice(ctx, b.group, values, group.Max); err != nil {
		return err
	}
	if b.quiet {
		return nil
	}
	for i, row := range rows {
		b.meter.emit(name+"."+row.name, values[i], row.unit)
	}
	return nil
}

// keepBusy has n goroutines work, each in steps of its own, until the function that it returns is called.
func keepBusy(n int, worker func() (step func())) (stop func()) {
	var ended atomic.Bool
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for step := worker(); !ended.Load(); {
				step()
			}
		})
	}
	return func() {
		ended.Store(true)
		all.Wait()
	}
}

// computing uses a core and no memory.
func computing() (step func()) {
	x := 1.0
	return func() {
		for range 1000 {
			x = x*1.0000001 + 1e-9
		}
	}
}

// littering keeps the garbage collector busy: there is always something to collect, and 4 MiB of pointers to look through.
func littering() (step func()) {
	type kilobyte [128]*byte
	held := make([]*kilobyte, 4096)
	next := 0
	return func() {
		held[next%len(held)] = new(kilobyte)
		next++
	}
}
