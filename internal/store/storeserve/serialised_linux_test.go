// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// metered starts a server whose loops are measured. The meters may be read once it is closed.
func metered(tb testing.TB, loops int) (*testServer, *meters) {
	tb.Helper()
	all := &meters{}
	s := startServer(tb, func(c *Config) {
		c.Loops = loops
		c.meter = func() *meter {
			m := &meter{cpu: threadTime}
			*all = append(*all, m)
			return m
		}
	})
	return s, all
}

type meters []*meter

func (all meters) sum() (sum meter) {
	for _, m := range all {
		sum.used, sum.locked = sum.used+m.used, sum.locked+m.locked
		sum.steps, sum.whole = sum.steps+m.steps, sum.whole+m.whole
	}
	return sum
}

// idle is how many loops have accepted no connection.
func (all meters) idle() (n int) {
	for _, m := range all {
		if m.let == 0 {
			n++
		}
	}
	return n
}

// exchange is a request that has a reply.
type exchange struct {
	name    string
	request []byte
	reply   int
}

// TestLittleIsDoneWithTheLock: while one loop has the lock the others wait. What is done with it for a request, which the machine
// counts, is little and grows with the value only in that a large one is read in pieces; and the lock is taken a few times for a
// small request. BenchmarkSerialised measures the time of that.
func TestLittleIsDoneWithTheLock(t *testing.T) {
	const (
		requests  = 100
		copied    = 4 << 10 / 64 // units of work: values up to so many bytes are copied
		piece     = 8 << 10      // at least so many bytes of a large value come at a time
		mostSteps = 4
	)
	for _, loops := range []int{1, 3} {
		for _, size := range []int{100, 4 << 10, 16 << 10, 256 << 10, 1 << 20} {
			set := wire.AppendPing(wire.AppendSet(nil, wire.V, "/k", make([]byte, size)), wire.V, 1)
			for _, x := range []exchange{{"set", set, 4}, {"get", wire.AppendKey(nil, wire.V, wire.Get, "/k"), 8 + size}} {
				t.Run(fmt.Sprintf("loops=%d/%s/%d", loops, x.name, size), func(t *testing.T) {
					s, meters := metered(t, loops)
					c := dialV(t, s)
					write(t, c, set)
					read(t, c, 4)
					before := s.snapshot().Work
					for range requests {
						write(t, c, x.request)
						read(t, c, x.reply)
					}
					work := float64(s.snapshot().Work-before) / requests
					s.close()
					steps := float64(meters.sum().steps) / requests
					if most := float64(10 + copied + size/piece); work > most || steps > mostSteps && size <= 4<<10 {
						t.Errorf("each request takes %.1f units of work (at most %v) and %.1f steps with the lock", work, most, steps)
					}
				})
			}
		}
	}
}

// TestOneStepForManyClients: what many clients have sent is told to the machine in a few steps, unless it is much work.
func TestOneStepForManyClients(t *testing.T) {
	const clients, much = 3 * maxMessages, stepWork
	for _, loops := range []int{1, 3} {
		t.Run(fmt.Sprintf("loops=%d", loops), func(t *testing.T) {
			// Each loop takes two steps with the first client that it finds, two and one for every maxMessages with the
			// others, and a few at the end.
			if steps, most := stepsFor(t, loops, clients, 1), loops*16; steps > most {
				t.Errorf("the requests of %d clients took %d steps, at most %d were expected", clients, steps, most)
			}
			if steps := stepsFor(t, loops, clients, much); steps < clients {
				t.Errorf("%d requests of each of %d clients took %d steps", much, clients, steps)
			}
		})
	}
}

// stepsFor is in how many steps a server serves clients that send so many requests each, all at the same time.
func stepsFor(t *testing.T, loops, clients, requests int) int {
	t.Helper()
	s, meters := metered(t, loops)
	all := make([]net.Conn, clients)
	for i := range all {
		all[i] = dialV(t, s)
	}
	var before int
	s.Do(func(*Core) { // while it has the lock no loop can take a step
		before = meters.sum().steps
		for _, c := range all {
			write(t, c, bytes.Repeat(wire.AppendAdd(nil, wire.V, "/n", 1), requests))
		}
	})
	sum, n := uint64(0), uint64(clients*requests)
	for _, c := range all {
		for range requests {
			sum += binary.LittleEndian.Uint64(read(t, c, 8))
		}
	}
	if sum != n*(n+1)/2 {
		t.Errorf("the replies add up to %d", sum)
	}
	s.close()
	return meters.sum().steps - before
}

// BenchmarkSerialised measures how much of the loops' processor time is spent with the lock: what cannot be done by several of them
// at the same time. 64 clients call in closed loops. Steps in which
// a loop has lost its core, with the lock, count as the others do.
//
//	go test ./internal/store/storeserve -run '^$' -bench Serialised
func BenchmarkSerialised(b *testing.B) {
	for _, loops := range []int{1, 2, 4, 8, 16} {
		for _, x := range []exchange{
			{"add", wire.AppendAdd(nil, wire.V, "/n", 1), 8},
			{"check", wire.AppendKeys(nil, wire.V, wire.Check, "/k"), 1},
			{"get/100B", wire.AppendKey(nil, wire.V, wire.Get, "/k"), 8 + 100},
			{"get/16KiB", wire.AppendKey(nil, wire.V, wire.Get, "/large"), 8 + 16<<10},
			{"set/16KiB", wire.AppendPing(wire.AppendSet(nil, wire.V, "/s", make([]byte, 16<<10)), wire.V, 1), 4},
			{"set/1MiB", wire.AppendPing(wire.AppendSet(nil, wire.V, "/s", make([]byte, 1<<20)), wire.V, 1), 4},
		} {
			b.Run(fmt.Sprintf("loops=%d/%s", loops, x.name), func(b *testing.B) { serialised(b, loops, x) })
		}
	}
}

func serialised(b *testing.B, loops int, x exchange) {
	b.Helper()
	s, meters := metered(b, loops)
	c := dialV(b, s)
	write(b, c, wire.AppendSet(nil, wire.V, "/k", make([]byte, 100)))
	write(b, c, wire.AppendSet(nil, wire.V, "/large", make([]byte, 16<<10)))
	const clients = 64
	var all sync.WaitGroup
	for range clients {
		c := dialV(b, s)
		all.Go(func() {
			for range b.N/clients + 1 {
				write(b, c, x.request)
				read(b, c, x.reply)
			}
		})
	}
	all.Wait()
	s.close()
	sum, n := meters.sum(), float64(b.N/clients+1)*clients
	locked := float64(sum.locked) / float64(sum.whole) * float64(sum.steps)
	used := float64(sum.used)
	b.ReportMetric(100*locked/used, "locked-%")
	b.ReportMetric(locked/n, "locked-ns/op")
	b.ReportMetric(used/n, "cpu-ns/op")
	b.ReportMetric(float64(sum.steps)/n, "steps/op")
}
