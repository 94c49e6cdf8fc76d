// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"flag"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// ringWeights are the weights of three workers: w0 multiplies by 2, w1 by 3, w2 by 5.
func ringWeights() map[string]*autograd.Variable {
	return map[string]*autograd.Variable{"w0": param(2), "w1": param(3), "w2": param(5)}
}

// rings is a registry with "r.hop", which multiplies by the worker's weight and goes on along a path: by a call, or by an object
// that is made there and fetched.
func rings(weights map[string]*autograd.Variable) *rpc.Registry {
	return basics().MustHandle("r.hop", func(ctx context.Context, path []string, created bool,
		x *autograd.Variable,
	) (*autograd.Variable, error) {
		self := rpc.AgentFrom(ctx)
		y := x.Mul(weights[self.Name()])
		if len(path) == 0 {
			return y, y.Err()
		}
		if !created {
			return rpc.Call[*autograd.Variable](ctx, self, path[0], "r.hop", path[1:], created, y)
		}
		ref, err := rpc.Remote[*autograd.Variable](ctx, self, path[0], "r.hop", path[1:], created, y)
		if err != nil {
			return nil, err
		}
		defer func() { _ = ref.Close() }()
		return ref.Fetch(ctx)
	})
}

// TestRing: a value goes around a ring of three workers, back to where it began, once and several times; the calls are nested,
// so the result comes back through everybody. The pass goes around the same ring. All three workers begin one at the same
// time, each in a context of its own.
func TestRing(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		for _, created := range []bool{false, true} {
			for _, laps := range []int{1, 3} {
				weights := ringWeights()
				ws := newWorld(t, 3, rings(weights))
				var all sync.WaitGroup
				for first := range ws {
					ctx, c := ws[first].open(t)
					all.Go(func() { ringFrom(ctx, t, ws, first, laps, created, c, weights, opts) })
				}
				all.Wait()
			}
		}
	})
}

func ringFrom(ctx context.Context, t *testing.T, ws []*worker, first, laps int, created bool, c *distautograd.Context,
	weights map[string]*autograd.Variable, opts []distautograd.PassOption,
) {
	t.Helper()
	var path []string
	for i := range 3 * laps {
		path = append(path, ws[(first+1+i)%3].name()) // the last one is the first
	}
	x := param(1)
	y, err := rpc.Call[*autograd.Variable](ctx, ws[first].agent, path[0], "r.hop", path[1:], created, x)
	if err != nil {
		t.Errorf("%v: %v", path, err)
		return
	}
	if err := c.Backward(ctx, []*autograd.Variable{y.Sum()}, opts...); err != nil {
		t.Errorf("%v: %v", path, err)
		return
	}
	product := math.Pow(30, float64(laps))
	wantGrad(t, c, x, product)
	for i, weight := range []float64{2, 3, 5} {
		got := gradientAt(ws[i], c.ID(), weights[ws[i].name()])
		want := tensor.Must(tensor.From([]float64{float64(laps) * product / weight}, 1))
		if !closeTo(got, want) {
			t.Errorf("%v: the gradient at %s is %v, want %v", path, ws[i].name(), got, want)
		}
	}
	if g := ws[first].engine.Context(c.ID()).Graph(); len(g.Sends) != 2*laps || !slices.Contains(g.Known, path[0]) {
		t.Errorf("%v: recorded %+v", path, g)
	}
}

var contexts = flag.Int("distautograd.contexts", 500, "how many contexts TestManyContexts opens one after the other")

// TestManyContexts opens and closes contexts over three workers: memory does not grow with their number. "make memory" runs it with ten
// thousand.
func TestManyContexts(t *testing.T) {
	ws := newWorld(t, 3, basics())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	one := func() {
		gctx, c, err := ws[0].engine.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x := param(3)
		backward(gctx, t, c, call(gctx, t, ws[0], "w1", "t.via", []string{"w2"}, x).Sum())
		wantGrad(t, c, x, 18)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	rest := func() int64 {
		for _, w := range ws {
			w.noLeak(t)
		}
		return testkit.HeapBytes()
	}
	for range 200 {
		one()
	}
	before := rest()
	n := max(*contexts, 400) - 200
	for range n {
		one()
	}
	if grown := rest() - before; grown > 2<<20 {
		t.Errorf("%d bytes more after %d contexts", grown, n)
	}
	t.Logf("count: contexts of Go worlds: %d", n+200)
}

// TestThousandContexts has a thousand contexts open at once, and a pass in each of them at the same time. What they hold is given back.
func TestThousandContexts(t *testing.T) {
	const n, length = 1000, 2048 // more than fifty megabytes
	ws := newWorld(t, 3, basics())
	base := testContext(t)
	before := testkit.HeapBytes()
	func() {
		type opened struct {
			ctx  context.Context //nolint:containedctx // of the context
			c    *distautograd.Context
			x, y *autograd.Variable
		}
		all := make([]opened, n)
		for i := range all {
			ctx, c, err := ws[i%3].engine.Open(base)
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Parameter(tensor.Must(tensor.Full(tensor.Float64, float64(i), length)))
			all[i] = opened{ctx, c, x, call(ctx, t, ws[i%3], ws[(i+1)%3].name(), "t.via", []string{ws[(i+2)%3].name()}, x)}
		}
		for _, w := range ws {
			if s := w.engine.Stats(); s.Contexts != n {
				t.Errorf("%s has %+v", w.name(), s)
			}
		}
		passes := make(chan error, n)
		for _, o := range all {
			go func() { passes <- o.c.Backward(o.ctx, []*autograd.Variable{o.y.Sum()}) }()
		}
		for range n {
			if err := <-passes; err != nil {
				t.Fatal(err)
			}
		}
		for i, o := range all {
			want, err := tensor.Full(tensor.Float64, 6*float64(i), length)
			if err != nil || !tensor.Equal(o.c.Gradient(o.x), want) {
				t.Fatalf("context %d has gradient %v, %v", i, o.c.Gradient(o.x), err)
			}
			if err := o.c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}()
	for _, w := range ws {
		w.noLeak(t)
	}
	if grown := testkit.HeapBytes() - before; grown > 8<<20 {
		t.Errorf("%d bytes are left", grown)
	}
}
