// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestKilledBehindGateway kills the process of a store again and again while clients of every dialect change it through a gateway: none of
// them sees an error, and everything is done exactly once.
func TestKilledBehindGateway(t *testing.T) {
	t.Parallel()
	p := startData(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, err := storegate.Serve(l, storegate.Options{Upstreams: []string{p.addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var shared atomic.Int64
	own, clients := make([]int64, 6), 6
	for i := range clients {
		dialect := dialects[i%len(dialects)]
		c := connect(t, g.Addr().String(), tcpstore.WithDialect(dialect))
		workers.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				if sum, err := c.Add(t.Context(), fmt.Sprint("own", i), 1); err != nil || sum != n {
					t.Errorf("%s: addition %d has the sum %d: %v", dialect, n, sum, err)
					return
				}
				own[i] = n
				if _, err := c.Add(t.Context(), "shared", 1); err != nil {
					t.Errorf("%s: %v", dialect, err)
					return
				}
				shared.Add(1)
				if err := push(t.Context(), c, dialect, fmt.Sprintf("%d.%d", i, n)); err != nil {
					t.Errorf("%s: %v", dialect, err)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 6 {
		time.Sleep(time.Duration(50+r.IntN(200)) * time.Millisecond)
		before := shared.Load()
		p.again()
		testkit.Until(t, "clients go on", func() bool { return shared.Load() > before+int64(clients) || t.Failed() })
	}
	stop()
	workers.Wait()
	p.again()
	c := connect(t, p.addr)
	if got, err := c.Add(t.Context(), "shared", 0); err != nil || got != shared.Load() {
		t.Errorf("the counter of all is %d, they have added %d: %v", got, shared.Load(), err)
	}
	pushed := map[string]bool{}
	for i, want := range own {
		if got, err := c.Add(t.Context(), fmt.Sprint("own", i), 0); err != nil || got != want {
			t.Errorf("the counter of client %d is %d, it has added %d: %v", i, got, want, err)
		}
		if dialects[i%len(dialects)] == tcpstore.DialectLegacy {
			continue
		}
		for n := range want {
			pushed[fmt.Sprintf("%d.%d", i, n+1)] = true
		}
	}
	for range len(pushed) {
		item, err := c.QueuePop(t.Context(), "queue", false)
		if err != nil || !pushed[string(item)] {
			t.Fatalf("the queue has %q, which was pushed %v: %v", item, pushed[string(item)], err)
		}
		delete(pushed, string(item))
	}
	if n, err := c.QueueLen(t.Context(), "queue"); err != nil || n != 0 {
		t.Errorf("%d items too many: %v", n, err)
	}
	s := g.State()
	t.Logf("%d additions, %d kills, %d requests sent again, %d sessions lost", shared.Load(), p.kills, s.Repeated, s.LostSessions)
	if s.LostSessions != 0 {
		t.Error("a session was lost")
	}
}

// push pushes an item, where the dialect has queues.
func push(ctx context.Context, c *tcpstore.Client, dialect tcpstore.Dialect, item string) error {
	if dialect == tcpstore.DialectLegacy {
		return nil
	}
	return c.QueuePush(ctx, "queue", []byte(item))
}
