// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// soon is the bound for what must happen within a second, with a margin of five.
const soon = 5 * time.Second

// eachDialect runs test with a client per dialect, through a proxy.
func eachDialect(t *testing.T, test func(t *testing.T, c *tcpstore.Client, p *faultnet.Proxy, s *tcpstore.Server),
	opts ...tcpstore.ClientOption,
) {
	t.Helper()
	for _, dialect := range dialects {
		t.Run(dialect.String(), func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			p, err := faultnet.ListenTCP(s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.Close() })
			test(t, connect(t, p.Addr(), append([]tcpstore.ClientOption{tcpstore.WithDialect(dialect)}, opts...)...), p, s)
		})
	}
}

// startWaits has n goroutines wait for keys that never come, and returns when as many as seen have come to the server:
// all, unless the client keeps some back.
func startWaits(t *testing.T, c *tcpstore.Client, s *tcpstore.Server, n, seen int) <-chan error {
	t.Helper()
	errs := make(chan error, n)
	until := func(reached func(waiting int) bool) {
		for deadline := time.Now().Add(4 * soon); !reached(s.Stats().Waiting); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d waits are open, want %d", s.Stats().Waiting, seen)
			}
		}
	}
	until(func(waiting int) bool { return waiting == 0 }) // those of a connection that was cut are gone
	for i := range n {
		go func() {
			if i%2 == 0 {
				errs <- c.Wait(context.Background(), "never"+strconv.Itoa(i))
			} else {
				_, err := c.Get(context.Background(), "never"+strconv.Itoa(i))
				errs <- err
			}
		}()
	}
	until(func(waiting int) bool { return waiting >= seen })
	return errs
}

func endSoon(t *testing.T, errs <-chan error, n int, ok func(error) bool) {
	t.Helper()
	timeout := time.After(soon)
	for range n {
		select {
		case err := <-errs:
			if !ok(err) {
				t.Fatalf("a wait ended with %v", err)
			}
		case <-timeout:
			t.Fatal("a wait did not end")
		}
	}
}

func isGone(err error) bool {
	return errors.Is(err, cohort.PeerLost) || errors.Is(err, cohort.Unavailable)
}

func TestClientCloseEndsWaits(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, _ *faultnet.Proxy, s *tcpstore.Server) {
		t.Helper()
		errs := startWaits(t, c, s, 12, 3)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		endSoon(t, errs, 12, func(err error) bool { return errors.Is(err, store.ErrClosed) })
		if err := c.Close(); err != nil {
			t.Fatalf("second close: %v", err)
		}
		if err := c.Set(t.Context(), "k", nil); !errors.Is(err, store.ErrClosed) {
			t.Fatalf("set after close: %v", err)
		}
		if _, err := c.QueueLen(t.Context(), "k"); !errors.Is(err, store.ErrClosed) {
			t.Fatalf("queue length after close: %v", err)
		}
		if _, err := c.ListKeys(t.Context()); !errors.Is(err, store.ErrClosed) {
			t.Fatalf("list keys after close: %v", err)
		}
	}, tcpstore.WithWaitConns(3))
}

func TestClientFailsAtOnceWhenTheServerDies(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, p *faultnet.Proxy, s *tcpstore.Server) {
		t.Helper()
		errs := startWaits(t, c, s, 8, 3)
		_ = s.Close()
		p.Refuse(true)
		p.Cut()
		endSoon(t, errs, 8, func(err error) bool {
			return isGone(err) && strings.Contains(err.Error(), p.Addr()) && strings.Contains(err.Error(), "never")
		})
		for range 5 {
			start := time.Now()
			if err := c.Set(t.Context(), "k", nil); !isGone(err) || !strings.Contains(err.Error(), p.Addr()) ||
				!strings.Contains(err.Error(), `set "k"`) {
				t.Fatalf("set: %v", err)
			}
			if took := time.Since(start); took > soon {
				t.Fatalf("a set took %v to fail", took)
			}
		}
	}, tcpstore.WithWaitConns(3))
}

func TestClientGoesOnAfterACut(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, p *faultnet.Proxy, s *tcpstore.Server) {
		t.Helper()
		for range 3 {
			errs := startWaits(t, c, s, 4, 4)
			p.Cut()
			if c.Dialect() == tcpstore.DialectNative { // they go on over the next connection
				for i := range 4 {
					if err := c.Set(t.Context(), "never"+strconv.Itoa(i), nil); err != nil {
						t.Fatal(err)
					}
				}
				endSoon(t, errs, 4, func(err error) bool { return err == nil })
				for i := range 4 {
					if _, err := c.Delete(t.Context(), "never"+strconv.Itoa(i)); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			endSoon(t, errs, 4, isGone)
			// Which call notices the cut depends on the dialect; after one failure all is new.
			_ = c.Set(t.Context(), "k", []byte("first"))
			if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
				t.Fatalf("set after the cut: %v", err)
			}
			if got, err := c.Get(t.Context(), "k"); string(got) != "v" || err != nil {
				t.Fatalf("get after the cut: %q, %v", got, err)
			}
		}
	})
}

// TestClientOnAHalfOpenConnection: the server seems to be there and says nothing. Contexts end the calls.
func TestClientOnAHalfOpenConnection(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, p *faultnet.Proxy, _ *tcpstore.Server) {
		t.Helper()
		p.SetDown(faultnet.Fault{Swallow: true})
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error { return c.Set(ctx, "k", []byte("v")) },
			func(ctx context.Context) error { _, err := c.Get(ctx, "k"); return err },
			func(ctx context.Context) error { _, err := c.Check(ctx, "k"); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			start := time.Now()
			err := call(ctx)
			cancel()
			if !errors.Is(err, store.ErrTimeout) || time.Since(start) > soon {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
		}
		p.SetDown(faultnet.Fault{})
		p.Cut()
		_ = c.Set(t.Context(), "k", nil)
		if err := c.Set(t.Context(), "k", nil); err != nil {
			t.Fatalf("set after the fault: %v", err)
		}
	})
}

// TestClientOnGarbage: answers that make no sense are errors, never values, and the client recovers.
func TestClientOnGarbage(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, p *faultnet.Proxy, _ *tcpstore.Server) {
		t.Helper()
		if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		if c.Dialect() != tcpstore.DialectNative {
			return // replies of PyTorch's dialects cannot be told from garbage of the right length
		}
		p.SetDown(faultnet.Fault{Garble: true})
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		if v, err := c.Get(ctx, "k"); err == nil || errors.Is(err, store.ErrTimeout) {
			t.Fatalf("%q, %v", v, err)
		}
		p.SetDown(faultnet.Fault{})
		if v, err := c.Get(ctx, "k"); string(v) != "v" || err != nil {
			t.Fatalf("after the fault: %q, %v", v, err)
		}
	})
}

func TestClientOnASlowNetwork(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, p *faultnet.Proxy, _ *tcpstore.Server) {
		t.Helper()
		p.SetDown(faultnet.Fault{Delay: 5 * time.Millisecond})
		p.SetUp(faultnet.Fault{BytesPerSecond: 1 << 20})
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				key := "k" + strconv.Itoa(i)
				value := strings.Repeat(key, 1000)
				if err := c.Set(t.Context(), key, []byte(value)); err != nil {
					t.Error(err)
				}
				if got, err := c.Get(t.Context(), key); string(got) != value || err != nil {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			})
		}
		group.Wait()
	})
}

func TestClientChecksLimitsBeforeSending(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, _ *faultnet.Proxy, s *tcpstore.Server) {
		t.Helper()
		long := strings.Repeat("k", 8<<10)
		for name, call := range map[string]func() error{
			"key":   func() error { return c.Set(t.Context(), long, nil) },
			"value": func() error { return c.Set(t.Context(), "k", make([]byte, 8<<20+1)) },
			"keys":  func() error { return c.Wait(t.Context(), make([]string, 128<<10+1)...) },
			"list":  func() error { _, err := c.Check(t.Context(), "a", long); return err },
			"cas":   func() error { _, err := c.CompareAndSet(t.Context(), "k", make([]byte, 9<<20), nil); return err },
		} {
			if err := call(); !errors.Is(err, store.ErrTooLarge) || len(err.Error()) > 600 {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.Set(t.Context(), long[1:], make([]byte, 8<<20)); err != nil {
			t.Errorf("at the limit: %v", err)
		}
		if n := s.Stats().Keys; n != 1 {
			t.Errorf("the server has %d keys", n)
		}
	})
}

func TestClientTellsWhatItDoes(t *testing.T) {
	addr := serve(t).Addr().String()
	var mu sync.Mutex
	var events []observe.Event
	c := connect(t, addr, tcpstore.WithHook(func(e observe.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}))
	_ = c.Set(t.Context(), "k", []byte("value"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _ = c.Get(ctx, "never")
	mu.Lock()
	defer mu.Unlock()
	if len(events) != 5 {
		t.Fatalf("%d events: %+v", len(events), events)
	}
	for i, want := range []struct {
		kind  observe.Kind
		phase observe.Phase
		key   string
	}{
		{"store.dial", observe.Point, ""},
		{"store.set", observe.Begin, "k"},
		{"store.set", observe.End, "k"},
		{"store.get", observe.Begin, "never"},
		{"store.get", observe.End, "never"},
	} {
		e := events[i]
		if e.Kind != want.kind || e.Phase != want.phase || e.Key != want.key || e.Peer != addr || e.Rank != cohort.NoRank {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if events[2].Bytes != 5 || events[2].Dur <= 0 || events[2].Err != nil || !errors.Is(events[4].Err, store.ErrTimeout) {
		t.Errorf("events: %+v", events)
	}
}

func TestClientWorkerCount(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, c *tcpstore.Client, _ *faultnet.Proxy, _ *tcpstore.Server) {
		t.Helper()
		if n, err := c.Workers(t.Context()); n != 0 || err != nil {
			t.Fatalf("workers: %d, %v", n, err)
		}
		for i := range 3 {
			if n, err := c.JoinWorker(t.Context()); n != int64(i+1) || err != nil {
				t.Fatalf("join: %d, %v", n, err)
			}
		}
		if n, err := c.Workers(t.Context()); n != 3 || err != nil {
			t.Fatalf("workers: %d, %v", n, err)
		}
		if n, err := c.NumKeys(t.Context()); n != 1 || err != nil { // the counter is a key, as in PyTorch
			t.Fatalf("%d keys, %v", n, err)
		}
		if there, err := c.Check(t.Context(), "init/"); there || err != nil { // but not a user's
			t.Fatalf("check: %v, %v", there, err)
		}
	})
}

// TestClientTimesOutWhileItConnects: a call whose time is up while it needs one more connection is a timeout, not a server
// that is gone, even if the socket's clock is a little faster than that of the context.
func TestClientTimesOutWhileItConnects(t *testing.T) {
	t.Parallel()
	for _, dialect := range dialects {
		t.Run(dialect.String(), func(t *testing.T) {
			t.Parallel()
			var hang atomic.Bool
			var hung atomic.Int64
			dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
				if deadline, bounded := ctx.Deadline(); hang.Load() && bounded {
					hung.Add(1)
					time.Sleep(time.Until(deadline))
					return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
				}
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			s := serve(t)
			p, err := faultnet.ListenTCP(s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.Close() })
			c := connect(t, p.Addr(), tcpstore.WithDialect(dialect), tcpstore.WithDialer(dial))
			hang.Store(true)
			p.Cut()
			// some of the first, on a busy machine many, do not know yet that the connection is gone
			testkit.Until(t, "a call that connects", func() bool {
				before := hung.Load()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				_, err = c.Get(ctx, "never")
				return hung.Load() > before
			})
			if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a timeout is called %v", err)
			}
			c.SetTimeout(20 * time.Millisecond)
			if _, err = c.Get(t.Context(), "never"); !errors.Is(err, store.ErrTimeout) {
				t.Errorf("the store's timeout: %v", err)
			}
		})
	}
}
