// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// layers is the module of both sides: every worker has one layer with a weight of its own.
const layers = `
import threading, time, torch
import torch.distributed.rpc as rpc
import torch.distributed.autograd as dist_autograd

def initial(name):
    n = float(name[-1])
    return torch.tensor([0.5 + n / 4, -0.25 * (n + 1), 0.75], dtype=torch.float64, requires_grad=True)

class Here: weight, lock = None, threading.Lock()

def weight():
    with Here.lock: # calls of several workers may be the first
        if Here.weight is None:
            Here.weight = initial(rpc.get_worker_info().name)
        return Here.weight

def layer(x, w): return torch.tanh(x * w) + x * 0.5

# forward applies this worker's layer, and then those of the others on the path.
def forward(path, x):
    y = layer(x, weight())
    if path:
        return rpc.rpc_sync(path[0], forward, args=(path[1:], y))
    return y

class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): raise ValueError("simulated error on backward")

def broken(path, x):
    if path:
        return rpc.rpc_sync(path[0], broken, args=(path[1:], x))
    return Broken.apply(x)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        print("slow", flush=True)
        time.sleep(60)
        return g

def slow(path, x):
    if path:
        return rpc.rpc_sync(path[0], slow, args=(path[1:], x))
    return Slow.apply(x)

def fresh(name): return initial(name)

def apply(w, x): return layer(x, w.local_value())

def loss(x): return layer(x, weight()).sum()

def gradient(context_id):
    return dist_autograd.get_gradients(context_id).get(weight())

def contexts(): return int(dist_autograd._get_debug_info()["num_autograd_contexts"])
def passes(): return int(dist_autograd._get_debug_info()["num_current_backward_passes"])

def until(holds, what):
    for _ in range(1000):
        if holds(): return
        time.sleep(0.01)
    raise SystemExit(what)

# check runs a chain through the path and compares all gradients with those of one worker.
def check(me, path):
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    ws = {name: initial(name) for name in [me] + path}
    near = x
    for name in [me] + path:
        near = layer(near, ws[name])
    (near * near).sum().backward()
    with dist_autograd.context() as cid:
        y = forward(path, x)
        dist_autograd.backward(cid, [(y * y).sum()])
        got = dist_autograd.get_gradients(cid)
        assert torch.allclose(got[x], x.grad, atol=1e-12), (got[x], x.grad)
        for name in set(ws):
            far = gradient(cid) if name == me else rpc.rpc_sync(name, gradient, args=(cid,))
            assert torch.allclose(far, ws[name].grad, atol=1e-12), (name, far, ws[name].grad)
`

// layerOf is a Go worker's side of the module.
type layerOf struct {
	engine *distautograd.Engine
	weight *autograd.Variable
	begun  chan struct{} // the slow layer was reached
}

func initialWeight(name string) *autograd.Variable {
	n := float64(name[len(name)-1] - '0')
	return autograd.Parameter(tensor.Must(tensor.From([]float64{0.5 + n/4, -0.25 * (n + 1), 0.75}, 3)))
}

func applyLayer(x, w *autograd.Variable) *autograd.Variable { return x.Mul(w).Tanh().Add(x.Scale(0.5)) }

// pause is a function whose gradient waits for the end of the pass.
type pause struct{ begun chan struct{} }

func (pause) Name() string { return "Pause" }

func (pause) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (p pause) Backward(c *autograd.Context, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
	p.begun <- struct{}{}
	<-c.Ctx().Done()
	return nil, context.Cause(c.Ctx())
}

// breaks is a function whose gradient fails.
type breaks struct{}

func (breaks) Name() string { return "Breaks" }

func (breaks) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (breaks) Backward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, errors.New("simulated error on backward")
}

// goLayer returns a Go worker with a layer.
func goLayer(name string, opts ...distautograd.Option) (member, *layerOf) {
	opts = append(opts, distautograd.WithTimeout(10*time.Second))
	l := &layerOf{engine: distautograd.New(opts...), weight: initialWeight(name), begun: make(chan struct{}, 16)}
	via := func(fn string, last func(x *autograd.Variable) (*autograd.Variable, error)) any {
		return func(ctx context.Context, path []string, x *autograd.Variable) (*autograd.Variable, error) {
			if len(path) > 0 {
				return rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), path[0], fn, path[1:], x)
			}
			return last(x)
		}
	}
	apply := func(f autograd.Function) func(x *autograd.Variable) (*autograd.Variable, error) {
		return func(x *autograd.Variable) (*autograd.Variable, error) {
			out, err := autograd.Apply(f, x)
			if err != nil {
				return nil, err
			}
			return out[0], nil
		}
	}
	reg := rpc.NewRegistry().
		MustHandle("layers.forward", func(ctx context.Context, path []string, x *autograd.Variable) (*autograd.Variable, error) {
			y := applyLayer(x, l.weight)
			if len(path) == 0 {
				return y, nil
			}
			return rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), path[0], "layers.forward", path[1:], y)
		}).
		MustHandle("layers.broken", via("layers.broken", apply(breaks{}))).
		MustHandle("layers.slow", via("layers.slow", apply(pause{l.begun}))).
		MustHandle("layers.gradient", func(id int64) *tensor.Tensor {
			if c := l.engine.Context(distautograd.ID(id)); c != nil {
				return c.Gradient(l.weight)
			}
			return nil
		}).
		MustHandle("layers.loss", func(x *autograd.Variable) *autograd.Variable { return applyLayer(x, l.weight).Sum() }).
		MustHandle("layers.contexts", func() int { return l.engine.Stats().Contexts }).
		MustHandle("layers.passes", func() int { return l.engine.Stats().Passes })
	return goWorker(name, reg, l.engine.Join()), l
}

// chain begins at a Go worker what check begins at a PyTorch worker.
func (l *layerOf) chain(ctx context.Context, t *testing.T, a *rpc.Agent, path []string) {
	t.Helper()
	names := append([]string{a.Name()}, path...)
	weights := map[string]*autograd.Variable{}
	x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, -2, 0.5}, 3)))
	near := x
	for _, name := range names {
		if weights[name] == nil {
			weights[name] = initialWeight(name)
		}
		near = applyLayer(near, weights[name])
	}
	if err := near.Mul(near).Sum().Backward(ctx); err != nil {
		t.Fatal(err)
	}
	gctx, c, err := l.engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	y, err := rpc.Call[*autograd.Variable](gctx, a, path[0], "layers.forward", path[1:], applyLayer(x, l.weight))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Backward(gctx, []*autograd.Variable{y.Mul(y).Sum()}); err != nil {
		t.Fatalf("%v: %v", names, err)
	}
	same := func(what string, got, want *tensor.Tensor) {
		t.Helper()
		if got == nil {
			t.Errorf("%v: %s has no gradient", names, what)
			return
		}
		g, _ := tensor.Data[float64](got)
		w, _ := tensor.Data[float64](want)
		for i := range w {
			if len(g) != len(w) || g[i]-w[i] > 1e-12 || w[i]-g[i] > 1e-12 {
				t.Errorf("%v: %s has gradient %v, want %v", names, what, g, w)
				return
			}
		}
	}
	same("x", c.Gradient(x), x.Grad())
	for name, w := range weights {
		far, err := rpc.Call[*tensor.Tensor](gctx, a, name, "layers.gradient", int64(c.ID()))
		if err != nil {
			t.Fatal(err)
		}
		same("the weight of "+name, far, w.Grad())
	}
}

// free waits until a Go worker holds no context.
func (l *layerOf) free(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); l.engine.Stats() != (distautograd.Stats{}) &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if s := l.engine.Stats(); s != (distautograd.Stats{}) {
		t.Errorf("a Go worker still holds %+v", s)
	}
}

// freed waits until no worker of a world holds a context.
func (w *running) freed(ctx context.Context, a *rpc.Agent) {
	w.t.Helper()
	for _, name := range w.order {
		n := -1
		for end := time.Now().Add(10 * time.Second); n != 0 && time.Now().Before(end); {
			var err error
			if n, err = rpc.Call[int](ctx, a, name, "layers.contexts"); err != nil {
				w.t.Fatal(err)
			}
		}
		if n != 0 {
			w.t.Errorf("%s still has %d contexts", name, n)
		}
	}
}

// TestAutogradChains runs chains of three workers, Go and PyTorch in every place and beginning everywhere, and back.
func TestAutogradChains(t *testing.T) {
	mixedChains(t, []string{"pgp", "gpg", "ppg", "ggp"}, func(name string, others []string) [][]string {
		swapped := []string{others[1], others[0]}
		// There and on, and back to where it began, and twice through all workers.
		return [][]string{
			others, swapped,
			{others[0], name, others[1]},
			append(slices.Clone(others), append([]string{name}, swapped...)...),
		}
	})
}

// TestAutogradRing runs rings of three workers, Go and PyTorch, that end where they begin: once around and three times. The
// calls are nested, so the result comes back through all workers, and the pass goes the same way.
func TestAutogradRing(t *testing.T) {
	mixedChains(t, []string{"gpg", "pgp"}, func(name string, others []string) [][]string {
		lap := append(slices.Clone(others), name)
		return [][]string{lap, slices.Repeat(lap, 3)}
	})
}

// mixedChains runs chains of layers in worlds of three workers, each a p for PyTorch or a g for Go. paths returns the ways that a
// worker's value takes; others are the workers that follow it around the world.
func mixedChains(t *testing.T, worlds []string, paths func(name string, others []string) [][]string) {
	t.Helper()
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, kinds := range worlds {
			t.Run(kinds, func(t *testing.T) {
				names := make([]string, len(kinds))
				for i, k := range kinds {
					names[i] = map[rune]string{'p': "py", 'g': "go"}[k] + strconv.Itoa(i)
				}
				others := func(i int) []string { return []string{names[(i+1)%3], names[(i+2)%3]} }
				var members []member
				engines := map[string]*layerOf{}
				for i, name := range names {
					if strings.HasPrefix(name, "go") {
						m, l := goLayer(name)
						engines[name] = l
						members = append(members, m)
						continue
					}
					var script strings.Builder
					script.WriteString("import layers\nfor i in range(3):\n")
					for _, path := range paths(name, others(i)) {
						fmt.Fprintf(&script, "    layers.check(%q, %s)\n", name, pyList(path))
					}
					members = append(members, torchWorker(name, script.String()))
				}
				w := start(t, tr, settings{modules: map[string]string{"layers": layers}}, members...)
				ctx := testContext(t)
				w.run()
				var last *rpc.Agent
				for i, name := range names {
					l := engines[name]
					if l == nil {
						continue
					}
					last = w.agents[name]
					for _, path := range paths(name, others(i)) {
						l.chain(ctx, t, last, path)
					}
				}
				w.freed(ctx, last)
				w.stop()
			})
		}
	})
}

func pyList(xs []string) string { return "['" + strings.Join(xs, "', '") + "']" }

// TestAutogradRefs runs passes from references to objects of the other side, and from fetched values.
func TestAutogradRefs(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m1, l1 := goLayer("go1")
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}}, torchWorker("py0", `
import layers
x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
layers.layer(x, layers.initial("go1")).sum().backward()
with dist_autograd.context() as cid:
    rref = rpc.remote("go1", layers.loss, args=(x,))
    for i in range(2):
        rref.backward(cid, retain_graph=True)
        assert torch.allclose(dist_autograd.get_gradients(cid)[x], x.grad * (i + 1), atol=1e-12)
with dist_autograd.context() as cid:
    fetched = rpc.remote("go1", layers.loss, args=(x,)).to_here()
    added = rpc.rpc_sync("go1", torch.add, args=(fetched, rpc.remote("go1", torch.mul, args=(x, x)).to_here()))
    dist_autograd.backward(cid, [added.sum()])
    assert torch.allclose(dist_autograd.get_gradients(cid)[x], 3 * x.grad + 2 * x, atol=1e-12)
del rref
`), m1)
		w.run()
		ctx := testContext(t)
		x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, -2, 0.5}, 3)))
		if err := applyLayer(x, initialWeight("py0")).Sum().Backward(ctx); err != nil {
			t.Fatal(err)
		}
		gctx, c, err := l1.engine.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := rpc.Remote[*autograd.Variable](gctx, w.agents["go1"], "py0", "layers.loss", x)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.BackwardRef(gctx, ref); err != nil {
			t.Fatal(err)
		}
		got, _ := tensor.Data[float64](c.Gradient(x))
		want, _ := tensor.Data[float64](x.Grad())
		for i := range want {
			if d := got[i] - want[i]; d > 1e-12 || d < -1e-12 {
				t.Errorf("gradient %v, want %v", got, want)
				break
			}
		}
		_ = ref.Close()
		_ = c.Close()
		w.freed(ctx, w.agents["go1"])
		w.stop()
	})
}
