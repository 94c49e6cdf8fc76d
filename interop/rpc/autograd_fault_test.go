// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	fault "github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// TestAutogradErrors: a function fails at a worker of each kind, begun by each kind.
func TestAutogradErrors(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m1, l1 := goLayer("go1")
		m2, _ := goLayer("go2")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, torchWorker("py0", `
import layers
for path in [["go1"], ["go2", "go1"], ["go1", "py3"], ["py3", "go1"]]:
    for i in range(3):
        with dist_autograd.context() as cid:
            x = torch.ones(3, requires_grad=True)
            y = rpc.rpc_sync(path[0], layers.broken, args=(path[1:], x))
            try:
                dist_autograd.backward(cid, [y.sum()])
                raise SystemExit("no exception")
            except RuntimeError as e:
                assert "simulated error on backward" in str(e), str(e)
layers.until(lambda: layers.contexts() == 0, "contexts are left")
`), m1, m2, torchWorker("py3", "import layers"))
		w.run()
		ctx := testContext(t)
		a := w.agents["go1"]
		for _, path := range [][]string{{"py0"}, {"go2", "py0"}, {"py0", "go2"}, {"py0", "py3", "go2"}} {
			gctx, c, err := l1.engine.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Parameter(tensor.Must(tensor.From([]float32{1}, 1)))
			y, err := rpc.Call[*autograd.Variable](gctx, a, path[0], "layers.broken", path[1:], x)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Backward(gctx, []*autograd.Variable{y.Sum()}); err == nil ||
				!strings.Contains(err.Error(), "simulated error on backward") {
				t.Errorf("%v: %v", path, err)
			}
			_ = c.Close()
		}
		w.freed(ctx, a)
		w.stop()
	})
}

// TestAutogradDeath kills a PyTorch worker in which a pass waits: the Go workers are free within a second, and so are their
// contexts.
func TestAutogradDeath(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m0, l0 := goLayer("go0")
		m2, l2 := goLayer("go2")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, m0,
			torchWorker("py1", "import layers"), m2)
		ctx := testContext(t)
		gctx, c, err := l0.engine.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		x := autograd.Parameter(tensor.Must(tensor.From([]float32{1}, 1)))
		y, err := rpc.Call[*autograd.Variable](gctx, w.agents["go0"], "go2", "layers.slow", []string{"py1"}, x)
		if err != nil {
			t.Fatal(err)
		}
		w.procs["py1"].Send(t, "go")
		w.procs["py1"].Expect(t, "finished") // before the pass, which prints too
		result := make(chan error, 1)
		go func() { result <- c.Backward(gctx, []*autograd.Variable{y.Sum()}) }()
		w.procs["py1"].Expect(t, "slow")
		w.procs["py1"].Kill()
		killed := time.Now()
		err = <-result
		var e *fault.Error
		if !errors.Is(err, fault.PeerLost) || !errors.As(err, &e) || e.Peer != "py1" {
			t.Errorf("the pass: %v", err)
		}
		if took := time.Since(killed); took > liveness {
			t.Errorf("it took %v", took)
		}
		_ = c.Close()
		l0.free(t)
		l2.free(t)
	})
}

// TestAutogradOpenerDies kills a PyTorch worker that has opened a context: the Go workers free it.
func TestAutogradOpenerDies(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m1, l1 := goLayer("go1")
		m2, l2 := goLayer("go2")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, m1, torchWorker("py0", `
import layers
cid = dist_autograd._new_context()._context_id()
y = rpc.rpc_sync("go1", layers.slow, args=(["go2"], torch.ones(3, requires_grad=True)))
print("open", flush=True)
dist_autograd.backward(cid, [y.sum()])
`), m2)
		w.procs["py0"].Send(t, "go")
		w.procs["py0"].Expect(t, "open")
		<-l2.begun
		w.procs["py0"].Kill()
		l1.free(t)
		l2.free(t)
	})
}

// TestAutogradUnused: the value of a message does not enter the loss. Towards PyTorch that can only end by time, with the name of
// the message.
func TestAutogradUnused(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m1, l1 := goLayer("go1")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, torchWorker("py0", "import layers"), m1)
		ctx := testContext(t)
		gctx, c, err := l1.engine.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3}, 3)))
		forward := func() *autograd.Variable {
			y, failed := rpc.Call[*autograd.Variable](gctx, w.agents["go1"], "py0", "layers.forward", []string{}, x)
			if failed != nil {
				t.Fatal(failed)
			}
			return y
		}
		forward()
		loss := forward().Sum()
		short, cancel := context.WithTimeout(gctx, 2*time.Second)
		defer cancel()
		err = c.Backward(short, []*autograd.Variable{loss})
		if !errors.Is(err, fault.DeadlineExceeded) || !strings.Contains(err.Error(), "layers.forward") ||
			!strings.Contains(err.Error(), "py0") {
			t.Errorf("a pass with an unused send: %v", err)
		}
		_ = c.Close()
	})
}
