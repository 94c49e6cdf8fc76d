// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coo"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// The tests of this file are those of PyTorch with sparse tensors (dist_autograd_test.py, names ending in _sparse).

// matrix is the sparse tensor of PyTorch's tests.
func matrix() *tensor.Sparse {
	return &tensor.Sparse{
		Shape: []int{3, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 1, 2, 0, 2}, 2, 3)), Values: tensor.Must(tensor.From([]float32{3.2, 4.1, 5.3})),
	}
}

func sparseParam() *autograd.Variable { return autograd.SparseParameter(matrix()) }

// sameSparse compares two sparse tensors as PyTorch's tests do: coalesced, indices and values.
func sameSparse(t *testing.T, what string, got, want autograd.Value) {
	t.Helper()
	if got.Sparse == nil || want.Sparse == nil {
		t.Errorf("%s: %v, want %v, both sparse", what, got, want)
		return
	}
	x, err := coo.Coalesce(got.Sparse)
	if err != nil {
		t.Fatal(err)
	}
	y, err := coo.Coalesce(want.Sparse)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x.Shape, y.Shape) || x.Values.DType() != y.Values.DType() || !tensor.Equal(x.Indices, y.Indices) || !tensor.AllClose(x.Values, y.Values, 1.3e-6, 1e-5, false) {
		t.Errorf("%s: %v, want %v", what, x, y)
	}
}

// ones are the gradients of the sum of matrices: n at their places.
func ones(t *testing.T, n float64) autograd.Value {
	t.Helper()
	s, err := coo.Map(matrix(), func(v *tensor.Tensor) (*tensor.Tensor, error) { return tensor.Full(v.DType(), n, v.Shape()...) })
	if err != nil {
		t.Fatal(err)
	}
	return autograd.Value{Sparse: s}
}

// owned are the variables that handlers of a world have made, by the worker.
type owned struct {
	sync.Mutex

	last map[string]*autograd.Variable
}

func (o *owned) of(worker string) *autograd.Variable {
	o.Lock()
	defer o.Unlock()
	return o.last[worker]
}

func sparseHandlers() (*rpc.Registry, *owned) {
	type variable = *autograd.Variable
	o := &owned{last: map[string]variable{}}
	add := func(x, y variable) variable { return x.Add(y) }
	reg := basics().
		MustHandle("s.add", add).
		MustHandle("__torch__.s.add", add).
		MustHandle("s.stack", func(xs []variable) variable { return autograd.Stack(0, xs...) }).
		MustHandle("s.mixed", func(x, y variable) variable {
			if y.RequiresGrad() {
				return x.Sub(y)
			}
			return x.Mul(y)
		}).
		MustHandle("s.via", func(ctx context.Context, path []string, x, y variable) (variable, error) {
			if len(path) == 1 {
				return rpc.Call[variable](ctx, rpc.AgentFrom(ctx), path[0], "s.add", x, y)
			}
			return rpc.Call[variable](ctx, rpc.AgentFrom(ctx), path[0], "s.via", path[1:], x, y)
		}).
		MustHandle("s.nested", func(ctx context.Context, to string, x, y variable) (variable, error) {
			t3, t4 := x.Mul(y), x.Add(y)
			res, err := rpc.Call[variable](ctx, rpc.AgentFrom(ctx), to, "s.add", t3, t4)
			if err != nil {
				return nil, err
			}
			return x.Mul(y).Mul(t3).Mul(t4).Mul(res), nil
		}).
		MustHandle("s.make", func(ctx context.Context) variable {
			o.Lock()
			defer o.Unlock()
			v := sparseParam()
			o.last[rpc.AgentFrom(ctx).Name()] = v
			return v
		}).
		MustHandle("s.refadd", func(ctx context.Context, ref *rpc.Ref[variable], y variable) (variable, error) {
			defer func() { _ = ref.Close() }()
			x, err := ref.LocalValue(ctx)
			if err != nil {
				return nil, err
			}
			return x.Add(y), nil
		}).
		MustHandle("s.refvia", func(ctx context.Context, owner string, ref *rpc.Ref[variable], y variable) (variable, error) {
			defer func() { _ = ref.Close() }()
			return rpc.Call[variable](ctx, rpc.AgentFrom(ctx), owner, "s.refadd", ref, y)
		})
	return reg, o
}

// ways are how a function can be called.
func ways(t *testing.T, f func(t *testing.T, do func(ctx context.Context, to, fn string, args ...any) *autograd.Variable), from *worker) {
	t.Helper()
	t.Run("call", func(t *testing.T) {
		f(t, func(ctx context.Context, to, fn string, args ...any) *autograd.Variable {
			t.Helper()
			return call(ctx, t, from, to, fn, args...)
		})
	})
	t.Run("async", func(t *testing.T) {
		f(t, func(ctx context.Context, to, fn string, args ...any) *autograd.Variable {
			t.Helper()
			v, err := rpc.Await(ctx, rpc.Async[*autograd.Variable](ctx, from.agent, to, fn, args...))
			if err != nil {
				t.Fatal(err)
			}
			return v
		})
	})
	t.Run("remote", func(t *testing.T) {
		f(t, func(ctx context.Context, to, fn string, args ...any) *autograd.Variable {
			t.Helper()
			v, err := remote(ctx, t, from, to, fn, args...).Fetch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return v
		})
	})
}

type doing = func(ctx context.Context, to, fn string, args ...any) *autograd.Variable

// The functions of a call at both workers, which leaves the send function leads to, and where the result comes from.
func TestSparseGraphOfCalls(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg)
	for name, fn := range map[string]string{"function": "s.add", "operator": addSchema} {
		t.Run(name, func(t *testing.T) {
			ways(t, func(t *testing.T, do doing) {
				t.Helper()
				ctx, c := ws[0].open(t)
				x, y := sparseParam(), sparseParam()
				args := []any{x, y}
				if fn == addSchema {
					args = append(args, 1)
				}
				ret := do(ctx, "w1", fn, args...)
				g := graphs(ws, c.ID())
				for i := range g {
					if len(g[i].Sends) != 1 || len(g[i].Recvs) != 1 {
						t.Fatalf("w%d has recorded %+v", i, g[i])
					}
				}
				if g[0].Sends[0] != g[1].Recvs[0] || g[1].Sends[0] != g[0].Recvs[0] || !slices.Equal(g[1].Reach[0], []int{0}) {
					t.Errorf("the functions do not match: %+v", g)
				}
				if !slices.Equal(g[0].Leaves[0], []*autograd.Variable{x, y}) {
					t.Errorf("the send function leads to %v", g[0].Leaves[0])
				}
				if g[1].Edges[0] != 1 || g[0].RecvNodes[0] != ret.Edge().Node || ret.Value().Sparse == nil {
					t.Errorf("the result %v comes from %v, not from the receive function", ret, ret.Edge().Node)
				}
			}, ws[0])
		})
	}
}

func TestSparseGraphOfNestedCalls(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 4, reg)
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x, y := sparseParam(), sparseParam()
		ret := do(ctx, "w1", "s.via", []string{"w2", "w3"}, x, y)
		g := graphs(ws, c.ID())
		for i, n := range []int{1, 2, 2, 1} {
			if len(g[i].Sends) != n || len(g[i].Recvs) != n {
				t.Fatalf("w%d has recorded %+v", i, g[i])
			}
		}
		if !slices.Equal(g[0].Leaves[0], []*autograd.Variable{x, y}) || g[0].RecvNodes[0] != ret.Edge().Node {
			t.Errorf("%+v", g[0])
		}
		for _, between := range g[1:3] { // two values go on from the receive function, and one comes back
			if edges := slices.Sorted(slices.Values(between.Edges)); !slices.Equal(edges, []int{1, 2}) || between.Reach[0][0] == between.Reach[1][0] {
				t.Errorf("%+v", between)
			}
		}
		if g[3].Edges[0] != 1 || !slices.Equal(g[3].Reach[0], []int{0}) {
			t.Errorf("%+v", g[3])
		}

		ctx, c = ws[0].open(t)
		do(ctx, "w1", "s.via", []string{"w0"}, x, y)
		g = graphs(ws, c.ID())
		if len(g[0].Sends) != 2 || len(g[0].Recvs) != 2 || len(g[1].Sends) != 2 || len(g[1].Recvs) != 2 {
			t.Errorf("%+v", g[:2])
		}
	}, ws[0])
}

// Nothing is recorded for values without gradients, but the context is known, and is cleaned up.
func TestSparseWithoutGradients(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 3, reg)
	plain := autograd.SparseConstant(matrix())
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		for _, fn := range []string{"s.add", addSchema} {
			ctx, c := ws[0].open(t)
			args := []any{plain, plain}
			if fn == addSchema {
				args = append(args, 1)
			}
			got := do(ctx, "w1", fn, args...)
			sameSparse(t, "the sum", got.Value(), plain.Add(plain).Value())
			if got.RequiresGrad() {
				t.Error("the sum requires gradients")
			}
			call(ctx, t, ws[0], "w1", "s.add", plain, plain) // a function of the program always carries the context
			g := graphs(ws, c.ID())
			if len(g[0].Sends)+len(g[0].Recvs)+len(g[1].Sends)+len(g[1].Recvs) != 0 {
				t.Errorf("recorded: %+v", g)
			}
			if ws[1].engine.Context(c.ID()) == nil {
				t.Error("the callee does not know the context")
			}
		}
	}, ws[0])
}

// A context ends everywhere when it is closed, whatever was sent in it.
func TestSparseContextsEnd(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 3, reg)
	for name, send := range map[string]func(ctx context.Context){
		"with gradients": func(ctx context.Context) {
			for _, to := range []string{"w1", "w2"} {
				call(ctx, t, ws[0], to, addSchema, sparseParam(), sparseParam(), 1)
			}
		},
		"without gradients": func(ctx context.Context) {
			for _, to := range []string{"w1", "w2"} {
				call(ctx, t, ws[0], to, "s.add", autograd.SparseConstant(matrix()), autograd.SparseConstant(matrix()))
			}
		},
		"nested": func(ctx context.Context) {
			call(ctx, t, ws[0], "w1", "s.via", []string{"w2"}, sparseParam(), sparseParam())
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, c, err := ws[0].engine.Open(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			send(ctx)
			for i, w := range ws {
				if w.engine.Context(c.ID()) == nil {
					t.Errorf("w%d does not know the context", i)
				}
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if ws[0].engine.Context(c.ID()) != nil {
				t.Error("the context is still here")
			}
			for i, w := range ws {
				if !eventually(func() bool { return w.engine.Context(c.ID()) == nil }) {
					t.Errorf("w%d still has the context", i)
				}
			}
		})
	}
}

// Of a list those that require gradients have edges, in order, and the result is that of the same computation here.
func TestSparseLists(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg)
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		ctx, c := ws[0].open(t)
		var list, leaves []*autograd.Variable
		for i := range 10 {
			v := autograd.SparseConstant(matrix())
			if i%2 == 0 {
				v = sparseParam()
				leaves = append(leaves, v)
			}
			list = append(list, v)
		}
		got := do(ctx, "w1", "s.stack", list)
		sameSparse(t, "the stack", got.Value(), autograd.Stack(0, list...).Value())
		g := c.Graph()
		if !slices.Equal(g.Leaves[0], leaves) || !slices.Equal(g.Known, []string{"w1"}) {
			t.Errorf("%+v", g)
		}
		backward(ctx, t, c, got.SparseSum())
		for _, v := range list {
			if v.RequiresGrad() {
				sameSparse(t, "a gradient", c.GradientValue(v), ones(t, 1))
			} else if !c.GradientValue(v).IsNone() {
				t.Errorf("gradient %v of a constant", c.GradientValue(v))
			}
		}
	}, ws[0])
}

// Gradients are those of the same computation here, and Grad of the variables is left alone.
func TestSparseBackward(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg)
	for name, fn := range map[string]string{"function": "s.add", "operator": addSchema, "script": "__torch__.s.add"} {
		t.Run(name, func(t *testing.T) {
			ways(t, func(t *testing.T, do doing) {
				t.Helper()
				modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
					t.Helper()
					for _, to := range []string{"w1", "w0"} {
						ctx, c := ws[0].open(t)
						x, y := sparseParam(), sparseParam()
						args := []any{x, y}
						if fn == addSchema {
							args = append(args, 1)
						}
						loss := do(ctx, to, fn, args...).SparseSum()
						backward(ctx, t, c, loss, append(opts, distautograd.RetainGraph())...)
						if !x.GradValue().IsNone() || !y.GradValue().IsNone() {
							t.Fatal("the pass has changed Grad")
						}
						if err := x.Add(y).SparseSum().Backward(ctx); err != nil {
							t.Fatal(err)
						}
						before := x.GradValue()
						sameSparse(t, "x", c.GradientValue(x), before)
						sameSparse(t, "y", c.GradientValue(y), y.GradValue())
						all, err := c.Gradients()
						if err != nil || len(all) != 2 {
							t.Errorf("gradients %v, %v", all, err)
						}
						backward(ctx, t, c, loss, opts...)
						if x.GradValue() != before {
							t.Error("the second pass has changed Grad")
						}
						sameSparse(t, "x after two passes", c.GradientValue(x), ones(t, 2))
					}
				})
			}, ws[0])
		})
	}
}

// The variable is at its owner, and so is its gradient. Contexts of several workers do not meet there.
func TestSparseGradientAtOwner(t *testing.T) {
	reg, made := sparseHandlers()
	ws := newWorld(t, 4, reg)
	at := func(t *testing.T, from *worker, callee, owner string) {
		t.Helper()
		ctx, c := from.open(t)
		y := sparseParam()
		ref := remote(ctx, t, from, owner, "s.make")
		var v *autograd.Variable
		var err error
		if callee == owner {
			v, err = remote(ctx, t, from, callee, "s.refadd", ref, y).Fetch(ctx)
		} else {
			v, err = remote(ctx, t, from, callee, "s.refvia", owner, ref, y).Fetch(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		backward(ctx, t, c, v.SparseSum())
		sameSparse(t, "at the caller", c.GradientValue(y), ones(t, 1))
		for _, w := range ws {
			if w.name() == owner {
				sameSparse(t, "at the owner", w.engine.Context(c.ID()).GradientValue(made.of(owner)), ones(t, 1))
			}
		}
	}
	t.Run("callee", func(t *testing.T) { at(t, ws[0], "w1", "w1") })
	t.Run("nested", func(t *testing.T) { at(t, ws[0], "w1", "w2") })
	t.Run("several", func(t *testing.T) {
		for i := 1; i < 4; i++ {
			at(t, ws[i], "w0", "w0")
		}
	})
}

// Every worker is a parameter server whose three trainers run passes at the same time: each has a context of its own there.
func TestSparseParameterServers(t *testing.T) {
	const n = 4
	var ws []*worker
	reg, made := sparseHandlers()
	reg.MustHandle("s.train", func(ctx context.Context, ref *rpc.Ref[*autograd.Variable], y *autograd.Variable) (int64, error) {
		defer func() { _ = ref.Close() }()
		agent := rpc.AgentFrom(ctx)
		ctx, c, err := ws[slices.IndexFunc(ws, func(w *worker) bool { return w.agent == agent })].engine.Open(ctx)
		if err != nil {
			return 0, err
		}
		t.Cleanup(func() { _ = c.Close() }) // the server looks at its gradients before
		v, err := rpc.Call[*autograd.Variable](ctx, agent, ref.Owner().Name, "s.refadd", ref, y)
		if err != nil {
			return 0, err
		}
		return int64(c.ID()), c.Backward(ctx, []*autograd.Variable{v.SparseSum()})
	})
	ws = newWorld(t, n, reg)
	ctx := testContext(t)
	futures := make([][]*dist.Future[int64], n)
	for i, server := range ws {
		ref := remote(ctx, t, server, server.name(), "s.make")
		for away := 1; away < n; away++ {
			futures[i] = append(futures[i], rpc.Async[int64](ctx, server.agent, ws[(i+away)%n].name(), "s.train", ref, sparseParam()))
		}
	}
	for i, server := range ws {
		for _, f := range futures[i] {
			id, err := rpc.Await(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			sameSparse(t, "at the server", server.engine.Context(distautograd.ID(id)).GradientValue(made.of(server.name())), ones(t, 1))
		}
	}
}

// Values go back and forth between workers, some without gradients.
func TestSparseRoundTrips(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 4, reg)
	compute := func(t1, t2, t3, t4, t5 *autograd.Variable, do func(fn string, args ...any) *autograd.Variable) *autograd.Variable {
		val := do("t.mul", t3, do("s.add", t1, t2))
		s1 := do("s.stack", []*autograd.Variable{t4, val})
		s2 := do("s.stack", []*autograd.Variable{t5, val})
		val = do("t.mul", s1, s2)
		return do("t.mul", val, val).SparseSum()
	}
	local := func(fn string, args ...any) *autograd.Variable {
		if list, ok := args[0].([]*autograd.Variable); ok {
			return autograd.Stack(0, list...)
		}
		x, _ := args[0].(*autograd.Variable)
		y, _ := args[1].(*autograd.Variable)
		if fn == "t.mul" {
			return x.Mul(y)
		}
		return x.Add(y)
	}
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
			t.Helper()
			ctx, c := ws[0].open(t)
			vs := []*autograd.Variable{sparseParam(), autograd.SparseConstant(matrix()), sparseParam(), autograd.SparseConstant(matrix()), sparseParam()}
			if err := compute(vs[0], vs[1], vs[2], vs[3], vs[4], local).Backward(ctx); err != nil {
				t.Fatal(err)
			}
			next := 0
			loss := compute(vs[0], vs[1], vs[2], vs[3], vs[4], func(fn string, args ...any) *autograd.Variable {
				next = next%3 + 1
				return do(ctx, fmt.Sprintf("w%d", next), fn, args...)
			})
			backward(ctx, t, c, loss, opts...)
			for i, v := range vs {
				if v.RequiresGrad() {
					sameSparse(t, fmt.Sprintf("t%d", i+1), c.GradientValue(v), v.GradValue())
				} else if !c.GradientValue(v).IsNone() {
					t.Errorf("t%d, a constant, has a gradient", i+1)
				}
			}
		})
	}, ws[0])
}

// The gradient of a sum of two types has the type of its variable.
func TestSparseTypes(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg)
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		ctx, c := ws[0].open(t)
		wide, err := coo.Convert(matrix(), tensor.Float64)
		if err != nil {
			t.Fatal(err)
		}
		x, y := sparseParam(), autograd.SparseParameter(wide)
		got := do(ctx, "w1", "s.add", x, y)
		if got.DType() != tensor.Float64 {
			t.Errorf("the sum is %v", got.DType())
		}
		if err := x.Add(y).SparseSum().Backward(ctx); err != nil {
			t.Fatal(err)
		}
		backward(ctx, t, c, got.SparseSum())
		sameSparse(t, "float32", c.GradientValue(x), x.GradValue())
		sameSparse(t, "float64", c.GradientValue(y), y.GradValue())
	}, ws[0])
}

// A function that calls others: its gradients, and those of two passes through a nested call.
func TestSparseNested(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 3, reg)
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x, y := sparseParam(), sparseParam()
		t3, t4 := x.Mul(y), x.Add(y)
		if err := x.Mul(y).Mul(t3).Mul(t4).Mul(t3.Add(t4)).SparseSum().Backward(ctx); err != nil {
			t.Fatal(err)
		}
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "s.nested", "w2", x, y).SparseSum(), opts...)
		sameSparse(t, "x", c.GradientValue(x), x.GradValue())
		sameSparse(t, "y", c.GradientValue(y), y.GradValue())

		ctx, c = ws[0].open(t)
		loss := call(ctx, t, ws[0], "w1", "s.via", []string{"w2"}, x, y).SparseSum()
		backward(ctx, t, c, loss, append(opts, distautograd.RetainGraph())...)
		backward(ctx, t, c, loss, opts...)
		sameSparse(t, "x after two passes", c.GradientValue(x), ones(t, 2))
	})
}

// Only what requires gradients where it came from requires them where it arrives.
func TestSparseMixed(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg)
	ways(t, func(t *testing.T, do doing) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x, y := sparseParam(), autograd.SparseConstant(matrix())
		got := do(ctx, "w1", "s.mixed", x, y)
		sameSparse(t, "the product", got.Value(), x.Mul(y).Value())
		backward(ctx, t, c, got.SparseSum())
		if all, err := c.Gradients(); err != nil || len(all) != 1 {
			t.Errorf("gradients %v, %v", all, err)
		}
		sameSparse(t, "x", c.GradientValue(x), y.Value())
	}, ws[0])
}

// What the result does not depend on gets zeros over the wire: a sparse tensor without values.
func TestSparseUnusedArguments(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg.MustHandle("s.first", func(xs []*autograd.Variable) *autograd.Variable { return xs[0].Add(xs[0]) }))
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x, y := sparseParam(), sparseParam()
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "s.first", []*autograd.Variable{x, y}).SparseSum(), opts...)
		sameSparse(t, "x", c.GradientValue(x), ones(t, 2))
		zeros, err := y.Value().ZerosLike()
		if err != nil {
			t.Fatal(err)
		}
		sameSparse(t, "y", c.GradientValue(y), zeros)
	})
}

func TestSparseManyPasses(t *testing.T) {
	reg, _ := sparseHandlers()
	ws := newWorld(t, 2, reg)
	ctx, c := ws[0].open(t)
	x, y := sparseParam(), sparseParam()
	loss := call(ctx, t, ws[0], "w1", addSchema, x, y, 1).SparseSum()
	for range 1000 {
		backward(ctx, t, c, loss, distautograd.RetainGraph())
	}
	sameSparse(t, "x", c.GradientValue(x), ones(t, 1000))
	sameSparse(t, "y", c.GradientValue(y), ones(t, 1000))
}

// passed hands gradients on as they are, and keeps them.
type passed struct {
	failing
	grads []autograd.Value
	then  *tensor.Sparse // is returned instead, for all inputs
}

func (p *passed) ForwardValues(*autograd.Context, []autograd.Value) ([]autograd.Value, error) {
	return nil, errors.New("not called: all inputs are dense")
}

func (p *passed) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in[:1], nil
}

func (p *passed) BackwardValues(c *autograd.Context, grads []autograd.Value) ([]autograd.Value, error) {
	p.grads = append(p.grads, grads[0])
	if p.then != nil {
		return []autograd.Value{{Sparse: p.then}, {Sparse: p.then}}, nil
	}
	return grads, nil
}

// A sparse gradient is taken over without a copy, though others hold its parts, and further passes do not change what was handed
// over; that of two variables is none that the other one's sums change.
func TestSparseGradientsAreNotCopied(t *testing.T) {
	ws := newWorld(t, 1, basics())
	ids := autograd.Constant(tensor.Must(tensor.From([]int64{1, 2, 4, 5, 4, 3, 2, 9}, 8)))
	table := func() *autograd.Variable {
		return autograd.Parameter(tensor.Must(tensor.Full(tensor.Float32, 0.5, 10, 3)))
	}
	ctx, c := ws[0].open(t)
	a, p := table(), &passed{}
	out, err := autograd.Apply(p, a)
	if err != nil {
		t.Fatal(err)
	}
	loss := autograd.SparseEmbedding(out[0], ids, -1).Sum()
	backward(ctx, t, c, loss, distautograd.RetainGraph())
	first := p.grads[0].Sparse
	indices, values := first.Indices, first.Values
	if got := c.GradientValue(a).Sparse; got == nil || got.Values != values || got.Indices != indices {
		t.Error("the gradient was copied")
	}
	for range 10 {
		backward(ctx, t, c, loss, distautograd.RetainGraph())
	}
	sum, err := c.GradientValue(a).ToDense()
	if err != nil || !tensor.Equal(tensor.Must(sum.Select(0, 2)), tensor.Must(tensor.Full(tensor.Float32, 22.0, 3))) {
		t.Errorf("after eleven passes the gradient is %v, %v", sum, err)
	}
	if x, _ := tensor.Copy[float32](values); slices.ContainsFunc(x, func(v float32) bool { return v != 1 }) {
		t.Errorf("the first gradient was changed to %v", x)
	}

	ctx, c = ws[0].open(t)
	b := table()
	index := tensor.Must(tensor.Must(tensor.From([]int64{1}, 1, 1)).Expand(1, 8))
	value := tensor.Must(tensor.Must(tensor.From([]float32{1, 2, 3}, 1, 3)).Expand(8, 3))
	p = &passed{then: &tensor.Sparse{Shape: []int{10, 3}, Indices: index, Values: value}}
	if out, err = autograd.Apply(p, a, b); err != nil {
		t.Fatal(err)
	}
	loss = autograd.SparseEmbedding(out[0], ids, -1).Sum()
	backward(ctx, t, c, loss, distautograd.RetainGraph())
	for range 10 {
		backward(ctx, t, c, loss, distautograd.RetainGraph())
	}
	for _, v := range []*autograd.Variable{a, b} {
		sum, err := c.GradientValue(v).ToDense()
		if err != nil || !tensor.Equal(tensor.Must(sum.Select(0, 1)), tensor.Must(tensor.From([]float32{88, 176, 264}))) {
			t.Errorf("after eleven passes the gradient is %v, %v", sum, err)
		}
	}
	if x, _ := tensor.Copy[float32](value); !slices.Equal(x[:3], []float32{1, 2, 3}) {
		t.Errorf("the gradient that was handed over was changed to %v", x)
	}
}
