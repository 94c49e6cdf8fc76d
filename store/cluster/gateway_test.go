// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/store/cluster"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestGateway: clients of a gateway go on while the process of the leader is killed, or stopped, and another member leads. None of them
// sees an error, and everything is done exactly once.
func TestGateway(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 3, true)
	ps.leader()
	g := gatewayTo(t, ps)
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var shared atomic.Int64
	own := make([]int64, 4)
	for i := range own {
		c := clientOf(t, g, []tcpstore.Dialect{tcpstore.DialectV, tcpstore.DialectNative}[i%2])
		workers.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				sum, err := c.Add(t.Context(), fmt.Sprint("own", i), 1)
				if err == nil {
					_, err = c.Add(t.Context(), "shared", 1)
				}
				if err != nil || sum != n {
					t.Errorf("client %d: addition %d has the sum %d: %v", i, n, sum, err)
					return
				}
				own[i] = n
				shared.Add(1)
			}
		})
	}
	for _, c := range []struct{ fail, heal func(i int) }{
		{ps.kill, ps.start},
		{func(i int) { ps.signal(i, syscall.SIGSTOP) }, func(i int) { ps.signal(i, syscall.SIGCONT) }},
		{ps.kill, ps.start},
	} {
		leader := ps.leader()
		time.Sleep(200 * time.Millisecond) // under load
		c.fail(leader)
		ps.status(func(s cluster.Status) bool { return s.Leading && s.Leader != ps.configs[leader].Name })
		before := shared.Load()
		for end := time.Now().Add(time.Minute); shared.Load() <= before+int64(len(own)) && !t.Failed(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("clients do not go on")
			}
		}
		c.heal(leader)
	}
	stop()
	workers.Wait()
	c := clientOf(t, g, tcpstore.DialectNative)
	if got, err := c.Add(t.Context(), "shared", 0); err != nil || got != shared.Load() {
		t.Errorf("the counter of all is %d, they have added %d: %v", got, shared.Load(), err)
	}
	for i, want := range own {
		if got, err := c.Add(t.Context(), fmt.Sprint("own", i), 0); err != nil || got != want {
			t.Errorf("the counter of client %d is %d, it has added %d: %v", i, got, want, err)
		}
	}
	s := g.State()
	t.Logf("%d additions; the store was reached %d times, %d requests were sent again", shared.Load(), s.Times, s.Repeated)
	if s.LostSessions != 0 {
		t.Error("a session was lost")
	}
}

// gatewayTo is a gateway to the members that tries them in turn.
func gatewayTo(t *testing.T, ps *processes) *storegate.Gateway {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, c := range ps.configs {
		addrs = append(addrs, c.Clients)
	}
	g, err := storegate.Serve(l, storegate.Options{Upstreams: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func clientOf(t *testing.T, g *storegate.Gateway, dialect tcpstore.Dialect) *tcpstore.Client {
	t.Helper()
	c, err := tcpstore.Dial(t.Context(), g.Addr().String(), tcpstore.WithDialect(dialect))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
