// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package store_test has real PyTorch, 1.13 and 2.6, as clients of cohort's TCP store and as servers of cohort's client.
package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/storetest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// masterScript makes PyTorch stores on request. Commands are lines: "new", which answers with the port of a fresh master;
// "eval EXPRESSION" over the newest master s, which answers with its repr.
const masterScript = `
import sys, datetime, torch.distributed as dist
def master(**kw):
    for extra in ({"use_libuv": False}, {}):
        try:
            return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, **kw, **extra)
        except TypeError:
            pass
kept = []
print("ready", flush=True)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "new":
        s = master()
        kept.append(s)
        print(s.port, flush=True)
    else:
        print(repr(eval(rest)), flush=True)
`

// masters is a Python process that has PyTorch stores.
type masters struct {
	mu   sync.Mutex
	proc *torchtest.Proc
}

func startMasters(t *testing.T, torch *torchtest.Torch) *masters {
	t.Helper()
	m := &masters{proc: torch.Start(t, torchtest.Script{Name: "masters.py", Source: masterScript})}
	m.proc.Expect(t, "ready")
	return m
}

func (m *masters) ask(t *testing.T, line string) string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proc.Send(t, line)
	return m.proc.Line(t)
}

// fresh returns the address of a new store.
func (m *masters) fresh(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", m.ask(t, "new"))
}

func dial(t *testing.T, addr string, opts ...tcpstore.ClientOption) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := tcpstore.Dial(ctx, addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dialectOf(torch *torchtest.Torch) tcpstore.Dialect {
	if torch.Name == "1.13" {
		return tcpstore.DialectLegacy
	}
	return tcpstore.DialectV
}

// TestClientSuiteOnPyTorch runs the whole conformance suite with our client on PyTorch's servers.
func TestClientSuiteOnPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		open := func(t *testing.T) store.Store {
			t.Helper()
			c := dial(t, m.fresh(t))
			if c.Dialect() != dialectOf(torch) {
				t.Fatalf("found dialect %v", c.Dialect())
			}
			return c
		}
		options := []storetest.Option{
			storetest.WithEmptyNotANumber(),
			storetest.WithHandles(func(t *testing.T, n int) []store.Store {
				t.Helper()
				addr := m.fresh(t)
				all := make([]store.Store, n)
				for i := range all {
					all[i] = dial(t, addr)
				}
				return all
			}),
		}
		t.Run("plain", func(t *testing.T) { storetest.Run(t, open, options...) })
		t.Run("prefix", func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) store.Store {
				t.Helper()
				return store.Prefix("a", store.Prefix("b", open(t)))
			}, storetest.WithEmptyNotANumber())
		})
	})
}

// TestClientSharesKeysWithPython checks the bytes that Python sees.
func TestClientSharesKeysWithPython(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t))
		ctx := t.Context()
		if err := c.Set(ctx, "from go", []byte("\x00\xff")); err != nil {
			t.Fatal(err)
		}
		if got := m.ask(t, `eval s.get("from go")`); got != `b'\x00\xff'` {
			t.Fatalf("python reads %s", got)
		}
		m.ask(t, `eval s.set("from python", "text")`)
		if got, err := c.Get(ctx, "from python"); string(got) != "text" || err != nil {
			t.Fatalf("go reads %q, %v", got, err)
		}
		m.ask(t, `eval s.add("n", 5)`)
		if n, err := c.Add(ctx, "n", -7); n != -2 || err != nil {
			t.Fatalf("add: %d, %v", n, err)
		}
		if got := m.ask(t, `eval s.num_keys()`); got != "3" {
			t.Fatalf("python counts %s keys", got)
		}
	})
}

// TestClientJoinsAWorld joins a master that waits for its workers, as PyTorch's own constructor does.
func TestClientJoinsAWorld(t *testing.T) {
	const script = `
import datetime, socket, sys, torch.distributed as dist
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
print(port, flush=True)
kw = {"timeout": datetime.timedelta(seconds=60)}
try:
    s = dist.TCPStore("127.0.0.1", port, 3, True, use_libuv=False, **kw)
except TypeError:
    s = dist.TCPStore("127.0.0.1", port, 3, True, **kw)
print("joined", s.num_keys(), flush=True)
print(s.get("hello"), flush=True)
sys.stdin.readline()
`
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		proc := torch.Start(t, torchtest.Script{Source: script})
		addr := net.JoinHostPort("127.0.0.1", proc.Line(t))
		var all []*tcpstore.Client
		for i := range 2 {
			c := dial(t, addr) // retried until Python listens
			if _, err := c.Workers(t.Context()); err != nil {
				t.Fatal(err)
			}
			n, err := c.JoinWorker(t.Context())
			if err != nil || n < int64(i)+1 || n > 3 {
				t.Fatalf("join: %d, %v", n, err)
			}
			all = append(all, c)
		}
		if got := proc.Line(t); got != "joined 1" {
			t.Fatalf("master says %q", got)
		}
		if n, err := all[0].Workers(t.Context()); n != 3 || err != nil {
			t.Fatalf("workers: %d, %v", n, err)
		}
		if err := all[1].Set(t.Context(), "hello", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if got := proc.Line(t); got != "b'x'" {
			t.Fatalf("master reads %q", got)
		}
	})
}

// TestClientIsUsableAfterTimeouts lets waits time out, then has the keys come, and checks that no answer gets mixed up.
func TestClientIsUsableAfterTimeouts(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t), tcpstore.WithWaitConns(2))
		for i := range 20 {
			key := "late" + strconv.Itoa(i)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Millisecond+time.Millisecond)
			err := c.Wait(ctx, key)
			cancel()
			if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("wait: %v", err)
			}
			if err := c.Set(t.Context(), key, []byte("v")); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Add(t.Context(), "n", 7); n != 7*int64(i+1) || err != nil {
				t.Fatalf("add after a timeout: %d, %v", n, err)
			}
			if got, err := c.Get(t.Context(), key); string(got) != "v" || err != nil {
				t.Fatalf("get after a timeout: %q, %v", got, err)
			}
		}
		// Timeouts that race with the key.
		other := dial(t, c.Addr())
		for i := range 100 {
			key := "race" + strconv.Itoa(i)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			set := make(chan error, 1)
			go func() {
				time.Sleep(2*time.Millisecond - time.Duration(i%10)*20*time.Microsecond)
				set <- other.Set(t.Context(), key, []byte(key))
			}()
			if _, err := c.Get(ctx, key); err != nil && !errors.Is(err, store.ErrTimeout) {
				t.Fatalf("get: %v", err)
			}
			cancel()
			if err := <-set; err != nil {
				t.Fatal(err)
			}
			if got, err := c.Get(t.Context(), key); string(got) != key || err != nil {
				t.Fatalf("get after the race: %q, %v", got, err)
			}
		}
	})
}

// TestClientWaitsDoNotBlock has more waits than connections for them; all other calls go on.
func TestClientWaitsDoNotBlock(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t), tcpstore.WithWaitConns(2))
		const waits = 12
		errs := make(chan error, waits)
		for i := range waits {
			go func() {
				_, err := c.Get(t.Context(), "w"+strconv.Itoa(i))
				errs <- err
			}()
		}
		for i := range waits {
			if _, err := c.Add(t.Context(), "n", 1); err != nil {
				t.Fatal(err)
			}
			if err := c.Set(t.Context(), "w"+strconv.Itoa(waits-1-i), []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		for range waits {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestClientManyConnections counts with 50 clients at once.
func TestClientManyConnections(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		addr := m.fresh(t)
		const clients, adds = 50, 20
		var group sync.WaitGroup
		for range clients {
			c := dial(t, addr)
			group.Go(func() {
				for range adds {
					if _, err := c.Add(t.Context(), "n", 1); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		c := dial(t, addr)
		if n, err := c.Add(t.Context(), "n", 0); n != clients*adds || err != nil {
			t.Fatalf("sum %d, %v", n, err)
		}
	})
}

// TestClientSeesTheServerDie kills the master while calls wait: each fails soon and names the server.
func TestClientSeesTheServerDie(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		c := dial(t, m.fresh(t), tcpstore.WithWaitConns(3))
		const waits = 6
		errs := make(chan error, waits)
		for i := range waits {
			go func() { errs <- c.Wait(t.Context(), "never"+strconv.Itoa(i)) }()
		}
		time.Sleep(100 * time.Millisecond) // let the waits reach the server
		m.proc.Signal(syscall.SIGKILL)
		killed := time.Now()
		for range waits {
			select {
			case err := <-errs:
				if code := cohort.CodeOf(err); (code != cohort.PeerLost && code != cohort.Unavailable) ||
					!strings.Contains(err.Error(), c.Addr()) ||
					!strings.Contains(err.Error(), "wait") {
					t.Fatalf("error of a pending wait: %v", err)
				}
			case <-time.After(15 * time.Second):
				t.Fatalf("a wait goes on %v after the server's death", time.Since(killed))
			}
		}
		t.Logf("all waits ended %v after the kill", time.Since(killed))
		for name, call := range map[string]func() error{
			"set": func() error { return c.Set(t.Context(), "k", nil) },
			"get": func() error { _, err := c.Get(t.Context(), "k"); return err },
			"add": func() error { _, err := c.Add(t.Context(), "k", 1); return err },
		} {
			start := time.Now()
			err := call()
			if code := cohort.CodeOf(err); code != cohort.PeerLost && code != cohort.Unavailable {
				t.Fatalf("%s after the death: %v", name, err)
			}
			if d := time.Since(start); d > 15*time.Second {
				t.Fatalf("%s took %v to fail", name, d)
			}
		}
	})
}

// TestClientDialFailures: no server, and forced dialects that the server does not speak.
func TestClientDialFailures(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		m := startMasters(t, torch)
		addr := m.fresh(t)
		wrong := tcpstore.DialectV
		if torch.Name != "1.13" {
			wrong = tcpstore.DialectLegacy
		}
		_, err := tcpstore.Dial(t.Context(), addr, tcpstore.WithDialect(wrong), tcpstore.WithTimeout(300*time.Millisecond))
		want := fmt.Sprintf("while trying to connect to (127.0.0.1, %s)", addr[strings.LastIndexByte(addr, ':')+1:])
		if !errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), "The client socket has timed out after") ||
			!strings.Contains(err.Error(), want) {
			t.Fatalf("dial with the wrong dialect: %v", err)
		}
		if _, err := tcpstore.Dial(t.Context(), addr, tcpstore.WithDialect(tcpstore.DialectNative),
			tcpstore.WithTimeout(300*time.Millisecond)); err == nil {
			t.Fatal("the native dialect was accepted by PyTorch")
		}
		c := dial(t, addr) // and the server has survived all that
		if err := c.Set(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
	})
}
