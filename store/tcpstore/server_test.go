// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
)

// noLeaks fails the test when goroutines or descriptors are left at its end.
func noLeaks(t *testing.T) {
	t.Helper()
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil { // the runtime opens its own descriptors with the first socket
		_ = l.Close()
	}
	before := countFDs()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, ignore)
		deadline := time.Now().Add(5 * time.Second)
		for countFDs() > before && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if after := countFDs(); after > before {
			t.Errorf("%d descriptors were open, now %d", before, after)
		}
	})
}

func countFDs() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

func write(tb testing.TB, c net.Conn, b []byte) {
	tb.Helper()
	if _, err := c.Write(b); err != nil {
		tb.Fatal(err)
	}
}

func read(tb testing.TB, c net.Conn, n int) []byte {
	tb.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		tb.Fatal(err)
	}
	return b
}

// expectClosed waits for the server to close c.
func expectClosed(tb testing.TB, c net.Conn) {
	tb.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
		tb.Errorf("the connection is not closed: %v", err)
	}
}

func dialV(tb testing.TB, s *Server) net.Conn {
	tb.Helper()
	c := dialRaw(tb, s)
	write(tb, c, wire.AppendPing(wire.AppendValidate(nil), wire.V, 42))
	if n := binary.LittleEndian.Uint32(read(tb, c, 4)); n != 42 {
		tb.Fatalf("ping answered %d", n)
	}
	return c
}

func TestServerClose(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		noLeaks(t)
		s := startServer(t, opts...)
		for range 10 {
			c := dialV(t, s)
			write(t, c, wire.AppendKeys(nil, wire.V, wire.Wait, "never"))
			_ = dialRaw(t, s) // silent
		}
		testkit.Until(t, "ten waits of twenty clients", func() bool { st := s.Stats(); return st.Waiting == 10 && st.Clients() == 20 })
		c := dialV(t, s)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		expectClosed(t, c)
		if st := s.Stats(); st.Waiting != 10 || st.Clients() != 21 {
			t.Errorf("the last statistics: %+v", st)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
			t.Error("the port still answers")
		}
		again, err := Listen(s.Addr().String(), opts...)
		if err != nil {
			t.Fatalf("the port is not free: %v", err)
		}
		_ = again.Close()
	})
}

func TestServerShutdown(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		noLeaks(t)
		s := startServer(t, opts...)
		a, b := dialV(t, s), dialV(t, s)
		done := make(chan error)
		go func() { done <- s.Shutdown(context.Background()) }()
		testkit.Until(t, "the port is closed", func() bool {
			c, err := net.Dial("tcp", s.Addr().String())
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		})
		write(t, a, wire.AppendAdd(nil, wire.V, "n", 1)) // those who are there go on
		read(t, a, 8)
		_ = a.Close()
		select {
		case err := <-done:
			t.Fatalf("shut down with a client left: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		_ = b.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}

		s = startServer(t, opts...)
		c := dialV(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := s.Shutdown(ctx)
		who := "among them " + c.LocalAddr().String()
		if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), "1 connections") ||
			!strings.Contains(err.Error(), who) {
			t.Errorf("shut down by force: %v", err)
		}
		expectClosed(t, c)
	})
}

func TestServerStats(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, opts...)
		before := time.Now()
		v, legacy, silent := dialV(t, s), dialRaw(t, s), dialRaw(t, s)
		write(t, legacy, wire.AppendSet(nil, wire.Legacy, "/k", []byte("value")))
		write(t, v, wire.AppendKeys(nil, wire.V, wire.Wait, "/missing"))
		native := dialV(t, s)
		write(t, native, wire.AppendUpgrade(nil))
		testkit.Until(t, "all are seen", func() bool {
			st := s.Stats()
			return st.Waiting == 1 && st.Keys == 1 && st.Connections["native"] == 1 && st.Connections["silent"] == 1
		})
		write(t, native, wire.EndFrame(wire.AppendPlain(wire.BeginFrame(nil, 5), wire.Native, wire.Stats), 0, 0))
		size := binary.LittleEndian.Uint32(read(t, native, 4))
		body := read(t, native, int(size))
		var st Stats
		if body[0] != 5 || body[4] != 0 {
			t.Fatalf("% x", body[:5])
		}
		if err := json.Unmarshal(body[5:], &st); err != nil {
			t.Fatal(err)
		}
		if st.Connections["legacy"] != 1 || st.Connections["v"] != 1 || st.Connections["native"] != 1 || st.Clients() != 4 {
			t.Errorf("connections %v", st.Connections)
		}
		if st.Ops["set"] != 1 || st.Ops["wait"] != 1 || st.Keys != 1 || st.Bytes < 7 || st.Accepted != 4 || st.Addr != s.Addr().String() {
			t.Errorf("%+v", st)
		}
		if len(st.Waits) != 1 || st.Waits[0].Key != "/missing" || st.Waits[0].Waiter != v.LocalAddr().String() ||
			st.Waits[0].Since.Before(before.Add(-time.Second)) || st.Waits[0].Since.After(time.Now()) {
			t.Errorf("waits %+v", st.Waits)
		}
		_ = silent.Close()
		_ = v.Close()
		testkit.Until(t, "the wait is gone", func() bool { return s.Stats().Waiting == 0 && s.Stats().Clients() == 2 })
	})
}

// TestServerCork sends a request as PyTorch 1.13 does when its last piece is empty: the code byte at once, the rest later.
func TestServerCork(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, opts...)
		c, other := dialRaw(t, s), dialRaw(t, s)
		set := wire.AppendSet(nil, wire.Legacy, "/k", nil)
		write(t, c, set[:1])
		time.Sleep(50 * time.Millisecond)
		write(t, other, wire.AppendPlain(nil, wire.Legacy, wire.NumKeys))
		if n := read(t, other, 8)[0]; n != 0 {
			t.Errorf("%d keys before the request was whole", n)
		}
		write(t, c, append(set[1:], wire.AppendPlain(nil, wire.Legacy, wire.NumKeys)...))
		if n := read(t, c, 8)[0]; n != 1 {
			t.Errorf("%d keys", n)
		}
	})
}

func TestServerCutsWithAReason(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		for _, c := range []struct {
			name   string
			limits Limits
			bytes  []byte
			reason string
		}{
			{"key", Limits{}, append([]byte{4}, 255, 255, 255, 255, 255, 255, 255, 255), "number of keys"},
			{"value", Limits{Value: 10}, wire.AppendSet(nil, wire.Legacy, "/k", make([]byte, 11)), "value of 11 is over the limit of 10"},
			{"code", Limits{}, []byte{200}, "code 200"},
			{"magic", Limits{}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8}, "key of"},
			{"memory", Limits{Memory: 1000}, wire.AppendSet(nil, wire.Legacy, "/k", make([]byte, 2000)), "memory limit"},
			{
				"number",
				Limits{},
				wire.AppendAdd(wire.AppendSet(nil, wire.Legacy, "/k", []byte("text")), wire.Legacy, "/k", 1),
				"not a number",
			},
			{"validate", Limits{}, wire.AppendValidate(wire.AppendValidate(nil)), "second validate"},
		} {
			t.Run(c.name, func(t *testing.T) {
				var log testkit.Log
				s := startServer(t, append(opts, WithLimits(c.limits), WithLogger(log.Logger(slog.LevelInfo)))...)
				conn, other := dialRaw(t, s), dialRaw(t, s)
				write(t, conn, c.bytes)
				expectClosed(t, conn)
				testkit.Until(t, "the reason is in the log", func() bool {
					return log.Has(c.reason) && log.Has(conn.LocalAddr().String())
				})
				if s.Stats().Cut != 1 {
					t.Errorf("%d were cut", s.Stats().Cut)
				}
				write(t, other, wire.AppendPlain(nil, wire.Legacy, wire.NumKeys))
				read(t, other, 8)
			})
		}
	})
}

func TestServerConnLimit(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, append(opts, WithLimits(Limits{Conns: 2}))...)
		a, b := dialV(t, s), dialV(t, s)
		expectClosed(t, dialRaw(t, s))
		_ = a.Close()
		testkit.Until(t, "one has left", func() bool { return s.Stats().Clients() == 1 })
		dialV(t, s)
		_ = b
	})
}

// TestServerSlowReader: a large reply that is read in small pieces arrives as it is.
func TestServerSlowReader(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, opts...)
		value, get := bigValue(t, s)
		slow := dialV(t, s)
		write(t, slow, bytes.Repeat(get, 20))
		for i := range 20 {
			time.Sleep(1 * time.Millisecond)
			if got := read(t, slow, len(value)+8); !bytes.Equal(got[8:], value) {
				t.Fatalf("reply %d has changed", i)
			}
		}
	})
}

// TestServerStuckReader cuts a client that asks again and again and reads nothing at all.
func TestServerStuckReader(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, append(opts, WithLimits(Limits{Stall: 2 * time.Second}))...)
		_, get := bigValue(t, s)
		stuck, other := dialV(t, s), dialV(t, s)
		go func() {
			for {
				if _, err := stuck.Write(get); err != nil {
					return
				}
			}
		}()
		testkit.Until(t, "the one who does not read is cut", func() bool { return s.Stats().Cut == 1 })
		write(t, other, wire.AppendPing(nil, wire.V, 1))
		read(t, other, 4)
		if m := s.Stats().Memory; m > 20<<20 {
			t.Errorf("%d bytes are held", m)
		}
	})
}

// bigValue stores a megabyte and returns it, with a request for it.
func bigValue(t *testing.T, s *Server) (value, get []byte) {
	t.Helper()
	value = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	c := dialV(t, s)
	write(t, c, wire.AppendSet(nil, wire.V, "/big", value))
	get = wire.AppendKey(nil, wire.V, wire.Get, "/big")
	write(t, c, get)
	if got := read(t, c, len(value)+8); !bytes.Equal(got[8:], value) {
		t.Error("the value has changed")
	}
	return value, get
}

func TestServerHook(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		var mu sync.Mutex
		var seen []string
		hook := func(e observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%s %s %d", e.Kind, e.Key, e.Bytes))
		}
		s := startServer(t, append(opts, WithHook(hook))...)
		c := dialV(t, s)
		write(t, c, wire.AppendKeys(wire.AppendSet(nil, wire.V, "/k", []byte("v")), wire.V, wire.Check, "/k"))
		read(t, c, 1)
		write(t, c, wire.AppendPlain(nil, wire.V, wire.NumKeys)) // which has neither a key nor a value
		read(t, c, 8)
		write(t, c, wire.AppendKey(nil, wire.V, wire.DeleteKey, "/other"))
		read(t, c, 8)
		_ = c.Close()
		want := "store.connect  0,store.validate  0,store.ping  0,store.set /k 1,store.check /k 0," +
			"store." + wire.NumKeys.String() + "  0,store." + wire.DeleteKey.String() + " /other 0,store.disconnect  0"
		testkit.Until(t, want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(seen, ",") == want
		})
	})
}

func TestListenAddresses(t *testing.T) {
	noLeaks(t)
	s, err := Listen(":0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Port() == 0 {
		t.Error("no port")
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		if host == "::1" {
			l, failed := net.Listen("tcp", "[::1]:0")
			if failed != nil {
				t.Logf("no IPv6 here: %v", failed)
				continue
			}
			_ = l.Close()
		}
		c, failed := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(s.Port())))
		if failed != nil {
			t.Errorf("%s: %v", host, failed)
			continue
		}
		write(t, c, wire.AppendPlain(nil, wire.Legacy, wire.NumKeys))
		read(t, c, 8)
		_ = c.Close()
	}
	_, err = Listen(fmt.Sprint("127.0.0.1:", s.Port()))
	if !errors.Is(err, cohort.AlreadyExists) ||
		!strings.Contains(err.Error(), "The server socket has failed to listen on any local network address") ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port in use: %v", err)
	}
	for _, bad := range []string{"no port", "127.0.0.1:99999", "127.0.0.1:80x"} {
		if _, err = Listen(bad); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Serve(nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("no listener: %v", err)
	}
}

func TestShared(t *testing.T) {
	noLeaks(t)
	var shared Shared
	a, err := shared.Acquire("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := a.Addr().String()
	b, err := shared.Acquire(addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := shared.Acquire("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if a.Server != b.Server || a.Server == c.Server {
		t.Error("a named port is shared and port 0 is not")
	}
	_ = a.Close()
	_ = a.Close()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatalf("closed while in use: %v", err)
	}
	_ = conn.Close()
	if err = b.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err = net.Dial("tcp", addr); err == nil {
		t.Error("still open")
	}
	var another Shared
	if _, err = another.Acquire(c.Addr().String()); !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("two values share nothing: %v", err)
	}
	_ = c.Close()
	if _, err = shared.Acquire("nonsense"); err == nil {
		t.Error("nonsense was accepted")
	}
	all, err := shared.Acquire(":0")
	if err != nil {
		t.Fatal(err)
	}
	local, err := shared.Acquire(fmt.Sprint("127.0.0.1:", all.Port()))
	if err != nil || local.Server != all.Server {
		t.Errorf("a server on all addresses is shared by its port: %v", err)
	}
	_ = local.Close()
	_ = all.Close()
}

// pipeListener is a listener in memory.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "pipe"} }

func TestServeInMemory(t *testing.T) {
	noLeaks(t)
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	s, err := Serve(l)
	if err != nil {
		t.Fatal(err)
	}
	if s.Port() != 0 {
		t.Errorf("port %d", s.Port())
	}
	ours, theirs := net.Pipe()
	l.conns <- theirs
	write(t, ours, wire.AppendAdd(nil, wire.Legacy, "/n", 3))
	if n := read(t, ours, 8)[0]; n != 3 {
		t.Errorf("%d", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = ours.Close()
}
