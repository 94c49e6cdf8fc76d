// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testServer is a server on a free port that ends with its test.
type testServer struct {
	*Server
	addr string
	once sync.Once
}

// startServer starts a server with large limits, one loop, and what edits say.
func startServer(tb testing.TB, edits ...func(*Config)) *testServer {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	config := Config{
		Machine: storecore.Config{Limits: storecore.Limits{Limits: wire.DefaultLimits, Memory: 4 << 30, Output: 256 << 20, Waits: 1 << 14}},
		Conns:   1 << 16, Stall: time.Minute, Loops: 1, Logger: slog.New(slog.DiscardHandler),
	}
	for _, edit := range edits {
		edit(&config)
	}
	s, err := Start(l, config)
	if err != nil {
		tb.Fatal(err)
	}
	served := &testServer{Server: s, addr: l.Addr().String()}
	tb.Cleanup(served.close)
	return served
}

func (s *testServer) close() { s.once.Do(s.End) }

func (s *testServer) clients() (n int) {
	s.Do(func(c *Core) { n = c.Machine.Conns() })
	return n
}

func (s *testServer) snapshot() (is storecore.Snapshot) {
	s.Do(func(c *Core) { is = c.Machine.Snapshot(0) })
	return is
}

func dialRaw(tb testing.TB, s *testServer) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// dialV connects as a client of PyTorch 2.x that was answered once.
func dialV(tb testing.TB, s *testServer) net.Conn {
	tb.Helper()
	c := dialRaw(tb, s)
	write(tb, c, wire.AppendPing(wire.AppendValidate(nil), wire.V, 42))
	if n := binary.LittleEndian.Uint32(read(tb, c, 4)); n != 42 {
		tb.Fatalf("ping answered %d", n)
	}
	return c
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
		testkit.Until(t, "descriptors are closed", func() bool { return countFDs() <= before })
	})
}

func countFDs() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}
