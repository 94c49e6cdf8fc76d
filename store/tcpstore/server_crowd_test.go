// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestServerCrowd: PyTorch clients ask for a large value at once, more of them than the server may hold copies for. All
// get it, as soon as others have read theirs, and none is cut.
func TestServerCrowd(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, append(opts, WithLimits(Limits{Memory: 48 << 20, Stall: time.Minute}))...)
		value := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16) // more than sockets take by themselves
		writer := dialV(t, s)
		write(t, writer, wire.AppendSet(nil, wire.V, "/model", value))
		ping := func() {
			write(t, writer, wire.AppendPing(nil, wire.V, 1))
			read(t, writer, 4)
		}
		ping()
		get := wire.AppendKey(nil, wire.V, wire.Get, "/model")
		crowd := make([]net.Conn, 5)
		for i := range crowd {
			crowd[i] = dialV(t, s)
			write(t, crowd[i], get)
		}
		testkit.Until(t, "the buffers are full", func() (full bool) {
			s.serving.Do(func(c *storeserve.Core) { full = c.Machine.Queued() })
			return full
		})
		ping() // others are served all the while
		var readers sync.WaitGroup
		for i, c := range crowd {
			readers.Go(func() {
				got := make([]byte, 8+len(value))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got[8:], value) {
					t.Errorf("client %d: the value is not whole: %v", i, err)
				}
			})
		}
		readers.Wait()
		for _, c := range crowd { // and they go on
			write(t, c, wire.AppendPing(nil, wire.V, 1))
			read(t, c, 4)
		}
		// clients may know before the server does
		testkit.Until(t, "the buffers are given back", func() bool { return s.Stats().Memory <= 16<<20 })
		if cut := s.Stats().Cut; cut != 0 {
			t.Errorf("%d were cut", cut)
		}
	})
}

// TestServerCrowdEnds: who waits for room behind clients that never read is cut in the end, as they are.
func TestServerCrowdEnds(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		s := startServer(t, append(opts, WithLimits(Limits{Memory: 48 << 20, Stall: 500 * time.Millisecond}))...)
		writer := dialV(t, s)
		write(t, writer, wire.AppendSet(nil, wire.V, "/model", make([]byte, 8<<20)))
		write(t, writer, wire.AppendPing(nil, wire.V, 1))
		read(t, writer, 4)
		for range 4 {
			write(t, dialV(t, s), wire.AppendKey(nil, wire.V, wire.Get, "/model"))
		}
		testkit.Until(t, "all of them are cut", func() bool { return s.Stats().Clients() == 1 })
		write(t, writer, wire.AppendPing(nil, wire.V, 1))
		read(t, writer, 4)
	})
}

// TestServerWakesMany: far more clients than are answered in one turn wait for a key, and nothing else happens after it has
// come.
func TestServerWakesMany(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		noLeaks(t)
		s := startServer(t, opts...)
		crowd := make([]net.Conn, 500)
		for i := range crowd {
			crowd[i] = dialV(t, s)
			write(t, crowd[i], wire.AppendKeys(nil, wire.V, wire.Wait, "/k"))
		}
		testkit.Until(t, "all wait", func() bool { return s.Stats().Waiting == len(crowd) })
		write(t, crowd[0], wire.AppendPlain(nil, wire.V, wire.CancelWait)) // it does not wait any more, and sets the key
		read(t, crowd[0], 1)
		write(t, crowd[0], wire.AppendSet(nil, wire.V, "/k", nil))
		for _, c := range crowd[1:] {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if got := read(t, c, 1); got[0] != wire.StopWaiting {
				t.Fatalf("a wait was answered with %d", got[0])
			}
		}
	})
}

// TestServerListsMany: more keys than are listed in one turn, to clients of both kinds at once.
func TestServerListsMany(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		noLeaks(t)
		s := startServer(t, opts...)
		want := make([]string, 20_000)
		for i := range want {
			want[i] = fmt.Sprint("key", i)
		}
		native, v := dialTest(t, s), dialTest(t, s, WithDialect(DialectV))
		if err := native.MultiSet(t.Context(), want, make([][]byte, len(want))); err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		var all sync.WaitGroup
		for range 4 {
			for _, c := range []*Client{native, v} {
				all.Go(func() {
					got, err := c.ListKeys(t.Context())
					if slices.Sort(got); err != nil || !slices.Equal(got, want) {
						t.Errorf("%v: %d keys, want %d: %v", c, len(got), len(want), err)
					}
				})
			}
		}
		all.Wait()
	})
}
