// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// asked are the events that the kernel is asked for about each connection, by loop.
func asked(t *testing.T, s *testServer) (events [][]uint32) {
	t.Helper()
	d, ok := s.driver.(*loops)
	if !ok {
		t.Fatalf("%T is not the loops", s.driver)
	}
	for _, l := range d.all {
		info, err := os.ReadFile(fmt.Sprint("/proc/self/fdinfo/", l.poll))
		if err != nil {
			t.Fatal(err)
		}
		var own []uint32
		for line := range strings.Lines(string(info)) {
			var fd int
			var mask uint32
			var data uint64
			if n, _ := fmt.Sscanf(line, "tfd: %d events: %x data: %x", &fd, &mask, &data); n == 3 && data>>32 != 0 { // it has a serial
				own = append(own, mask&^(unix.EPOLLERR|unix.EPOLLHUP))
			}
		}
		events = append(events, own)
	}
	return events
}

// TestLoopsShareConnections: however they come, all loops have as many.
func TestLoopsShareConnections(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Loops = 3 })
	const each = 20
	for range each {
		_ = dialV(t, s)
	}
	var all sync.WaitGroup
	for range 2 * each {
		all.Go(func() { _ = dialV(t, s) })
	}
	all.Wait()
	for i, own := range asked(t, s) {
		if len(own) != each {
			t.Errorf("loop %d has %d connections", i, len(own))
		}
	}
}

// TestLoopsKnowWhatWasBefore: a client that has sent a set, which has no reply, and ended its connection, finds both done over
// its next connection, whichever loops have the two.
func TestLoopsKnowWhatWasBefore(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Loops, c.Machine.Forget = 4, true })
	for _, stay := range []bool{true, false} { // a client uses the store all the time, or none does
		var busy sync.WaitGroup
		stop := make(chan struct{})
		if stay {
			for range 4 { // so that loops have something to do
				c := dialV(t, s)
				busy.Go(func() {
					for {
						select {
						case <-stop:
							_ = c.Close()
							return
						default:
							write(t, c, wire.AppendAdd(nil, wire.V, "/n", 1))
							read(t, c, 8)
						}
					}
				})
			}
		}
		for i := range 200 {
			key := fmt.Sprintf("/%v/%d", stay, i)
			before := dialV(t, s)
			write(t, before, wire.AppendSet(nil, wire.V, key, []byte("value")))
			_ = before.Close()
			after := dialV(t, s)
			write(t, after, wire.AppendKeys(nil, wire.V, wire.Check, key))
			there := wire.Ready
			if !stay {
				there = wire.NotReady // the last user has left: all was forgotten
			}
			if got := read(t, after, 1)[0]; got != there {
				t.Fatalf("others: %v, connection %d: the check of a key that was set before says %d, want %d", stay, i, got, there)
			}
			if stay && s.clients() != 5 {
				t.Fatalf("connection %d: there are %d clients, want 5", i, s.clients())
			}
			_ = after.Close()
		}
		close(stop)
		busy.Wait()
		testkit.Until(t, "all are gone", func() bool { return s.clients() == 0 })
	}
}

// TestLoopsEndInAStorm: a server that is closed or shut down while clients connect leaves nothing behind.
func TestLoopsEndInAStorm(t *testing.T) {
	for _, loops := range []int{1, 3} {
		t.Run(strconv.Itoa(loops), func(t *testing.T) {
			noLeaks(t)
			for round := range 20 {
				s := startServer(t, func(c *Config) { c.Loops = loops })
				var all sync.WaitGroup
				var served atomic.Int64
				for range 16 {
					all.Go(func() {
						for {
							c, err := net.Dial("tcp", s.addr)
							if err != nil {
								return // it has ended
							}
							_ = c.SetDeadline(time.Now().Add(20 * time.Second))
							_, _ = c.Write(wire.AppendPing(wire.AppendValidate(nil), wire.V, 42))
							if _, err = io.ReadFull(c, make([]byte, 4)); err == nil {
								served.Add(1)
							} else if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // as it comes
								t.Error("a connection was neither served nor closed")
							}
							_ = c.Close()
						}
					})
				}
				testkit.Until(t, "some were served", func() bool { return served.Load() > int64(round) })
				if round%2 == 1 {
					<-s.Drain()
				}
				s.close()
				all.Wait()
			}
		})
	}
}

// TestLoopKeepsAClientThatWaits: a client that is not read from, since its listing is being made, is told something meanwhile.
// What the kernel said before about its further requests must not be taken for its end.
func TestLoopKeepsAClientThatWaits(t *testing.T) {
	s := startServer(t)
	writer := dialV(t, s)
	const keys = 40_000
	var sets []byte
	for i := range keys {
		sets = wire.AppendSet(sets, wire.V, fmt.Sprintf("/key/%d", i), nil)
	}
	write(t, writer, sets)
	native := func(id uint32, fill func([]byte) []byte) []byte {
		return wire.EndFrame(fill(wire.BeginFrame(nil, id)), 0, 0)
	}
	for round := range 30 {
		c := dialRaw(t, s)
		write(t, c, wire.AppendUpgrade(wire.AppendValidate(nil)))
		var b []byte
		const waits = 200
		for i := range waits {
			b = append(b, native(uint32(i+1), func(b []byte) []byte {
				return wire.AppendKey(b, wire.Native, wire.Get, fmt.Sprintf("/come/%d/%d", round, i))
			})...)
		}
		b = append(b, native(waits+1, func(b []byte) []byte { return wire.AppendPlain(b, wire.Native, wire.ListKeys) })...)
		write(t, c, b)
		var done sync.WaitGroup
		done.Go(func() {
			for i := range waits {
				write(t, writer, wire.AppendSet(nil, wire.V, fmt.Sprintf("/come/%d/%d", round, i), []byte("v")))
				write(t, c, native(uint32(waits+2+i), func(b []byte) []byte { return wire.AppendPing(b, wire.Native, 7) }))
			}
		})
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		r := bufio.NewReader(c)
		for i := range 2*waits + 1 {
			var head [wire.FrameHeader]byte
			_, err := io.ReadFull(r, head[:])
			if err == nil {
				_, size, _ := wire.ParseFrame(head[:])
				_, err = r.Discard(size - wire.FrameHeader)
			}
			if err != nil {
				t.Fatalf("round %d, reply %d: %v", round, i, err)
			}
		}
		done.Wait()
		_ = c.Close()
	}
}

// TestLoopSleepsWhileOthersServe: requests of one loop's client that concern no client of another loop do not wake that one.
func TestLoopSleepsWhileOthersServe(t *testing.T) {
	s, meters := metered(t, 2)
	busy, _ := dialV(t, s), dialV(t, s)
	const requests = 1000
	for range requests {
		write(t, busy, wire.AppendAdd(nil, wire.V, "/n", 1))
		_ = read(t, busy, 8)
	}
	s.close()
	if a, b := (*meters)[0].steps, (*meters)[1].steps; min(a, b) > requests/10 || max(a, b) < requests {
		t.Errorf("after %d requests to one loop the two have taken the lock %d and %d times", requests, a, b)
	}
}

// TestLoopsAcceptAStorm: clients that come all at once are all served and shared evenly, and all loops take them in. Which loop takes
// which is up to the kernel, so there are as many storms as it takes until all have.
func TestLoopsAcceptAStorm(t *testing.T) {
	for _, loops := range []int{1, 3} {
		t.Run(strconv.Itoa(loops), func(t *testing.T) {
			noLeaks(t)
			idle := loops
			for range 20 {
				s, meters := metered(t, loops)
				storm(t, s, 1998) // which one and three divide
				s.close()
				if idle = meters.idle(); idle == 0 {
					return
				}
			}
			t.Errorf("in the last storm %d of %d loops have accepted no connection, as in all before it", idle, loops)
		})
	}
}

// storm has clients come all at once and leave again.
func storm(t *testing.T, s *testServer, clients int) {
	t.Helper()
	conns := make([]net.Conn, clients)
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() { conns[i] = dialV(t, s) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	owners := asked(t, s)
	for i, own := range owners {
		if len(own) != clients/len(owners) {
			t.Errorf("loop %d has %d of %d connections", i, len(own), clients)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	testkit.Until(t, "all are gone", func() bool { return s.clients() == 0 })
}
