// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
)

// models is a registry whose "m.weight" makes an object: a parameter of the worker that is asked. weight returns the last one.
func models() (reg *rpc.Registry, weight func() *autograd.Variable) {
	var mu sync.Mutex
	var last *autograd.Variable
	reg = basics().
		MustHandle("m.weight", func(x float64) *autograd.Variable {
			mu.Lock()
			defer mu.Unlock()
			last = param(x)
			return last
		}).
		MustHandle("m.apply", func(ctx context.Context, w *rpc.Ref[*autograd.Variable], x *autograd.Variable) (*autograd.Variable, error) {
			defer func() { _ = w.Close() }()
			v, err := w.Fetch(ctx)
			if err != nil {
				return nil, err
			}
			return v.Mul(x), nil
		}).
		MustHandle("m.grad", func(ctx context.Context) (float64, error) {
			mu.Lock()
			defer mu.Unlock()
			g := distautograd.From(ctx).Gradient(last)
			if g == nil {
				return 0, errors.New("no gradient")
			}
			v := autograd.Constant(g).Sum()
			return v.Item(), v.Err()
		})
	return reg, func() *autograd.Variable {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

func remote(ctx context.Context, t *testing.T, w *worker, to, fn string, args ...any) *rpc.Ref[*autograd.Variable] {
	t.Helper()
	ref, err := rpc.Remote[*autograd.Variable](ctx, w.agent, to, fn, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ref.Close() })
	return ref
}

// The gradient of a value behind a reference is at its owner, no matter which worker uses it.
func TestGradientAtOwner(t *testing.T) {
	reg, _ := models()
	ws := newWorld(t, 3, reg)
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		w := remote(testContext(t), t, ws[0], "w1", "m.weight", 4.0)
		x := param(3)
		y := call(ctx, t, ws[0], "w2", "m.apply", w, x) // w2 fetches it from w1
		z, err := w.Fetch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		backward(ctx, t, c, y.Add(z.Mul(z)).Sum(), opts...)
		wantGrad(t, c, x, 4)
		if got, err := rpc.Call[float64](ctx, ws[0].agent, "w1", "m.grad"); err != nil || got != 3+8 {
			t.Errorf("the gradient at the owner is %v, %v", got, err)
		}
		if got, err := rpc.Call[float64](ctx, ws[0].agent, "w2", "m.grad"); err == nil {
			t.Errorf("w2 has a gradient %v", got)
		}
	})
}

func TestBackwardRef(t *testing.T) {
	reg, _ := models()
	ws := newWorld(t, 3, reg)
	for _, to := range []string{"w1", "w0"} {
		ctx, c := ws[0].open(t)
		x := param(3)
		loss := remote(ctx, t, ws[0], to, "t.via", []string{"w2"}, x) // 3 x²
		for i := range 2 {
			if err := c.BackwardRef(ctx, loss, distautograd.RetainGraph()); err != nil {
				t.Fatal(err)
			}
			wantGrad(t, c, x, 18*float64(i+1))
		}
		leaf := remote(ctx, t, ws[0], to, "m.weight", 1.0)
		if err := c.BackwardRef(ctx, leaf); err == nil || !strings.Contains(err.Error(), "leaf") {
			t.Errorf("from a leaf: %v", err)
		}
		for want, from := range map[string]*autograd.Variable{"requires_grad not set": param(3).Detach(), "not a scalar": param(3, 4)} {
			if err := c.BackwardRef(ctx, remote(ctx, t, ws[0], to, "t.square", from)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", want, err)
			}
		}
		number, err := rpc.Remote[int64](ctx, ws[0].agent, to, "t.context")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.BackwardRef(ctx, number); err == nil || !strings.Contains(err.Error(), "RRef should contain a tensor") {
			t.Errorf("from a number: %v", err)
		}
		_ = number.Close()
	}
	// The owner must know the context.
	base := testContext(t)
	loss := remote(base, t, ws[0], "w1", "t.square", param(1))
	_, c := ws[0].open(t)
	if err := c.BackwardRef(base, loss); err == nil || !strings.Contains(err.Error(), "could not find autograd context") {
		t.Errorf("in a context that the owner does not know: %v", err)
	}
	if err := c.BackwardRef(base, nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("from no reference: %v", err)
	}
}

// Several workers train through the same one at once: gradients of different contexts do not mix.
func TestContextsAtOnce(t *testing.T) {
	ws := newWorld(t, 4, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		var wg sync.WaitGroup
		for i, w := range ws[1:] {
			for k := range 10 {
				wg.Go(func() {
					ctx, c, err := w.engine.Open(testContext(t))
					if err != nil {
						t.Error(err)
						return
					}
					defer func() { _ = c.Close() }()
					x := param(float64(1 + i*10 + k))
					y, err := rpc.Call[*autograd.Variable](ctx, w.agent, "w0", "t.via", []string{"w1", "w2"}, x)
					if err == nil {
						err = c.Backward(ctx, []*autograd.Variable{y.Sum()}, opts...)
					}
					if err != nil {
						t.Error(err)
						return
					}
					wantGrad(t, c, x, 9*2*float64(1+i*10+k))
				})
			}
		}
		wg.Wait()
	})
}

// Several passes in one context at once, begun by different workers.
func TestPassesAtOnce(t *testing.T) {
	ws := newWorld(t, 3, basics())
	ctx, c := ws[0].open(t)
	x := param(2)
	loss := call(ctx, t, ws[0], "w1", "t.via", []string{"w2"}, x).Sum()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := c.Backward(ctx, []*autograd.Variable{loss}, distautograd.RetainGraph()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantGrad(t, c, x, 20*3*4)
}
