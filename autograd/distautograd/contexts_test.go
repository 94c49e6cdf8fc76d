// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// Values without gradients are not recorded, but the context travels; a result may have gradients all the same.
func TestGraphWithoutGradients(t *testing.T) {
	reg, weight := models()
	ws := newWorld(t, 3, reg)
	plain := autograd.Constant(tensor.Must(tensor.From([]float64{1}, 1)))
	for _, created := range []bool{false, true} {
		ctx, c := ws[0].open(t)
		get := func(fn string, args ...any) *autograd.Variable {
			t.Helper()
			if !created {
				return call(ctx, t, ws[0], "w1", fn, args...)
			}
			v, err := remote(ctx, t, ws[0], "w1", fn, args...).Fetch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		get("t.mul", plain, plain)
		g := graphs(ws, c.ID())
		if len(g[0].Sends)+len(g[0].Recvs)+len(g[1].Sends)+len(g[1].Recvs) != 0 {
			t.Errorf("recorded: %+v", g)
		}
		if !slices.Equal(g[0].Known, []string{"w1"}) || !slices.Equal(g[1].Known, []string{"w0"}) {
			t.Errorf("the workers are not known: %+v", g)
		}
		v := get("m.weight", 7.0)
		backward(ctx, t, c, v.Mul(v).Sum())
		if got := gradientAt(ws[1], c.ID(), weight()); got == nil {
			t.Error("no gradient at the callee")
		} else if xs, _ := tensor.Data[float64](got); xs[0] != 14 {
			t.Errorf("the gradient at the callee is %v", xs)
		}
	}
}

// A handler may carry its context into goroutines of its own.
func TestContextInGoroutine(t *testing.T) {
	reg := basics().MustHandle("t.later", func(ctx context.Context, x *autograd.Variable) (*autograd.Variable, error) {
		type result struct {
			v   *autograd.Variable
			err error
		}
		done := make(chan result, 1)
		go func() {
			v, err := rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), "w2", "t.square", x)
			done <- result{v, err}
		}()
		r := <-done
		return r.v, r.err
	})
	ws := newWorld(t, 3, reg)
	ctx, c := ws[0].open(t)
	x := param(3)
	backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.later", x).Sum())
	wantGrad(t, c, x, 6)
}

func TestContextsOfOneWorker(t *testing.T) {
	ws := newWorld(t, 2, basics())
	seen := map[distautograd.ID]bool{}
	var last distautograd.ID
	for range 200 {
		_, c, err := ws[1].engine.Open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		id := c.ID()
		if int(id>>48) != int(ws[1].agent.ID()) || seen[id] || id <= last || ws[1].engine.Context(id) != c {
			t.Errorf("context %x after %x", int64(id), int64(last))
		}
		seen[id], last = true, id
		_ = c.Close()
		if ws[1].engine.Context(id) != nil {
			t.Error("a closed context is found")
		}
	}
}

func TestShapesAndTypes(t *testing.T) {
	ws := newWorld(t, 2, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16} {
			for _, shapes := range [][2][]int{{{3, 4, 2}, {3, 4, 2}}, {{4, 6}, {6}}, {{1}, {2, 3}}, {{}, {2}}} {
				x := autograd.Parameter(tensor.Must(tensor.Full(dt, 2.0, shapes[0]...)))
				y := autograd.Parameter(tensor.Must(tensor.Full(dt, 3.0, shapes[1]...)))
				ctx, c := ws[0].open(t)
				backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.mul", x, y).Sum(), opts...)
				if err := x.Mul(y).Sum().Backward(ctx); err != nil {
					t.Fatal(err)
				}
				for _, v := range []*autograd.Variable{x, y} {
					if g := c.Gradient(v); !closeTo(g, v.Grad()) || g.DType() != dt {
						t.Errorf("%v %v: gradient %v, want %v", dt, shapes, g, v.Grad())
					}
				}
			}
		}
	})
}

// Arguments that the result does not depend on get zeros over the wire, or none here.
func TestUnusedArguments(t *testing.T) {
	ws := newWorld(t, 2, basics().MustHandle("t.first", func(xs []*autograd.Variable) *autograd.Variable { return xs[0].Mul(xs[0]) }))
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x, y := param(2), param(3)
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.first", []*autograd.Variable{x, y}).Sum(), opts...)
		wantGrad(t, c, x, 4)
		wantGrad(t, c, y, 0)
	})
}

func TestScriptFunctions(t *testing.T) {
	ws := newWorld(t, 2, basics())
	ctx, c := ws[0].open(t)
	x := param(4)
	backward(ctx, t, c, call(ctx, t, ws[0], "w1", "__torch__.t.square", x).Sum())
	wantGrad(t, c, x, 8)
}

// Hooks of variables run, and may replace the gradient; what a hook after accumulation returns fails the pass.
func TestHooks(t *testing.T) {
	ws := newWorld(t, 2, basics())
	ctx, c := ws[0].open(t)
	x := param(3)
	after := 0
	if _, err := x.OnGrad(func(g *tensor.Tensor) (*tensor.Tensor, error) { return tensor.Full(g.DType(), 100.0, g.Shape()...) }); err != nil {
		t.Fatal(err)
	}
	if _, err := x.OnAccumulated(func(context.Context, *autograd.Pass, *autograd.Variable) error {
		if after++; after > 1 {
			return errors.New("enough")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	loss := call(ctx, t, ws[0], "w1", "t.square", x).Sum()
	backward(ctx, t, c, loss, distautograd.RetainGraph())
	wantGrad(t, c, x, 100)
	if err := c.Backward(ctx, []*autograd.Variable{loss}); err == nil || after != 2 {
		t.Errorf("a hook that fails: %v after %d", err, after)
	}
}

// kept is a function whose gradient is a tensor that the test knows.
type kept struct {
	failing
	grad *tensor.Tensor
}

func (k *kept) Backward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{k.grad}, nil
}

// A gradient is taken over without a copy, and a second one does not change the first.
func TestGradientsAreNotCopied(t *testing.T) {
	ws := newWorld(t, 1, basics())
	ctx, c := ws[0].open(t)
	x := param(3)
	k := &kept{grad: tensor.Must(tensor.From([]float64{5}, 1))}
	out, err := autograd.Apply(k, x)
	if err != nil {
		t.Fatal(err)
	}
	backward(ctx, t, c, out[0].Sum(), distautograd.RetainGraph())
	if c.Gradient(x) != k.grad {
		t.Error("the gradient was copied")
	}
	backward(ctx, t, c, out[0].Sum())
	wantGrad(t, c, x, 10)
	if xs, _ := tensor.Data[float64](k.grad); xs[0] != 5 {
		t.Errorf("the first gradient was changed to %v", xs)
	}
}

// A table of embeddings at another worker, looked up by numbers that have no gradient.
func TestRemoteEmbedding(t *testing.T) {
	table := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3, 4, 5, 6}, 3, 2)))
	ws := newWorld(t, 2, basics().MustHandle("t.embed", func(ids *tensor.Tensor) *autograd.Variable { return table.IndexSelect(ids) }))
	ctx, c := ws[0].open(t)
	y := call(ctx, t, ws[0], "w1", "t.embed", tensor.Must(tensor.From([]int64{2, 0, 2}, 3)))
	backward(ctx, t, c, y.Sum())
	want := tensor.Must(tensor.From([]float64{1, 1, 0, 0, 2, 2}, 3, 2))
	if got := gradientAt(ws[1], c.ID(), table); !closeTo(got, want) {
		t.Errorf("the gradient of the table is %v, want %v", got, want)
	}
}
