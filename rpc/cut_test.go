// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
)

// TestPipeIsCut cuts the connections with a worker that is spoken to as PyTorch's are, and lives. Calls under way fail; references of
// both workers, from before and after, stay usable. Then its process ends: what it held is released.
func TestPipeIsCut(t *testing.T) {
	const grace = 50 * time.Millisecond
	ctx, port := testContext(t), testkit.FreePort(t)
	proxy, err := faultnet.ListenTCP("127.0.0.1:" + strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proxy.Close() }()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	begun := make(chan struct{}, 2)
	var kept *Ref[int]
	reg := NewRegistry().
		MustHandle("t.one", func() int { return 1 }).
		MustHandle("t.hang", func(ctx context.Context) int { begun <- struct{}{}; <-ctx.Done(); return 0 }).
		MustHandle("t.keep", func(r *Ref[int]) (err error) { kept, err = r.Clone(); return err })
	join := func(name string, rank cohort.Rank, opts ...Option) *Agent {
		t.Helper()
		a, failed := Join(ctx, st, name, append(opts, WithRank(rank), WithHandlers(reg), WithLogger(testLogger()),
			WithTransports(TransportUV), WithLease(grace, 2*grace, grace))...)
		if failed != nil {
			t.Fatal(failed)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a := join("w0", 0, WithAddr("127.0.0.1:0"))
	b := join("w1", 1, WithAddr("127.0.0.1:"+strconv.Itoa(port)), WithAdvertise(proxy.Addr()))
	mine, err := NewRef(a, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Call[any](ctx, a, "w1", "t.keep", mine); err != nil {
		t.Fatal(err)
	}
	_ = mine.Close() // w1 alone keeps the object
	remote := func() *Ref[int] {
		t.Helper()
		r, err := Remote[int](ctx, a, "w1", "t.one")
		if err == nil {
			err = r.Confirmed(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	refs := []*Ref[int]{remote()}
	for range 3 {
		hangs := Async[int](ctx, a, "w1", "t.hang")
		<-begun
		proxy.Cut()
		if _, err := hangs.Await(ctx); !errors.Is(err, cohort.PeerLost) {
			t.Fatalf("a call that was under way: %v", err)
		}
		refs = append(refs, remote())
	}
	for end := time.Now().Add(10 * grace); time.Now().Before(end); time.Sleep(grace / 5) {
		for i, r := range append(refs, remote()) {
			if v, err := r.Fetch(ctx); err != nil || v != 1 {
				t.Fatalf("reference %d: %v, %v", i, v, err)
			}
		}
		if v, err := kept.Fetch(ctx); err != nil || v != 7 {
			t.Fatalf("the reference that the other worker holds: %v, %v", v, err)
		}
	}
	_ = proxy.Close()
	_ = b.Close()
	for a.refs.Counts().Forks > 0 {
		if ctx.Err() != nil {
			t.Fatalf("what the dead worker held stays: %+v", a.refs.Counts())
		}
		time.Sleep(time.Millisecond)
	}
	for _, r := range refs {
		if _, err := r.Fetch(ctx); !errors.Is(err, ErrOwnerLost) {
			t.Errorf("a reference to an object of the dead worker: %v", err)
		}
	}
	if err := a.Shutdown(ctx); !errors.Is(err, cohort.PeerLost) { // of one that has not said that it leaves
		t.Errorf("shutdown: %v", err)
	}
}

// swallowing is a connection that accepts everything and, once switched, passes nothing on.
type swallowing struct {
	net.Conn
	on *atomic.Bool
}

func (s swallowing) Write(p []byte) (int, error) {
	if s.on.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// silentLink makes a link that falls silent for a while, and returns after how long both its ends have given it up: forever if they do not.
func silentLink(t *testing.T, heartbeat, lease, pause time.Duration) time.Duration {
	t.Helper()
	var silent atomic.Bool
	a, b := net.Pipe()
	var links [2]*cohortwire.Link
	var starts sync.WaitGroup
	for i, conn := range []net.Conn{a, b} {
		starts.Go(func() {
			cfg := cohortwire.Config{
				Identity: cohortwire.Identity{Name: "ab"[i : i+1], ID: int16(i), Incarnation: 1}, Dialled: i == 0,
				OnFrame: func(*cohortwire.Link, *cohortwire.Frame) {}, Heartbeat: heartbeat, Limit: linkLimit(heartbeat, lease),
			}
			var err error
			if links[i], err = cohortwire.Start(swallowing{conn, &silent}, nil, cfg); err != nil {
				t.Error(err)
			}
		})
	}
	if starts.Wait(); t.Failed() {
		t.FailNow()
	}
	defer func() { _ = links[0].Close(); _ = links[1].Close() }()
	time.Sleep(100*heartbeat + heartbeat/3)
	begun := time.Now()
	silent.Store(true)
	time.AfterFunc(pause, func() { silent.Store(false) })
	for _, l := range links {
		select {
		case <-l.Done():
		case <-time.After(forever):
			return forever
		}
	}
	return time.Since(begun)
}

const forever = time.Hour

// TestSilentLinkLeavesTime: a link that falls silent is given up so early that a good part of a lease is left to
// connect again, if heartbeats are short. A link on which nothing comes for two fifths of a lease is not: workers stand
// still on a busy machine.
func TestSilentLinkLeavesTime(t *testing.T) {
	const lease = 10 * time.Second
	for _, c := range []struct{ heartbeat, latest time.Duration }{
		{lease / 20, lease * 6 / 10},
		{lease / 10, lease * 2 / 3}, // the default
		{lease / 4, lease * 3 / 4},
		{lease / 2, lease * 3 / 2}, // as short as a lease can be: nothing is left
	} {
		synctest.Test(t, func(t *testing.T) {
			if after := silentLink(t, c.heartbeat, lease, forever); after < lease*2/5 || after > c.latest {
				t.Errorf("heartbeat %v, lease %v: given up after %v", c.heartbeat, lease, after)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			if after := silentLink(t, c.heartbeat, lease, lease*2/5); after != forever {
				t.Errorf("heartbeat %v, lease %v: given up after %v", c.heartbeat, lease, after)
			}
		})
	}
}
