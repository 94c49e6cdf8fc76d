// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A worker dies. Workers that wait for it in a shutdown or a barrier get an error soon, which names it; a worker whose
// connections are cut is waited for.

// victim is the variable that makes a copy of the test program a worker which waits for its death.
const victim = "COHORT_TEST_VICTIM"

func TestMain(m *testing.M) {
	if addr := os.Getenv(victim); addr != "" {
		if err := beVictim(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func beVictim(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	st, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	if err := newNode(1).join(ctx, st, rpc.WithRank(1), rpc.WithWorldSize(3)); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestShutdownAfterKill kills a process. Nothing of it says goodbye.
func TestShutdownAfterKill(t *testing.T) {
	ctx := bounded(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	defer func() { _ = server.Close() }()
	addr := server.Addr().String()
	other := exec.CommandContext(ctx, os.Args[0])
	other.Env = append(os.Environ(), victim+"="+addr)
	other.Stderr = os.Stderr
	must(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	nodes := []*node{newNode(0), newNode(2)}
	must(t, parallel(2, func(i int) error {
		st, failed := tcpstore.Dial(ctx, addr)
		if failed != nil {
			return failed
		}
		t.Cleanup(func() { _ = st.Close() })
		return nodes[i].join(ctx, st, rpc.WithRank(cohort.Rank(2*i)), rpc.WithWorldSize(3))
	}))
	_, err = rpc.Call[any](ctx, nodes[0].Agent, name(1), "t.nothing")
	must(t, err)
	var killed time.Time
	must(t, parallel(3, func(i int) error {
		if i == 2 {
			time.Sleep(100 * time.Millisecond) // the others wait
			killed = time.Now()
			return other.Process.Kill()
		}
		return checkErr(nodes[i].Shutdown(ctx), cohort.PeerLost, "wait for all workers", name(1))
	}))
	if took := time.Since(killed); took > soon {
		t.Errorf("it took %v to notice", took)
	}
}

// deaths is who dies in a world of three: the leader of the all-gather, or another one.
func deaths(t *testing.T, test func(t *testing.T, dead int, opts ...rpc.Option)) {
	t.Helper()
	for _, transport := range []string{"cohort", "uv"} {
		for dead := range 3 {
			t.Run(fmt.Sprintf("%s/%s", transport, name(dead)), func(t *testing.T) {
				var opts []rpc.Option
				if transport == "uv" {
					opts = append(opts, rpc.WithTransports(rpc.TransportUV))
				}
				test(t, dead, opts...)
			})
		}
	}
}

func TestShutdownAfterDeath(t *testing.T) {
	deaths(t, func(t *testing.T, dead int, opts ...rpc.Option) {
		t.Helper()
		w := start(t, 3, opts...)
		must(t, w.nodes[dead].Close())
		within(t, soon, "the shutdown", func() {
			w.every(func(n *node) error {
				if n.rank == dead {
					return nil
				}
				if err := checkErr(n.Shutdown(w.ctx), cohort.PeerLost, name(dead)); err != nil {
					return err
				}
				_, err := rpc.Call[any](w.ctx, n.Agent, name(dead), "t.nothing")
				return checkErr(err, cohort.Closed)
			})
		})
	})
}

// It dies while the others wait; the survivors go on without it.
func TestBarrierAndDeath(t *testing.T) {
	deaths(t, func(t *testing.T, dead int, opts ...rpc.Option) {
		t.Helper()
		w := start(t, 3, opts...)
		within(t, soon, "the barrier", func() {
			w.every(func(n *node) error {
				if n.rank == dead {
					time.Sleep(50 * time.Millisecond)
					return n.Close()
				}
				return checkErr(rpc.Barrier(w.ctx, n.Agent), cohort.PeerLost, name(dead))
			})
		})
		var left []string
		for rank := range 3 {
			if rank != dead {
				left = append(left, name(rank))
			}
		}
		w.every(func(n *node) error {
			if n.rank == dead {
				return nil
			}
			return rpc.Barrier(w.ctx, n.Agent, left...)
		})
	})
}

// All connections are cut while the others wait: no worker has died, and none is declared dead.
func TestShutdownSurvivesCuts(t *testing.T) {
	w, f := startFaulty(t, 3)
	must(t, parallel(4, func(i int) error {
		if i == 3 {
			for range 5 {
				time.Sleep(100 * time.Millisecond)
				f.cut()
			}
			return nil
		}
		if i == 1 {
			time.Sleep(700 * time.Millisecond)
		}
		return w.nodes[i].Shutdown(w.ctx)
	}))
}
