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

// A result may have gradients although no argument has.
func TestGradientOfResultOnly(t *testing.T) {
	reg, weight := models()
	ws := newWorld(t, 2, reg)
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		ctx, c := ws[0].open(t)
		v := do(ctx, "w1", "m.weight", 7.0)
		backward(ctx, t, c, v.Mul(v).Sum())
		at := ws[1].engine.Context(c.ID())
		wantGrad(t, at, weight(), 14)
		if all, err := at.Gradients(); err != nil || len(all) != 1 {
			t.Errorf("gradients at the callee: %v, %v", all, err)
		}
		if all, err := c.Gradients(); err != nil || len(all) != 0 {
			t.Errorf("gradients at the caller: %v, %v", all, err)
		}
	}, ws[0])
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

// A value is created outside of a context and is not there yet when it is fetched in one: it takes part all the same.
func TestSlowReference(t *testing.T) {
	goOn, weight := make(chan struct{}), param(7)
	ws := newWorld(t, 2, basics().MustHandle("m.slow", func() *autograd.Variable {
		<-goOn
		return weight
	}))
	ref := remote(testContext(t), t, ws[0], "w1", "m.slow")
	ctx, c := ws[0].open(t)
	fetched := make(chan error, 1)
	var v *autograd.Variable
	go func() {
		var err error
		v, err = ref.Fetch(ctx)
		fetched <- err
	}()
	if !eventually(func() bool { return ws[1].engine.Context(c.ID()) != nil }) { // the fetch is there
		t.Error("w1 has not seen the context")
	}
	close(goOn)
	if err := <-fetched; err != nil {
		t.Fatal(err)
	}
	backward(ctx, t, c, v.Mul(v).Sum())
	wantGrad(t, ws[1].engine.Context(c.ID()), weight, 14)
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

// Products of matrices of different shapes, with parts of results as arguments, and many in one function.
func TestMatrices(t *testing.T) {
	type variable = *autograd.Variable
	product := func(xs []variable) variable {
		y := xs[0]
		for _, x := range xs[1:] {
			y = y.MatMul(x)
		}
		return y
	}
	linear := func(x, w variable) variable { return x.MatMul(w.Transpose(0, 1)) }
	many := func(xs []variable) variable {
		t3 := linear(xs[0], xs[1])
		t4 := linear(xs[1], t3)
		return product([]variable{xs[0], xs[1], t3, t4, linear(t3, t4)})
	}
	stack := func(xs []variable) variable { return autograd.Stack(0, xs...) }
	functions := map[string]func([]variable) variable{"x.product": product, "x.many": many, "x.stack": stack}
	reg := basics()
	for name, f := range functions {
		reg.MustHandle(name, f)
	}
	ws := newWorld(t, 4, reg)
	values := func(shape ...int) *tensor.Tensor {
		x := make([]float64, shape[0]*shape[1])
		for i := range x {
			x[i] = 0.1 + float64(i*7%11)/10
		}
		return tensor.Must(tensor.From(x, shape...))
	}
	p := func(shape ...int) variable { return autograd.Parameter(values(shape...)) }
	type doing = func(fn string, xs ...variable) variable
	for name, test := range map[string]struct {
		leaves  []variable
		compute func(do doing, v []variable) variable
	}{
		"shapes": {
			[]variable{p(4, 6), autograd.Constant(values(6, 5)), p(5, 7), autograd.Constant(values(7, 9))},
			func(do doing, v []variable) variable {
				return do("x.product", do("x.product", v[0], v[1]), v[2], v[3])
			},
		},
		"one function": {[]variable{p(3, 3), p(3, 3)}, func(do doing, v []variable) variable { return do("x.many", v...) }},
		"parts": {[]variable{p(3, 3), p(3, 3), p(3, 3)}, func(do doing, v []variable) variable { // the second is not used
			s := do("x.stack", v...)
			return do("x.product", s.Slice(0, 0, 1, 1), s.Slice(0, 2, 3, 1))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			if err := test.compute(func(fn string, xs ...variable) variable { return functions[fn](xs) },
				test.leaves).Sum().Backward(ctx); err != nil {
				t.Fatal(err)
			}
			ways(t, func(t *testing.T, far func(ctx context.Context, to, fn string, args ...any) variable) {
				t.Helper()
				modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
					t.Helper()
					ctx, c := ws[0].open(t)
					next := 0
					loss := test.compute(func(fn string, xs ...variable) variable {
						next = next%3 + 1
						return far(ctx, ws[next].name(), fn, xs)
					}, test.leaves).Sum()
					backward(ctx, t, c, loss, opts...)
					wantLocal(t, c, test.leaves...)
				})
			}, ws[0])
		})
	}
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
	if _, err := x.OnGrad(func(g *tensor.Tensor) (*tensor.Tensor, error) {
		return tensor.Full(g.DType(), 100.0, g.Shape()...)
	}); err != nil {
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

	// All hooks after accumulation run, once for a variable that was used twice, when its gradient is complete.
	ctx, c = ws[0].open(t)
	y, calls := param(3), 0
	for _, n := range []int{1, 2, 4} {
		if _, err := y.OnAccumulated(func(context.Context, *autograd.Pass, *autograd.Variable) error {
			calls += n
			wantGrad(t, c, y, 2)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	backward(ctx, t, c, y.Add(y).Sum())
	if all, err := c.Gradients(); err != nil || len(all) != 1 || calls != 7 {
		t.Errorf("gradients %v, %v; hooks called: %b", all, err, calls)
	}
}

// kept is a function whose gradient is a tensor that the test knows.
type kept struct {
	failing
	grad *tensor.Tensor
}

func (k *kept) Backward(_ *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return slices.Repeat([]*tensor.Tensor{k.grad}, len(grads)), nil
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

	// Two variables that are given one tensor: a sum for one of them changes neither the other one's nor the tensor.
	for _, shared := range []*tensor.Tensor{
		tensor.Must(tensor.From([]float64{5, 5, 5}, 3)),
		tensor.Must(tensor.Must(tensor.From([]float64{5}, 1)).Expand(3)),
	} {
		ctx, c := ws[0].open(t)
		y, z := param(1, 2, 3), param(4, 5, 6)
		if out, err = autograd.Apply(&kept{grad: shared}, y, z); err != nil {
			t.Fatal(err)
		}
		loss := out[0].Add(out[1]).Sum()
		backward(ctx, t, c, loss, distautograd.RetainGraph())
		backward(ctx, t, c, z.Sum())
		wantGrad(t, c, y, 5, 5, 5)
		wantGrad(t, c, z, 6, 6, 6)
		backward(ctx, t, c, loss)
		wantGrad(t, c, y, 10, 10, 10)
		wantGrad(t, c, z, 11, 11, 11)
		if xs, _ := tensor.Copy[float64](shared); !slices.Equal(xs, []float64{5, 5, 5}) {
			t.Errorf("what both were given was changed to %v", xs)
		}
	}
}

// A table of embeddings at another worker, looked up by numbers that have no gradient: bags of rows, with weights that have one.
// The sparse gradients of two passes add up.
func TestRemoteEmbedding(t *testing.T) {
	table := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3, 4, 5, 6}, 3, 2)))
	bags := func(ids *tensor.Tensor, weights *autograd.Variable) *autograd.Variable {
		return autograd.SparseEmbedding(table, autograd.Constant(ids), -1).Mul(weights).Sum(1)
	}
	ws := newWorld(t, 2, basics().MustHandle("t.bags", bags))
	ctx, c := ws[0].open(t)
	ids := tensor.Must(tensor.From([]int64{2, 0, 2, 2}, 2, 2))
	weights := autograd.Parameter(tensor.Must(tensor.From([]float64{0.5, 2, 3, 4}, 2, 2, 1)))
	far, near := call(ctx, t, ws[0], "w1", "t.bags", ids, weights).Sum(), bags(ids, weights).Sum()
	for range 2 {
		backward(ctx, t, c, far, distautograd.RetainGraph())
		if err := near.Backward(ctx, autograd.RetainGraph()); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "the weights", c.GradientValue(weights), weights.GradValue())
	got, want := ws[1].engine.Context(c.ID()).GradientValue(table), tensor.Must(tensor.From([]float64{4, 4, 0, 0, 15, 15}, 3, 2))
	same(t, "the table", got, table.GradValue())
	if sum, err := got.ToDense(); err != nil || !closeTo(sum, want) {
		t.Errorf("the gradient of the table is %v, %v, want %v", sum, err, want)
	}
}

// A worker that takes the place of another with its id, also within the same second, gives its contexts numbers that
// the other has not used.
func TestNumbersOfAFormerWorker(t *testing.T) {
	used := map[distautograd.ID]bool{}
	for range 5 {
		_, c := newWorld(t, 2, basics())[0].open(t)
		if used[c.ID()] {
			t.Fatalf("the context %d of a former worker is opened again", c.ID())
		}
		used[c.ID()] = true
	}
}
