// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// TestRandomGraphs computes random expressions over several workers, and on one: the gradients are the same.
func TestRandomGraphs(t *testing.T) {
	const workers = 4
	var weights sync.Map // one per worker, for the handlers: what orders these is a socket, which the race detector does not see
	weight := func(name string) *autograd.Variable {
		v, _ := weights.Load(name)
		w, _ := v.(*autograd.Variable)
		return w
	}
	reg := rpc.NewRegistry().MustHandle("r.op", func(ctx context.Context, op int, path []string,
		xs []*autograd.Variable,
	) (*autograd.Variable, error) {
		self := rpc.AgentFrom(ctx)
		if len(path) > 0 {
			y, err := rpc.Call[*autograd.Variable](ctx, self, path[0], "r.op", op, path[1:], xs)
			if err != nil {
				return nil, err
			}
			return y.Add(weight(self.Name())), nil
		}
		return compute(op, weight(self.Name()), xs), nil
	})
	ws := newWorld(t, workers, reg)
	for seed := range seeds.Range(120) {
		rng := rand.New(rand.NewPCG(seed, 7))
		random := func() *autograd.Variable {
			return param(rng.Float64()*2-1, rng.Float64()*2-1, rng.Float64()*2-1)
		}
		for _, w := range ws {
			weights.Store(w.name(), random())
		}
		inputs := []*autograd.Variable{random(), random(), random().Detach()}
		ctx, c, err := ws[0].engine.Open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		// The same values twice: over workers, and here alone.
		spread, alone := append([]*autograd.Variable{}, inputs...), append([]*autograd.Variable{}, inputs...)
		for range 2 + rng.IntN(6) {
			op := rng.IntN(4)
			var xs, ys []*autograd.Variable
			for range 1 + rng.IntN(3) {
				k := rng.IntN(len(spread))
				xs, ys = append(xs, spread[k]), append(ys, alone[k])
			}
			path := make([]string, 1+rng.IntN(3))
			for i := range path {
				path[i] = ws[rng.IntN(workers)].name()
			}
			far, err := rpc.Call[*autograd.Variable](ctx, ws[0].agent, path[0], "r.op", op, path[1:], xs)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			near := compute(op, weight(path[len(path)-1]), ys)
			for _, name := range path[:len(path)-1] {
				near = near.Add(weight(name))
			}
			spread, alone = append(spread, far), append(alone, near)
		}
		// The last value and some others enter the loss: of the rest no gradient comes.
		loss, same := spread[len(spread)-1].Sum(), alone[len(alone)-1].Sum()
		for range rng.IntN(3) {
			k := rng.IntN(len(spread))
			loss, same = loss.Add(spread[k].Sum()), same.Add(alone[k].Sum())
		}
		if err := c.Backward(ctx, []*autograd.Variable{loss}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := same.Backward(ctx); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, x := range inputs {
			if !closeTo(c.Gradient(x), x.Grad()) {
				t.Errorf("seed %d: input %d has gradient %v, alone %v", seed, i, c.Gradient(x), x.Grad())
			}
		}
		for _, w := range ws {
			v := weight(w.name())
			got := gradientAt(w, c.ID(), v)
			if got == nil && v.Grad() != nil && isZero(v.Grad()) {
				continue
			}
			if !closeTo(got, v.Grad()) && (v.Grad() != nil || !isZero(got)) {
				t.Errorf("seed %d: the weight of %s has gradient %v, alone %v", seed, w.name(), got, v.Grad())
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}

func isZero(t *tensor.Tensor) bool {
	xs, err := tensor.Data[float64](t)
	for _, x := range xs {
		if x != 0 {
			return false
		}
	}
	return err == nil
}

func compute(op int, w *autograd.Variable, xs []*autograd.Variable) *autograd.Variable {
	y := xs[0].Mul(w)
	for _, x := range xs[1:] {
		switch op {
		case 0:
			y = y.Mul(x)
		case 1:
			y = y.Add(x).Tanh()
		case 2:
			y = y.Sub(x.Mul(x))
		default:
			y = x.Sigmoid().Mul(y)
		}
	}
	return y
}

// gradientAt returns a gradient of a worker in this process.
func gradientAt(w *worker, id distautograd.ID, v *autograd.Variable) *tensor.Tensor {
	c := w.engine.Context(id)
	if c == nil {
		return nil
	}
	return c.Gradient(v)
}
