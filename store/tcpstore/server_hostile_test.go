// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// honest has eight clients count for a while and returns the 99th percentile of their round trips. Every reply is
// checked.
func honest(t *testing.T, addr, name string, d time.Duration) (p99 time.Duration, ops int) {
	t.Helper()
	const clients = 8
	took := make([][]time.Duration, clients)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(d + 30*time.Second))
			if _, err := c.Write(wire.AppendValidate(nil)); err != nil {
				t.Error(err)
				return
			}
			request := wire.AppendAdd(nil, wire.V, fmt.Sprintf("/honest/%s/%d", name, i), 1)
			var reply [8]byte
			for n := uint64(1); ; n++ {
				start := time.Now()
				if _, err := c.Write(request); err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(c, reply[:]); err != nil {
					t.Errorf("an honest client is not served: %v", err)
					return
				}
				took[i] = append(took[i], time.Since(start))
				if got := binary.LittleEndian.Uint64(reply[:]); got != n {
					t.Errorf("add returned %d, want %d", got, n)
					return
				}
				if time.Now().After(end) {
					return
				}
			}
		})
	}
	all.Wait()
	sorted := slices.Sorted(slices.Values(slices.Concat(took...)))
	if len(sorted) == 0 {
		t.Fatal("no client was served")
	}
	return sorted[len(sorted)*99/100], len(sorted)
}

// attack is one way to misbehave. It runs until ctx ends.
type attack struct {
	name string
	run  func(ctx context.Context, t *testing.T, addr string)
}

const (
	idle        = "idle connections"
	allTogether = "all together"
)

func attacks() []attack {
	return []attack{
		{"absurd lengths", absurdLengths},
		{"half requests", halfRequests},
		{"one byte a second", dribble},
		{"a reader that never reads", neverRead},
		{"random bytes", randomBytes},
		{idle, idleConnections},
	}
}

// attackerDialer dials from another address than honest clients have, where that is possible: attackers are on other
// machines.
func attackerDialer() *net.Dialer {
	d := &net.Dialer{}
	if runtime.GOOS == "linux" {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	}
	return d
}

// each dials again and again, a little apart, and lets fn use the connection.
func each(ctx context.Context, addr string, workers int, pause time.Duration, fn func(c net.Conn, r *rand.Rand)) {
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 7))
			for ctx.Err() == nil {
				c, err := attackerDialer().DialContext(ctx, "tcp", addr)
				if err != nil {
					continue
				}
				if tcp, ok := c.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0) // leave no TIME_WAIT behind
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				fn(c, r)
				stop()
				_ = c.Close()
				sleep(ctx, pause)
			}
		})
	}
	all.Wait()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func absurdLengths(ctx context.Context, _ *testing.T, addr string) {
	each(ctx, addr, 4, 2*time.Millisecond, func(c net.Conn, r *rand.Rand) {
		code := []byte{0, 1, 2, 3, 4, 5, 8, 9, 10, 11}[r.IntN(10)]
		b := append([]byte{code}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(r.IntN(256)))
		if r.IntN(2) == 0 {
			b = binary.LittleEndian.AppendUint64(append(wire.AppendValidate(nil), 1), 1<<r.IntN(64)|1<<14)
		}
		_, _ = c.Write(b)
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.Copy(io.Discard, c)
	})
}

func halfRequests(ctx context.Context, _ *testing.T, addr string) {
	each(ctx, addr, 200, time.Millisecond, func(c net.Conn, r *rand.Rand) {
		set := wire.AppendSet(wire.AppendValidate(nil), wire.V, "/half", make([]byte, 64<<10))
		_, _ = c.Write(set[:1+r.IntN(len(set)-1)])
		sleep(ctx, time.Minute)
	})
}

func dribble(ctx context.Context, _ *testing.T, addr string) {
	each(ctx, addr, 200, time.Millisecond, func(c net.Conn, _ *rand.Rand) {
		for _, b := range wire.AppendSet(nil, wire.Legacy, "/dribble", make([]byte, 1<<20)) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			sleep(ctx, time.Second)
		}
	})
}

func neverRead(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	first, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer first.Close()
	_, _ = first.Write(wire.AppendSet(nil, wire.Legacy, "/large", make([]byte, 1<<20)))
	get := bytes.Repeat(wire.AppendKey(nil, wire.Legacy, wire.Get, "/large"), 1000)
	each(ctx, addr, 8, time.Millisecond, func(c net.Conn, _ *rand.Rand) {
		for ctx.Err() == nil {
			if _, err := c.Write(get); err != nil {
				return
			}
		}
	})
}

func randomBytes(ctx context.Context, _ *testing.T, addr string) {
	each(ctx, addr, 4, 2*time.Millisecond, func(c net.Conn, r *rand.Rand) {
		b := make([]byte, 1+r.IntN(2000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if r.IntN(2) == 0 {
			b = append(wire.AppendValidate(nil), b...)
		}
		_, _ = c.Write(b)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, _ = io.Copy(io.Discard, c)
	})
}

const (
	attackEnv = "COHORT_TEST_ATTACK" // "name,address"
	idleWant  = 10_000
)

// idleConnections holds ten thousand silent connections.
func idleConnections(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	var conns []net.Conn
	for len(conns) < idleWant && ctx.Err() == nil {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			break
		}
		conns = append(conns, c)
	}
	fmt.Printf("\nidle %d\n", len(conns))
	<-ctx.Done()
	for _, c := range conns {
		_ = c.Close()
	}
}

// TestServerAttackChild is the process that startAttack starts.
func TestServerAttackChild(t *testing.T) {
	name, addr, ok := strings.Cut(os.Getenv(attackEnv), ",")
	if !ok {
		return // not the child
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var all sync.WaitGroup
	for _, a := range append(attacks(), kinds()...) {
		if a.name == name || name == allTogether && a.name != idle &&
			slices.ContainsFunc(attacks(), func(b attack) bool { return a.name == b.name }) {
			all.Go(func() { a.run(ctx, t, addr) })
		}
	}
	all.Wait()
}

// startAttack runs an attack in a process of its own, and with low priority where that is possible: attackers are on
// other machines, so the processor time that they take here must not count. (And one process may not have enough
// descriptors for both ends of 10,000 connections.)
func startAttack(t *testing.T, name, addr string) (stop func()) {
	t.Helper()
	args := []string{os.Args[0], "-test.run=^TestServerAttackChild$", "-test.v"}
	if nice, err := exec.LookPath("nice"); err == nil {
		args = append([]string{nice, "-n", "19"}, args...)
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), attackEnv+"="+name+","+addr)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = stdin.Close()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, ok := strings.CutPrefix(lines.Text(), "idle "); ok {
				if have, _ := strconv.Atoi(n); have < idleWant {
					t.Logf("only %d idle connections: the limit of open files does not allow %d", have, idleWant)
				}
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServerHostile measures eight honest clients without and with each attack, and with all at once. It reports the
// latencies and asserts only that everybody is served correctly and within a generous time, and that memory is bounded:
// speed is not a matter of tests.
func TestServerHostile(t *testing.T) {
	noLeaks(t)
	s := startServer(t, WithLimits(Limits{Memory: 256 << 20}))
	addr := s.Addr().String()
	// Other processes take the processors now and then, which only ever makes a measurement worse: the best of several is
	// taken on either side.
	p99, windows := func() time.Duration {
		took, _ := honest(t, addr, strconv.FormatInt(time.Now().UnixNano(), 10), 60*time.Millisecond)
		return took
	}, 4
	calm := []time.Duration{p99(), p99(), p99()}[1:] // without attackers
	list := append(attacks(), attack{name: allTogether})
	stopIdle := func() {}
	for _, a := range list {
		without, with := slices.Clone(calm), []time.Duration(nil)
		if a.name != allTogether {
			without = append(without, p99())
		}
		before := s.Stats()
		stop := startAttack(t, a.name, addr)
		testkit.Until(t, a.name, func() bool {
			now := s.Stats()
			switch a.name {
			case "absurd lengths", "random bytes":
				return now.Cut >= before.Cut+10
			case "a reader that never reads":
				return now.Memory >= before.Memory+1<<20
			case allTogether:
				return now.Cut >= before.Cut+20 && now.Memory >= before.Memory+4<<20
			default:
				return now.Clients() >= before.Clients()+100
			}
		})
		if a.name == idle {
			waitForClients(t, s, idleWant)
		}
		for range windows {
			with = append(with, p99())
		}
		st := s.Stats()
		if a.name == idle {
			stopIdle = stop // they stay for what comes next, which is all together
		} else {
			stop()
			stopIdle()
			testkit.Until(t, "the attackers are gone", func() bool { return s.Stats().Clients() == 0 })
			calm = []time.Duration{p99(), p99()}
		}
		without = append(without, calm...)
		calmest, during := slices.Min(without), slices.Min(with)
		t.Logf("%-26s p99 of eight honest clients %8v without, %8v with (%.2f); %5d clients, %d cut so far, %d MB held",
			a.name, calmest.Round(time.Microsecond), during.Round(time.Microsecond), float64(during)/float64(calmest),
			st.Clients(), st.Cut, st.Memory>>20)
		if st.Memory > 256<<20+8<<20 {
			t.Errorf("%s: %d bytes are held", a.name, st.Memory)
		}
	}
}

// waitForClients waits until n clients are connected, or their number does not grow any more.
func waitForClients(t *testing.T, s *Server, n int) {
	t.Helper()
	last, since := -1, time.Now()
	for {
		have := s.Stats().Clients()
		if have >= n || have == last && time.Since(since) > 2*time.Second {
			return
		}
		if have != last {
			last, since = have, time.Now()
		}
		time.Sleep(10 * time.Millisecond)
	}
}
