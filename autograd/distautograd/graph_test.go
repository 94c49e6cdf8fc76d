// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
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

// addArgs are the arguments of a sum, by a function of the program or by the operator.
func addArgs(fn string, x, y *autograd.Variable) []any {
	if fn == addSchema {
		return []any{x, y, 1}
	}
	return []any{x, y}
}

// The functions of a call at both workers, which leaves the send function leads to, and where the result comes from.
func TestGraphOfCalls(t *testing.T) {
	worlds(t, 2, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		for name, fn := range map[string]string{"function": "s.add", "operator": addSchema} {
			t.Run(name, func(t *testing.T) {
				ways(t, func(t *testing.T, do doing) {
					t.Helper()
					ctx, c := ws[0].open(t)
					x, y := k.param(1), k.param(2)
					ret := do(ctx, "w1", fn, addArgs(fn, x, y)...)
					g := graphs(ws, c.ID())
					for i := range g {
						if len(g[i].Sends) != 1 || len(g[i].Recvs) != 1 {
							t.Fatalf("w%d has recorded %+v", i, g[i])
						}
					}
					if g[0].Sends[0] != g[1].Recvs[0] || g[1].Sends[0] != g[0].Recvs[0] || !slices.Equal(g[1].Reach[0], []int{0}) {
						t.Errorf("the functions do not match: %+v", g)
					}
					if !slices.Equal(g[0].Leaves[0], []*autograd.Variable{x, y}) || len(g[0].Reach[0]) != 0 {
						t.Errorf("the send function leads to %v", g[0].Leaves[0])
					}
					if g[1].Edges[0] != 1 || g[0].RecvNodes[0] != ret.Edge().Node {
						t.Errorf("the result %v comes from %v, not from the receive function", ret, ret.Edge().Node)
					}
					same(t, "the sum", ret.Value(), x.Add(y).Value())
				}, ws[0])
			})
		}
	})
}

// A nested call has two functions of each at the workers in between, and one that comes back to where it began has two there.
func TestGraphOfNestedCalls(t *testing.T) {
	worlds(t, 4, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		// Two values go on from the receive function of the worker before, and one comes back.
		between := func(t *testing.T, g distautograd.Graph, known ...string) {
			t.Helper()
			on, back := slices.Index(g.Edges, 2), slices.Index(g.Edges, 1)
			if len(g.Sends) != 2 || len(g.Recvs) != 2 || on < 0 || back < 0 || len(g.Reach[on]) != 1 || len(g.Reach[back]) != 1 ||
				g.Reach[on][0] == g.Reach[back][0] {
				t.Errorf("in between: %+v", g)
			}
			if !slices.Equal(g.Known, known) {
				t.Errorf("known are %v, want %v", g.Known, known)
			}
		}
		ways(t, func(t *testing.T, do doing) {
			t.Helper()
			ctx, c := ws[0].open(t)
			x, y := k.param(1), k.param(2)
			ret := do(ctx, "w1", "s.via", []string{"w2", "w3"}, x, y)
			g := graphs(ws, c.ID())
			if len(g[0].Sends) != 1 || len(g[0].Recvs) != 1 || !slices.Equal(g[0].Leaves[0], []*autograd.Variable{x, y}) ||
				g[0].RecvNodes[0] != ret.Edge().Node {
				t.Errorf("at the caller: %+v", g[0])
			}
			between(t, g[1], "w0", "w2")
			between(t, g[2], "w0", "w1", "w3") // the opener is always known
			if len(g[3].Sends) != 1 || len(g[3].Recvs) != 1 || g[3].Edges[0] != 1 || !slices.Equal(g[3].Reach[0], []int{0}) {
				t.Errorf("at the last: %+v", g[3])
			}

			ctx, c = ws[0].open(t)
			ret = do(ctx, "w1", "s.via", []string{"w0"}, x, y)
			g = graphs(ws, c.ID())
			between(t, g[1], "w0")
			// Here are the call with its result, and the sum with what it was computed from.
			called, summed := slices.Index(g[0].Edges, 2), slices.Index(g[0].Edges, 1)
			if len(g[0].Sends) != 2 || len(g[0].Recvs) != 2 || called < 0 || summed < 0 || len(g[0].Reach[summed]) != 1 {
				t.Fatalf("at both ends: %+v", g[0])
			}
			result := slices.Index(g[0].RecvNodes, ret.Edge().Node)
			if !slices.Equal(g[0].Leaves[called], []*autograd.Variable{x, y}) || result < 0 || g[0].Reach[summed][0] != 1-result {
				t.Errorf("at both ends: %+v, the result comes from receive function %d", g[0], result)
			}
		}, ws[0])
	})
}

// Nothing is recorded for values without gradients, but the context is known, and is cleaned up.
func TestWithoutGradients(t *testing.T) {
	worlds(t, 3, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		plain := k.constant(1)
		ways(t, func(t *testing.T, do doing) {
			t.Helper()
			for _, fn := range []string{"s.add", addSchema} {
				ctx, c := ws[0].open(t)
				got := do(ctx, "w1", fn, addArgs(fn, plain, plain)...)
				same(t, "the sum", got.Value(), plain.Add(plain).Value())
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
	})
}

// The workers of a context are known from the first call on, whether values have gradients or not.
func TestWorkersAreKnown(t *testing.T) {
	reg, _ := tensorHandlers(dense)
	ws := newWorld(t, 4, reg)
	ctx, c := ws[0].open(t)
	all := []string{"w1", "w2", "w3"}
	for _, v := range []*autograd.Variable{dense.constant(1), dense.param(1)} {
		for _, to := range all {
			call(ctx, t, ws[0], to, "s.add", v, v)
		}
		g := graphs(ws, c.ID())
		if !slices.Equal(g[0].Known, all) {
			t.Errorf("known are %v, want %v", g[0].Known, all)
		}
		for i := range all {
			if !slices.Equal(g[i+1].Known, []string{"w0"}) {
				t.Errorf("at w%d known are %v", i+1, g[i+1].Known)
			}
		}
	}
}

// A context ends everywhere when it is closed, whatever was sent in it.
func TestContextsEnd(t *testing.T) {
	worlds(t, 3, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		all := func(send func(to string)) {
			for _, w := range ws[1:] {
				send(w.name())
			}
		}
		for name, send := range map[string]func(ctx context.Context){
			"with gradients": func(ctx context.Context) {
				all(func(to string) { call(ctx, t, ws[0], to, addSchema, k.param(1), k.param(2), 1) })
			},
			"without gradients": func(ctx context.Context) {
				all(func(to string) { call(ctx, t, ws[0], to, "s.add", k.constant(1), k.constant(2)) })
			},
			"no tensors": func(ctx context.Context) {
				all(func(to string) {
					if _, err := rpc.Call[int64](ctx, ws[0].agent, to, "t.context"); err != nil {
						t.Error(err)
					}
				})
			},
			"nested": func(ctx context.Context) {
				call(ctx, t, ws[0], "w1", "s.via", []string{"w2"}, k.param(1), k.param(2))
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
	})
}

// Of a list those that require gradients have edges, in order, and the result is that of the same computation here.
func TestGraphOfLists(t *testing.T) {
	worlds(t, 2, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		ways(t, func(t *testing.T, do doing) {
			t.Helper()
			ctx, c := ws[0].open(t)
			var list, leaves []*autograd.Variable
			for i := range 10 {
				v := k.constant(float64(i))
				if i%2 == 0 {
					v = k.param(float64(i))
					leaves = append(leaves, v)
				}
				list = append(list, v)
			}
			got, want := do(ctx, "w1", "s.stack", list), autograd.Stack(0, list...)
			same(t, "the stack", got.Value(), want.Value())
			g := c.Graph()
			if !slices.Equal(g.Leaves[0], leaves) || !slices.Equal(g.Known, []string{"w1"}) {
				t.Errorf("%+v", g)
			}
			if err := k.sum(want).Backward(ctx); err != nil {
				t.Fatal(err)
			}
			backward(ctx, t, c, k.sum(got))
			wantLocal(t, c, list...)
		}, ws[0])
	})
}
