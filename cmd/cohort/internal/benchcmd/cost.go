// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"io"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
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
		rows = append(rows, costRow{"futex", float64(c.futex) / each, "1/op"}, costRow{"epoll", float64(c.epoll) / each, "1/op"},
			costRow{"yields", float64(c.yields) / each, "1/op"})
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

// meter measures closed loops and prints rows like those of bench/peers.
type meter struct {
	out   io.Writer
	group string
	peer  string
	dur   time.Duration
	only  *regexp.Regexp // of cases; nil means all
}

func (m *meter) wanted(name string) bool { return m.only == nil || m.only.MatchString(name) }

// emit prints one value.
func (m *meter) emit(name string, value float64, unit string) {
	row := struct {
		Group string  `json:"group"`
		Case  string  `json:"case"`
		Peer  string  `json:"peer"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
	}{m.group, name, m.peer, value, unit}
	_ = command.WriteJSON(m.out, "bench", row)
}

// run has callers call fn in closed loops, first to warm up, then measured. With size it reports the bandwidth of size
// bytes in each direction, else the rate.
func (m *meter) run(name string, callers, size int, fn func() error) error {
	if !m.wanted(name) {
		return nil
	}
	if _, _, err := m.loop(callers, m.dur/5, fn); err != nil {
		return err
	}
	took, elapsed, err := m.loop(callers, m.dur, fn)
	if err != nil {
		return err
	}
	slices.Sort(took)
	m.emit(name+".p50", micros(took[len(took)/2]), "us")
	if len(took) >= 200 {
		m.emit(name+".p99", micros(took[len(took)*99/100]), "us")
	}
	if size > 0 {
		m.emit(name+".bw", 2*float64(size)*float64(len(took))/elapsed.Seconds()/1e9, "GB/s")
		return nil
	}
	m.emit(name+".ops", float64(len(took))/elapsed.Seconds(), "op/s")
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

func (m *meter) loop(callers int, dur time.Duration, fn func() error) ([]time.Duration, time.Duration, error) {
	took := make([][]time.Duration, callers)
	errs := make([]error, callers)
	start := time.Now()
	end := start.Add(dur)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			// At least once: on a busy machine the time may be over before a caller runs.
			for t := time.Now(); (len(took[c]) == 0 || t.Before(end)) && errs[c] == nil; {
				errs[c] = fn()
				u := time.Now()
				took[c] = append(took[c], u.Sub(t))
				t = u
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return nil, 0, err
		}
	}
	return slices.Concat(took...), elapsed, nil
}
