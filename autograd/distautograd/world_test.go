// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// worker is a worker of a test's world.
type worker struct {
	engine *distautograd.Engine
	agent  *rpc.Agent
	closed bool
}

func (w *worker) name() string { return w.agent.Name() }

// liveness bounds what has to happen within a second, on a busy machine.
const liveness = 5 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // many tests run at once, on a slow machine too
	t.Cleanup(cancel)
	return ctx
}

// newWorld starts n workers, over TCP. When the test ends nothing of its contexts may be left anywhere.
func newWorld(t *testing.T, n int, reg *rpc.Registry, opts ...distautograd.Option) []*worker {
	t.Helper()
	return newWorldWith(t, n, []rpc.Option{rpc.WithHandlers(reg)}, opts...)
}

// newWorldWith is newWorld with other options of the agents.
func newWorldWith(t *testing.T, n int, agents []rpc.Option, opts ...distautograd.Option) []*worker {
	t.Helper()
	ctx := testContext(t)
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	workers := make([]*worker, n)
	for i := range workers {
		e := distautograd.New(opts...)
		a, err := rpc.Join(ctx, st, fmt.Sprintf("w%d", i),
			append([]rpc.Option{rpc.WithAddr("127.0.0.1:0"), operators.Serve(), e.Join()}, agents...)...)
		if err != nil {
			t.Fatal(err)
		}
		workers[i] = &worker{engine: e, agent: a}
	}
	t.Cleanup(func() {
		for _, w := range workers {
			w.noLeak(t)
		}
		for _, w := range workers {
			_ = w.agent.Close()
		}
	})
	return workers
}

// noLeak waits until the worker holds no context, and nothing of one.
func (w *worker) noLeak(t *testing.T) {
	t.Helper()
	if !eventually(func() bool { return w.closed || w.engine.Stats() == distautograd.Stats{} }) {
		t.Errorf("%s still holds %+v", w.name(), w.engine.Stats())
	}
}

// eventually reports whether something holds soon.
func eventually(holds func() bool) bool {
	for end := time.Now().Add(2 * liveness); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if holds() {
			return true
		}
	}
	return holds()
}

// open opens a context and closes it when the test ends.
func (w *worker) open(t *testing.T) (context.Context, *distautograd.Context) {
	t.Helper()
	ctx, c, err := w.engine.Open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, c
}

func call(ctx context.Context, t *testing.T, w *worker, to, fn string, args ...any) *autograd.Variable {
	t.Helper()
	v, err := rpc.Call[*autograd.Variable](ctx, w.agent, to, fn, args...)
	if err != nil {
		t.Fatalf("%s at %s: %v", fn, to, err)
	}
	return v
}

func param(values ...float64) *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.From(values, len(values))))
}

func backward(ctx context.Context, t *testing.T, c *distautograd.Context, root *autograd.Variable, opts ...distautograd.PassOption) {
	t.Helper()
	if err := c.Backward(ctx, []*autograd.Variable{root}, opts...); err != nil {
		t.Fatal(err)
	}
}

// wantGrad checks the gradient of a leaf; no values mean that it has none.
func wantGrad(t *testing.T, c *distautograd.Context, v *autograd.Variable, want ...float64) {
	t.Helper()
	got := c.Gradient(v)
	if got == nil || len(want) == 0 {
		if got != nil || len(want) > 0 {
			t.Errorf("gradient %v, want %v", got, want)
		}
		return
	}
	values, err := tensor.Copy[float64](got)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range values {
		if len(values) != len(want) || x != want[i] {
			t.Errorf("gradient %v, want %v", values, want)
			return
		}
	}
}

// modes runs a test in both modes of a pass.
func modes(t *testing.T, f func(t *testing.T, opts ...distautograd.PassOption)) {
	t.Helper()
	t.Run("smart", func(t *testing.T) { f(t) })
	t.Run("fast", func(t *testing.T) { f(t, distautograd.Fast()) })
}

// closeTo compares two gradients.
func closeTo(a, b *tensor.Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, err1 := tensorops.Convert(a, tensor.Float64)
	y, err2 := tensorops.Convert(b, tensor.Float64)
	if err1 != nil || err2 != nil || !x.SameShape(y) {
		return false
	}
	xs, _ := tensor.Data[float64](x)
	ys, _ := tensor.Data[float64](y)
	for i := range xs {
		if d := xs[i] - ys[i]; d > 1e-9 || d < -1e-9 {
			return false
		}
	}
	return true
}
