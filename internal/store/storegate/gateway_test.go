// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(tb testing.TB) *tcpstore.Server {
	tb.Helper()
	s, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func proxy(tb testing.TB, s *tcpstore.Server) *faultnet.Proxy {
	tb.Helper()
	p, err := faultnet.ListenTCP(s.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

func gateway(tb testing.TB, upstreams ...string) *storegate.Gateway {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	g, err := storegate.Serve(l, storegate.Options{Upstreams: upstreams})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = g.Close() })
	return g
}

func dial(tb testing.TB, addr net.Addr, opts ...tcpstore.ClientOption) *tcpstore.Client {
	tb.Helper()
	c, err := tcpstore.Dial(tb.Context(), addr.String(), opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// dialects are those that a gateway's clients may speak. Clients of V and legacy are served as PyTorch's are.
var dialects = []tcpstore.Dialect{tcpstore.DialectNative, tcpstore.DialectV, tcpstore.DialectLegacy}

// TestCutsWhileClientsWork: the connections of gateways to the store are cut again and again; no operation of a client fails, and each
// counts once.
func TestCutsWhileClientsWork(t *testing.T) {
	t.Parallel()
	s := serve(t)
	proxies, gates := [2]*faultnet.Proxy{}, [2]*storegate.Gateway{}
	for i := range proxies {
		proxies[i] = proxy(t, s)
		gates[i] = gateway(t, proxies[i].Addr())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const clients, adds = 9, 150
	var work sync.WaitGroup
	var done atomic.Int64
	cut := func() { // after some progress, so that a slow machine gets on too
		if n := done.Add(1); n%25 == 0 {
			proxies[n/25%2].Cut()
		}
	}
	for i := range clients {
		c := dial(t, gates[i%2].Addr(), tcpstore.WithDialect(dialects[i%3]), tcpstore.WithTimeout(time.Minute))
		work.Go(func() {
			for n := range adds {
				if _, err := c.Add(ctx, "count", 1); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				cut()
				key := strconv.Itoa(i) + "/" + strconv.Itoa(n)
				if err := c.Set(ctx, key, []byte(key)); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
			if got, err := c.Get(ctx, strconv.Itoa((i+1)%clients)+"/"+strconv.Itoa(adds-1)); err != nil || len(got) == 0 { // which waits
				t.Errorf("client %d: %q, %v", i, got, err)
			}
		})
	}
	work.Wait()
	c := dial(t, s.Addr())
	if n, err := c.Add(ctx, "count", 0); n != clients*adds || err != nil {
		t.Errorf("%d, %v, want %d", n, err, clients*adds)
	}
	if n, err := c.NumKeys(ctx); n != clients*adds+1 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if state := gates[0].State(); state.Times < 3 || state.Repeated == 0 {
		t.Errorf("nothing was cut: %+v", state)
	}
}

// TestPauseAfterACut: a client of the gateway hardly notices that the connection to the store was cut.
func TestPauseAfterACut(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := proxy(t, s)
	c := dial(t, gateway(t, p.Addr()).Addr(), tcpstore.WithDialect(tcpstore.DialectV))
	var longest time.Duration
	for range 20 {
		p.Cut()
		start := time.Now()
		if _, err := c.Add(t.Context(), "n", 1); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(start))
	}
	t.Logf("the longest pause was %v", longest)
	if longest > 1500*time.Millisecond { // five times what is promised
		t.Error("that is too long")
	}
}

// TestReplacedStore: where the store is another one, clients of the one before learn it; a Go client can accept it.
func TestReplacedStore(t *testing.T) {
	t.Parallel()
	first, second := serve(t), serve(t)
	g := gateway(t, first.Addr().String(), second.Addr().String())
	native, torch := dial(t, g.Addr()), dial(t, g.Addr(), tcpstore.WithDialect(tcpstore.DialectV))
	for _, c := range []*tcpstore.Client{native, torch} {
		if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	_ = first.Close()
	if _, err := native.Check(t.Context(), "k"); err == nil {
		t.Error("a client of the store that is gone goes on with another one")
	}
	if _, _, err := native.Hello(t.Context()); err != nil {
		t.Error(err)
	}
	if there, err := native.Check(t.Context(), "k"); there || err != nil {
		t.Errorf("%v, %v", there, err)
	}
}

// TestStoreWithoutSessions: a gateway has no sessions for its clients. Another gateway refuses it with one sentence, also towards its own
// clients. A client without that one works with it as ever.
func TestStoreWithoutSessions(t *testing.T) {
	t.Parallel()
	behind, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = behind.Close() }()
	s := gateway(t, behind.Addr().String())
	g := gateway(t, s.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const sentence = "it has no sessions: it is a gateway itself"
	if err = g.Reached(ctx); !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), sentence) {
		t.Errorf("the gateway says %v", err)
	}
	c, err := tcpstore.Dial(ctx, g.Addr().String())
	if err == nil {
		_, err = c.Add(ctx, "n", 1)
		_ = c.Close()
	}
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), sentence) {
		t.Errorf("its clients get %v", err)
	}
	if n, err := dial(t, s.Addr()).Add(ctx, "n", 1); n != 1 || err != nil {
		t.Errorf("without the gateway: %d, %v", n, err)
	}
}
