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

const addSchema = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"

// graphs returns what each worker has recorded in a context.
func graphs(ws []*worker, id distautograd.ID) []distautograd.Graph {
	all := make([]distautograd.Graph, len(ws))
	for i, w := range ws {
		if c := w.engine.Context(id); c != nil {
			all[i] = c.Graph()
		}
	}
	return all
}

// A call is a send and a receive function at the caller and at the callee; a creation has its results fetched.
func TestGraphOfCalls(t *testing.T) {
	ws := newWorld(t, 2, basics())
	for name, fn := range map[string]string{"function": "t.mul", "operator": addSchema} {
		for how, fetched := range map[string]bool{"call": false, "remote": true} {
			t.Run(name+" "+how, func(t *testing.T) {
				ctx, c := ws[0].open(t)
				x, y := param(1), param(2)
				args := []any{x, y}
				if fn == addSchema {
					args = append(args, 1)
				}
				if fetched {
					if _, err := remote(ctx, t, ws[0], "w1", fn, args...).Fetch(ctx); err != nil {
						t.Fatal(err)
					}
				} else {
					call(ctx, t, ws[0], "w1", fn, args...)
				}
				g := graphs(ws, c.ID())
				for i := range g {
					if len(g[i].Sends) != 1 || len(g[i].Recvs) != 1 {
						t.Fatalf("w%d has recorded %+v", i, g[i])
					}
				}
				if g[0].Edges[0] != 2 || g[1].Edges[0] != 1 || len(g[0].Reach[0]) != 0 || !slices.Equal(g[1].Reach[0], []int{0}) {
					t.Errorf("%+v", g)
				}
				if g[0].Sends[0] != g[1].Recvs[0] || g[1].Sends[0] != g[0].Recvs[0] {
					t.Errorf("the functions do not match: %+v", g)
				}
			})
		}
	}
}

// A nested call has two of each at the worker in between, and one that comes back to where it began has two there.
func TestGraphOfNestedCalls(t *testing.T) {
	ws := newWorld(t, 3, basics())
	for _, created := range []bool{false, true} {
		ctx, c := ws[0].open(t)
		via := func(path []string) {
			if !created {
				call(ctx, t, ws[0], "w1", "t.via", path, param(1))
			} else if _, err := remote(ctx, t, ws[0], "w1", "t.via", path, param(1)).Fetch(ctx); err != nil {
				t.Fatal(err)
			}
		}
		via([]string{"w2"})
		g := graphs(ws, c.ID())
		if len(g[0].Sends) != 1 || len(g[0].Recvs) != 1 || len(g[1].Sends) != 2 || len(g[1].Recvs) != 2 || len(g[2].Sends) != 1 || len(g[2].Recvs) != 1 {
			t.Errorf("%+v", g)
		}
		// Of the two at w1 each leads to the one that came before it.
		if !slices.Equal(g[1].Known, []string{"w0", "w2"}) || len(g[1].Reach[0]) != 1 || len(g[1].Reach[1]) != 1 || g[1].Reach[0][0] == g[1].Reach[1][0] {
			t.Errorf("%+v", g[1])
		}
		ctx, c = ws[0].open(t)
		via([]string{"w0"})
		g = graphs(ws, c.ID())
		if len(g[0].Sends) != 2 || len(g[0].Recvs) != 2 || len(g[1].Sends) != 2 || len(g[1].Recvs) != 2 {
			t.Errorf("%+v", g)
		}
	}
}

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

// Of a list only the values that require gradients have edges, in order.
func TestGraphOfLists(t *testing.T) {
	reg := basics().
		MustHandle("t.sum", func(xs []*autograd.Variable) *autograd.Variable {
			y := xs[0]
			for _, x := range xs[1:] {
				y = y.Mul(x)
			}
			return y
		}).
		MustHandle("t.flags", func(x, y *autograd.Variable) []bool { return []bool{x.RequiresGrad(), y.RequiresGrad()} })
	ws := newWorld(t, 2, reg)
	for _, created := range []bool{false, true} {
		ctx, c := ws[0].open(t)
		var list []*autograd.Variable
		want := map[int]float64{}
		for i := range 10 {
			v := param(float64(i + 1))
			if i%3 == 0 {
				v = v.Detach()
			} else {
				want[i] = 3628800 / float64(i+1)
			}
			list = append(list, v)
		}
		var y *autograd.Variable
		var err error
		if created {
			y, err = remote(ctx, t, ws[0], "w1", "t.sum", list).Fetch(ctx)
		} else {
			y, err = rpc.Call[*autograd.Variable](ctx, ws[0].agent, "w1", "t.sum", list)
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := c.Graph(); g.Edges[0] != len(want) {
			t.Errorf("%+v", g)
		}
		backward(ctx, t, c, y.Sum())
		for i, v := range list {
			if x, has := want[i]; has {
				wantGrad(t, c, v, x)
			} else {
				wantGrad(t, c, v)
			}
		}
		flags, err := rpc.Call[[]bool](ctx, ws[0].agent, "w1", "t.flags", list[1], list[0])
		if err != nil || !slices.Equal(flags, []bool{true, false}) {
			t.Errorf("the callee sees %v, %v", flags, err)
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
