// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// One world after the other in the same PyTorch processes, whose counters go on. Go workers are not told anything.

// obeys is a PyTorch process that does what it is told, line by line.
const obeys = `
import sys, time, torch
from datetime import timedelta
import torch.distributed.rpc as rpc
import torch.distributed.rpc.constants
import gostub
for line in sys.stdin:
    words = line.split()
    if words[0] == "init":
        options = rpc.TensorPipeRpcBackendOptions(init_method=words[4], rpc_timeout=30)
        size = int(words[3])
        rpc.init_rpc(words[1], rank=int(words[2]), world_size=size if size else None, rpc_backend_options=options)
    elif words[0] == "fail":
        long, rpc.constants.DEFAULT_PROCESS_GROUP_TIMEOUT = rpc.constants.DEFAULT_PROCESS_GROUP_TIMEOUT, timedelta(seconds=1)
        options = rpc.TensorPipeRpcBackendOptions(init_method=words[4], rpc_timeout=30)
        try:
            rpc.init_rpc(words[1], rank=int(words[2]), world_size=int(words[3]), rpc_backend_options=options)
            raise SystemExit("it has started alone")
        except RuntimeError:
            rpc.constants.DEFAULT_PROCESS_GROUP_TIMEOUT = long
    elif words[0] == "call":
        for name in words[1:]:
            assert rpc.rpc_sync(name, gostub.echo, args=(5,)) == 5
    elif words[0] == "barrier":
        rpc.api._barrier(words[1:])
    elif words[0] == "leave":
        rpc.shutdown()
    elif words[0] == "drop":
        rpc.shutdown(graceful=False)
    print("done", words[0], flush=True)
`

// generation is one world: names of PyTorch workers and Go workers by rank.
type generation struct {
	workers  []string // "py:name" or "go:name"
	dynamic  bool
	dropped  bool     // it ends without a shutdown
	barriers []string // names, joined by commas
}

// history lets processes go from world to world. The k-th PyTorch worker of each world is the k-th process.
type history struct {
	t     *testing.T
	procs []*torchtest.Proc
}

// live lets the generation take place on the store at port. In a dynamic world on a store of its own Go cannot be first:
// nothing says which round PyTorch's processes are in.
func (h *history) live(port int, g generation, goFirst bool) {
	t := h.t
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), time.Minute)
	defer cancel()
	url := "tcp://127.0.0.1:" + strconv.Itoa(port)
	size := len(g.workers)
	if g.dynamic {
		size = 0
	}
	agents := map[string]*rpc.Agent{}
	procs := map[string]*torchtest.Proc{}
	goNames := []string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range g.workers {
		rank := i
		if g.dynamic && !goFirst {
			rank = (i + 1) % len(g.workers)
		}
		kind, name, _ := strings.Cut(g.workers[rank], ":")
		if kind == "py" {
			p := h.procs[len(procs)]
			procs[name] = p
			p.Send(t, fmt.Sprintf("init %s %d %d %s", name, rank, size, url))
			if g.dynamic {
				p.Expect(t, "done init")
			}
			continue
		}
		goNames = append(goNames, name)
		join := func() {
			st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(port))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			t.Cleanup(func() { _ = st.Close() })
			opts := []rpc.Option{
				rpc.WithRank(cohort.Rank(rank)), rpc.WithHandlers(handlers()), rpc.WithAddr("127.0.0.1:0"),
				rpc.WithTimeout(30 * time.Second),
			}
			if size > 0 {
				opts = append(opts, rpc.WithWorldSize(size))
				_, err = st.JoinWorker(ctx)
			}
			if err == nil {
				var a *rpc.Agent
				if a, err = rpc.Join(ctx, st, name, append(opts, operators.Serve())...); err == nil {
					t.Cleanup(func() { _ = a.Close() })
					mu.Lock()
					agents[name] = a
					mu.Unlock()
				}
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if g.dynamic {
			join()
		} else {
			wg.Go(join)
		}
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	all := func(order string, wait bool) {
		for _, p := range procs {
			p.Send(t, order)
		}
		if wait {
			for _, p := range procs {
				p.Expect(t, "done "+strings.Fields(order)[0])
			}
		}
	}
	if !g.dynamic {
		for _, p := range procs {
			p.Expect(t, "done init")
		}
	}
	all("call "+strings.Join(goNames, " "), true)
	for _, names := range g.barriers {
		among := strings.Split(names, ",")
		for _, name := range among {
			if p := procs[name]; p != nil {
				p.Send(t, "barrier "+strings.Join(among, " "))
			} else {
				wg.Go(func() {
					if err := rpc.Barrier(ctx, agents[name], among...); err != nil {
						t.Errorf("barrier of %s: %v", name, err)
					}
				})
			}
		}
		wg.Wait()
		for _, name := range among {
			if p := procs[name]; p != nil {
				p.Expect(t, "done barrier")
			}
		}
	}
	switch {
	case g.dropped:
		all("drop", true)
		for _, a := range agents {
			_ = a.Close()
		}
	case g.dynamic:
		for _, a := range agents {
			if err := a.Shutdown(ctx); err != nil {
				t.Errorf("%s leaves: %v", a.Name(), err)
			}
		}
		for _, p := range procs {
			p.Send(t, "leave")
			p.Expect(t, "done leave")
		}
	default:
		all("leave", false)
		for _, a := range agents {
			wg.Go(func() {
				if err := a.Shutdown(ctx); err != nil {
					t.Errorf("shutdown of %s: %v", a.Name(), err)
				}
			})
		}
		wg.Wait()
		for _, p := range procs {
			p.Expect(t, "done leave")
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// TestRounds goes through worlds of all kinds, on one store or each on a store of its own.
func TestRounds(t *testing.T) {
	// Rank 0 would host the store itself if it were PyTorch's, and a PyTorch process keeps its rank for life.
	generations := []generation{
		{workers: []string{"go:d", "py:a", "py:c", "go:b"}, barriers: []string{"b,c"}},
		// the same again: all counters go on
		{workers: []string{"go:d", "py:a", "py:c", "go:b"}, barriers: []string{"b,c", "a,b,c", "b,c"}},
		{workers: []string{"go:a", "py:b", "py:c", "go:d"}},                    // the same names, other roles: Go leads
		{workers: []string{"go:x", "py:y", "py:z"}, barriers: []string{"x,z"}}, // other names count from 0
		{workers: []string{"go:d", "py:a", "py:c"}, dynamic: true},             // has neither start nor end
		{workers: []string{"go:d", "py:a", "py:c", "go:b"}, dropped: true},     // has no end
		{workers: []string{"go:d", "py:a", "py:c", "go:b"}, barriers: []string{"b,c"}},
		{workers: []string{"go:a", "py:c", "py:d", "go:b"}, dropped: true, barriers: []string{"c,d,b"}}, // Go leads
		{workers: []string{"go:a", "py:c", "py:d", "go:b"}},
	}
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, fresh := range []bool{false, true} {
			t.Run(fmt.Sprintf("fresh=%v", fresh), func(t *testing.T) {
				h := &history{t: t}
				for i := range 2 {
					h.procs = append(h.procs, tr.Start(t,
						torchtest.Script{Name: fmt.Sprintf("p%d.py", i), Modules: map[string]string{"gostub": gostub}, Source: obeys}))
				}
				port := 0
				for k, g := range generations {
					if port == 0 || fresh {
						port = testkit.FreePort(t)
						hostStore(t, port)
					}
					begun := time.Now()
					h.live(port, g, !fresh)
					t.Logf("world %d took %v", k, time.Since(begun).Round(time.Millisecond))
				}
			})
		}
	})
}

// TestFailedStartIsFollowed: a PyTorch rank fails to start, since no other rank joins, and tries again after a while. A
// Go rank that comes in between finds what the first start has left in the store, an address without a listener, and
// starts with the second one. Which of the two ranks dials depends on their ports, so it is done several times.
func TestFailedStartIsFollowed(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		p := tr.Start(t, torchtest.Script{Name: "p.py", Modules: map[string]string{"gostub": gostub}, Source: obeys})
		port := testkit.FreePort(t)
		hostStore(t, port)
		order := "1 2 tcp://127.0.0.1:" + strconv.Itoa(port)
		for range 4 {
			ctx, cancel := context.WithTimeout(testContext(t), time.Minute)
			defer cancel()
			st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(port))
			if err == nil {
				_, err = st.JoinWorker(ctx) // PyTorch's stores wait for that first of all
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			p.Send(t, "fail b "+order)
			p.Expect(t, "done fail")
			joined := make(chan error, 1)
			var a *rpc.Agent
			go func() {
				var err error
				a, err = rpc.Join(ctx, st, "a", rpc.WithRank(0), rpc.WithWorldSize(2), rpc.WithHandlers(handlers()),
					rpc.WithAddr("127.0.0.1:0"), rpc.WithTimeout(30*time.Second))
				joined <- err
			}()
			select {
			case err := <-joined:
				t.Fatalf("before PyTorch tries again: %v", err)
			case <-time.After(2 * time.Second):
			}
			p.Send(t, "init b "+order)
			if err := <-joined; err != nil {
				t.Fatal(err)
			}
			p.Expect(t, "done init")
			p.Send(t, "call a")
			p.Expect(t, "done call")
			p.Send(t, "leave")
			if err := a.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			p.Expect(t, "done leave")
		}
	})
}
