// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

var contexts = flag.Int("rpc.contexts", 1000, "how many contexts TestAutogradManyContexts opens")

// TestAutogradManyContexts opens and cleans up contexts, half of them from each side: neither grows. "make memory" runs it with
// ten thousand.
func TestAutogradManyContexts(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		n := max(*contexts/2, 400)
		m1, l1 := goLayer("go1")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}}, torchWorker("py0", fmt.Sprintf(`
import layers, resource
def memory():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
for i in range(%d):
    if i == 200: before = memory()
    if i %% 100 == 0: print(i, flush=True) # it goes on
    with dist_autograd.context() as cid:
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        dist_autograd.backward(cid, [rpc.rpc_sync("go1", layers.forward, args=([], x)).sum()])
layers.until(lambda: layers.contexts() == 0, "contexts are left")
assert memory() - before < 64 << 20, "memory grows: %%d" %% (memory() - before)
`, n)), m1)
		w.run()
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
		defer cancel()
		var before int64
		for i := range n {
			if i == 200 {
				before = testkit.HeapBytes()
			}
			gctx, c, err := l1.engine.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3}, 3)))
			y, err := rpc.Call[*autograd.Variable](gctx, w.agents["go1"], "py0", "layers.forward", []string{}, x)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
		w.freed(ctx, w.agents["go1"])
		if grown := testkit.HeapBytes() - before; grown > 8<<20 {
			t.Errorf("the Go worker has %d bytes more than after 200 contexts", grown)
		}
		w.stop()
		t.Logf("count: contexts of mixed worlds: %d", 2*n)
	})
}

// TestAutogradContextsAtOnce has many contexts open at once, opened by both sides, and runs a pass in each of them, many at the same time.
// Nothing is left of them.
func TestAutogradContextsAtOnce(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		const contexts, length = 1000, 1024 // more than fifty megabytes
		m1, l1 := goLayer("go1", distautograd.WithTimeout(time.Minute))
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, options: ", num_worker_threads=32"}, torchWorker("py0", `
import layers
import threading
n = 100 # each has a thread
ready, failed = threading.Barrier(n), []
def one(i):
    try:
        x = torch.full((3,), float(i), dtype=torch.float64, requires_grad=True)
        layers.layer(x, layers.initial("go1")).sum().backward()
        with dist_autograd.context() as cid:
            y = rpc.rpc_sync("go1", layers.forward, args=([], x))
            ready.wait() # all are open
            dist_autograd.backward(cid, [y.sum()])
            assert torch.allclose(dist_autograd.get_gradients(cid)[x], x.grad, atol=1e-12), i
    except BaseException as e:
        failed.append(repr(e))
        ready.abort()
threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
for t in threads: t.start()
for t in threads: t.join()
assert not failed, failed[:3]
layers.until(lambda: layers.contexts() == 0, "contexts are left")
`), m1)
		w.run()
		before := testkit.HeapBytes()
		l1.manyAtOnce(t, w.agents["go1"], "py0", contexts, length)
		w.freed(testContext(t), w.agents["go1"])
		if grown := testkit.HeapBytes() - before; grown > 8<<20 {
			t.Errorf("%d bytes are left", grown)
		}
		w.stop()
	})
}

// manyAtOnce opens contexts, and then runs a pass in each of them.
func (l *layerOf) manyAtOnce(t *testing.T, a *rpc.Agent, to string, contexts, length int) {
	t.Helper()
	type opened struct {
		ctx  context.Context //nolint:containedctx // of the context
		c    *distautograd.Context
		x, y *autograd.Variable
	}
	all := make([]opened, contexts)
	base := testContext(t)
	for i := range all {
		ctx, c, err := l.engine.Open(base)
		if err != nil {
			t.Fatal(err)
		}
		x := autograd.Parameter(tensor.Must(tensor.Full(tensor.Float64, float64(i)/1000, length, 3)))
		y, err := rpc.Call[*autograd.Variable](ctx, a, to, "layers.forward", []string{}, x)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = opened{ctx, c, x, y}
	}
	if s := l.engine.Stats(); s.Contexts != contexts {
		t.Errorf("%d contexts are open: %+v", contexts, s)
	}
	passes, turns := make(chan error, contexts), make(chan struct{}, 16) // PyTorch's calls have a timeout
	for _, o := range all {
		go func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			passes <- o.c.Backward(o.ctx, []*autograd.Variable{o.y.Sum()})
		}()
	}
	for range all {
		if err := <-passes; err != nil {
			t.Fatal(err)
		}
	}
	for i, o := range all {
		if err := applyLayer(o.x, initialWeight(to)).Sum().Backward(o.ctx); err != nil {
			t.Fatal(err)
		}
		if got := o.c.Gradient(o.x); got == nil || !tensor.AllClose(got, o.x.Grad(), 0, 1e-12, false) {
			t.Fatalf("context %d: gradient %v, want %v", i, got, o.x.Grad())
		}
		if err := o.c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
