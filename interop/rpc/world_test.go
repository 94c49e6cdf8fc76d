// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc_test puts Go workers into RPC worlds of real PyTorch, in every role.
package rpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
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
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// member is who takes part: a PyTorch worker with its script, or a Go worker with its handlers.
type member struct {
	name   string
	script string // of a PyTorch worker, run between init_rpc and shutdown
	reg    *rpc.Registry
	opts   []rpc.Option
	launch func(rank, port int) // starts another process that joins
}

func torchWorker(name, script string) member { return member{name: name, script: script} }

func goWorker(name string, reg *rpc.Registry, opts ...rpc.Option) member {
	if reg == nil {
		reg = rpc.NewRegistry()
	}
	return member{name: name, reg: reg, opts: opts}
}

// settings of a world.
type settings struct {
	static   bool
	options  string            // further arguments of TensorPipeRpcBackendOptions
	modules  map[string]string // importable at every PyTorch worker
	shared   []string          // what their scripts import, once for all
	tolerant bool              // do not fail on what PyTorch prints to stderr
	leave    string            // arguments of PyTorch's shutdown
}

// running is a world that has started.
type running struct {
	t      *testing.T
	agents map[string]*rpc.Agent
	procs  map[string]*torchtest.Proc
	order  []string // by rank
	stores []store.Store
	logs   *testkit.Log
	set    settings
}

const prelude = `
import sys, time, gc, torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torch.distributed.autograd as dist_autograd
options = rpc.TensorPipeRpcBackendOptions(init_method=%q, rpc_timeout=30%s)
rpc.init_rpc(%q, rank=%d, world_size=%s, rpc_backend_options=options)
print("joined", flush=True)
def eq(got, want):
    assert got == want, "got %%r, want %%r" %% (got, want)
def teq(got, want):
    assert torch.equal(got, want), "got %%r, want %%r" %% (got, want)
def info():
    return rpc.api._get_current_rpc_agent().get_debug_info()
def refinfo():
    from torch.distributed.rpc import _rref_context_get_debug_info
    return _rref_context_get_debug_info()
input()
`

const epilogue = `
print("finished", flush=True)
input()
gc.collect()
rpc.shutdown(%s)
print("left", flush=True)
`

// staying is the end of a PyTorch worker that hosts the store of a static world with other PyTorch workers. The last thing that PyTorch
// does in a shutdown is to read the store, after all have met there for the last time, and raises an error if it cannot: the host must not
// end before the others have done so. Go workers do not mind.
const staying = "input()\n"

// start starts a world of the members, in this order of ranks. Rank 0 hosts the store.
func start(t *testing.T, tr *torchtest.Torch, set settings, members ...member) *running {
	t.Helper()
	ctx := testContext(t)
	port := testkit.FreePort(t)
	url := "tcp://127.0.0.1:" + strconv.Itoa(port)
	w := &running{t: t, agents: map[string]*rpc.Agent{}, procs: map[string]*torchtest.Proc{}, logs: &testkit.Log{}, set: set}
	level := slog.LevelWarn
	if os.Getenv("RPC_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	logger := w.logs.Logger(level)
	t.Cleanup(func() {
		for _, a := range w.agents {
			_ = a.Close()
		}
		for _, s := range w.stores {
			_ = s.Close()
		}
		if t.Failed() && w.logs.String() != "" {
			t.Logf("log of the Go workers:\n%s", w.logs)
		}
	})
	size := "None"
	if set.static {
		size = strconv.Itoa(len(members))
	}
	var mu sync.Mutex
	joinGo := func(rank int, m member) error {
		st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		if set.static {
			if _, err = st.JoinWorker(ctx); err != nil {
				return err
			}
		}
		opts := []rpc.Option{
			rpc.WithRank(cohort.Rank(rank)), rpc.WithHandlers(m.reg), rpc.WithAddr("127.0.0.1:0"),
			rpc.WithLogger(logger), rpc.WithTimeout(30 * time.Second),
		}
		if set.static {
			opts = append(opts, rpc.WithWorldSize(len(members)))
		}
		a, err := rpc.Join(ctx, st, m.name, append(append(opts, operators.Serve()), m.opts...)...)
		mu.Lock()
		defer mu.Unlock()
		w.stores = append(w.stores, st)
		if err == nil {
			w.agents[m.name] = a
		}
		return err
	}
	var wg sync.WaitGroup
	for rank, m := range members {
		w.order = append(w.order, m.name)
		if m.launch != nil {
			if rank == 0 {
				hostStore(t, port)
			}
			m.launch(rank, port)
			continue
		}
		if m.script == "" && m.reg == nil {
			t.Fatalf("member %q is unknown", m.name)
		}
		if m.reg != nil {
			if rank == 0 {
				hostStore(t, port)
			}
			if set.static {
				wg.Go(func() {
					if err := joinGo(rank, m); err != nil {
						t.Errorf("%s: %v", m.name, err)
					}
				})
			} else if err := joinGo(rank, m); err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
			continue
		}
		source := fmt.Sprintf(prelude, url, set.options, m.name, rank, size) + m.script + fmt.Sprintf(epilogue, set.leave)
		if set.static && rank == 0 && slices.ContainsFunc(members[1:], func(m member) bool { return m.script != "" }) {
			source += staying
		}
		p := tr.Start(t, torchtest.Script{
			Name: m.name + ".py", Source: source, Modules: set.modules, Shared: set.shared,
		})
		w.procs[m.name] = p
		if !set.static {
			p.Expect(t, "joined")
		}
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if set.static {
		for _, p := range w.procs {
			p.Expect(t, "joined")
		}
	}
	return w
}

func hostStore(t *testing.T, port int) {
	t.Helper()
	s, err := tcpstore.Listen("127.0.0.1:" + strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
}

// joinAt makes a Go worker of the world whose store is at addr. It ends with the test.
func joinAt(ctx context.Context, t *testing.T, addr, name string, opts ...rpc.Option) *rpc.Agent {
	t.Helper()
	st, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	a, err := rpc.Join(ctx, st, name, append([]rpc.Option{rpc.WithAddr("127.0.0.1:0"), rpc.WithTimeout(30 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// run lets the scripts of the PyTorch workers run to their ends.
func (w *running) run() {
	w.t.Helper()
	for _, p := range w.procs {
		p.Send(w.t, "go")
	}
	w.await()
}

func (w *running) await() {
	w.t.Helper()
	for _, p := range w.procs {
		p.Expect(w.t, "finished")
	}
}

// stop ends the world gracefully and fails when any worker reports an error.
func (w *running) stop() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	leave := func(name string, a *rpc.Agent) {
		if err := a.Shutdown(ctx); err != nil {
			w.t.Errorf("shutdown of %s: %v", name, err)
		}
	}
	if w.set.static {
		for name, a := range w.agents {
			wg.Go(func() { leave(name, a) })
		}
	}
	for _, name := range slices.Backward(w.order) { // the worker that hosts the store of a dynamic world leaves last
		if a := w.agents[name]; a != nil && !w.set.static {
			leave(name, a)
		}
		if p := w.procs[name]; p != nil {
			p.Send(w.t, "stop")
			if !w.set.static {
				p.Expect(w.t, "left")
			}
		}
	}
	wg.Wait()
	if host := w.procs[w.order[0]]; host != nil && w.set.static && len(w.procs) > 1 {
		for _, p := range w.procs {
			p.Expect(w.t, "left")
		}
		host.Send(w.t, "end")
	}
	for name, p := range w.procs {
		p.MustExit(w.t, 30*time.Second)
		if s := p.Stderr(); !w.set.tolerant && complains(s) {
			w.t.Errorf("%s complains: %s", name, s)
		}
	}
	if !w.set.tolerant && w.logs.Has("level=WARN") {
		w.t.Errorf("a Go worker complains: %s", w.logs)
	}
}

// complains finds what PyTorch says when its agent is not content. That a served function raised is not such a case.
func complains(stderr string) bool {
	for _, word := range []string{"[W", "[E", "terminate called", "Leaking", "leak", "Failed to", "timed out", "Exception in thread"} {
		if strings.Contains(stderr, word) {
			return true
		}
	}
	return false
}

// both runs a test in static and dynamic worlds of both PyTorch versions.
func both(t *testing.T, test func(t *testing.T, tr *torchtest.Torch, set settings)) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		t.Run("dynamic", func(t *testing.T) { test(t, tr, settings{}) })
		t.Run("static", func(t *testing.T) { test(t, tr, settings{static: true}) })
	})
}
