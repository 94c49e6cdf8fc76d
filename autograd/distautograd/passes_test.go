// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// Gradients are those of the same computation here, and Grad of the variables is left alone.
func TestBackwardSimple(t *testing.T) {
	worlds(t, 2, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		for name, fn := range map[string]string{"function": "s.add", "operator": addSchema, "script": "__torch__.s.add"} {
			t.Run(name, func(t *testing.T) {
				ways(t, func(t *testing.T, do doing) {
					t.Helper()
					modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
						t.Helper()
						for _, to := range []string{"w1", "w0"} {
							ctx, c := ws[0].open(t)
							x, y := k.param(1), k.param(2)
							loss := k.sum(do(ctx, to, fn, addArgs(fn, x, y)...))
							backward(ctx, t, c, loss, append(opts, distautograd.RetainGraph())...)
							if !x.GradValue().IsNone() || !y.GradValue().IsNone() {
								t.Fatal("the pass has changed Grad")
							}
							if err := k.sum(x.Add(y)).Backward(ctx); err != nil {
								t.Fatal(err)
							}
							wantLocal(t, c, x, y)
							before := x.GradValue()
							backward(ctx, t, c, loss, opts...)
							if x.GradValue() != before {
								t.Error("the second pass has changed Grad")
							}
							same(t, "Grad", before, k.ones(1))
							same(t, "x after two passes", c.GradientValue(x), k.ones(2))
						}
					})
				}, ws[0])
			})
		}
	})
}

// The variable is at its owner, and so is its gradient. Contexts of several workers do not meet there.
func TestGradientOfReference(t *testing.T) {
	kinds(t, func(t *testing.T, k kind) {
		t.Helper()
		reg, made := tensorHandlers(k)
		ws := newWorld(t, 4, reg)
		at := func(t *testing.T, from, callee, owner *worker) {
			t.Helper()
			ctx, c := from.open(t)
			y := k.param(2)
			ref := remote(ctx, t, from, owner.name(), "s.make", t.Name())
			fn, args := "s.refadd", []any{ref, y}
			if callee != owner {
				fn, args = "s.refvia", []any{owner.name(), ref, y}
			}
			v, err := remote(ctx, t, from, callee.name(), fn, args...).Fetch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			backward(ctx, t, c, k.sum(v))
			same(t, "at the caller", c.GradientValue(y), k.ones(1))
			at := owner.engine.Context(c.ID())
			same(t, "at the owner", at.GradientValue(made.of(t.Name())), k.ones(1))
			if all, err := at.Gradients(); err != nil || len(all) != 1 {
				t.Errorf("gradients at the owner: %v, %v", all, err) // none of other contexts
			}
		}
		t.Run("callee", func(t *testing.T) { at(t, ws[0], ws[1], ws[1]) })
		t.Run("nested", func(t *testing.T) { at(t, ws[0], ws[1], ws[2]) })
		t.Run("several", func(t *testing.T) {
			for _, from := range ws[1:] {
				t.Run(from.name(), func(t *testing.T) {
					t.Parallel()
					at(t, from, ws[0], ws[0])
				})
			}
		})
	})
}

// Every worker is a parameter server whose three trainers run passes at the same time: each has a context of its own there.
func TestParameterServers(t *testing.T) {
	kinds(t, func(t *testing.T, k kind) {
		t.Helper()
		const n = 4
		var ws []*worker
		reg, made := tensorHandlers(k)
		reg.MustHandle("s.train", func(ctx context.Context, fn string, ref *rpc.Ref[*autograd.Variable],
			y *autograd.Variable,
		) (int64, error) {
			defer func() { _ = ref.Close() }()
			agent := rpc.AgentFrom(ctx)
			ctx, c, err := ws[slices.IndexFunc(ws, func(w *worker) bool { return w.agent == agent })].engine.Open(ctx)
			if err != nil {
				return 0, err
			}
			t.Cleanup(func() { _ = c.Close() }) // the server looks at its gradients before
			v, err := rpc.Call[*autograd.Variable](ctx, agent, ref.Owner().Name, fn, ref, y)
			if err != nil {
				return 0, err
			}
			return int64(c.ID()), c.Backward(ctx, []*autograd.Variable{k.sum(v)})
		})
		ws = newWorld(t, n, reg)
		for name, fn := range map[string]string{"function": "s.refadd", "script": "__torch__.s.refadd"} {
			t.Run(name, func(t *testing.T) {
				ctx := testContext(t)
				futures := make([][]*cohort.Future[int64], n)
				for i, server := range ws {
					ref := remote(ctx, t, server, server.name(), "s.make", server.name())
					for away := 1; away < n; away++ {
						futures[i] = append(futures[i],
							rpc.Async[int64](ctx, server.agent, ws[(i+away)%n].name(), "s.train", fn, ref, k.param(2)))
					}
				}
				for i, server := range ws {
					for _, f := range futures[i] {
						id, err := rpc.Await(ctx, f)
						if err != nil {
							t.Fatal(err)
						}
						same(t, "at the server", server.engine.Context(distautograd.ID(id)).GradientValue(made.of(server.name())),
							k.ones(1))
					}
				}
			})
		}
	})
}

// Values go back and forth between workers, some without gradients.
func TestRoundTrips(t *testing.T) {
	local := func(fn string, args ...any) *autograd.Variable {
		if list, ok := args[0].([]*autograd.Variable); ok {
			return autograd.Stack(0, list...)
		}
		x, _ := args[0].(*autograd.Variable)
		y, _ := args[1].(*autograd.Variable)
		switch fn {
		case "t.mul":
			return x.Mul(y)
		case "s.matmul":
			return x.MatMul(y)
		}
		return x.Add(y)
	}
	worlds(t, 4, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		compute := func(vs []*autograd.Variable, do func(fn string, args ...any) *autograd.Variable) *autograd.Variable {
			val := do("t.mul", vs[2], do("s.add", vs[0], vs[1]))
			s1 := do("s.stack", []*autograd.Variable{vs[3], val})
			s2 := do("s.stack", []*autograd.Variable{vs[4], val})
			val = do(k.product, s1, s2)
			return k.sum(do(k.product, val, val))
		}
		ways(t, func(t *testing.T, do doing) {
			t.Helper()
			modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
				t.Helper()
				ctx, c := ws[0].open(t)
				vs := []*autograd.Variable{k.param(1), k.constant(1.25), k.param(1.5), k.constant(1.75), k.param(2)}
				if err := compute(vs, local).Backward(ctx); err != nil {
					t.Fatal(err)
				}
				next := 0
				loss := compute(vs, func(fn string, args ...any) *autograd.Variable {
					next = next%3 + 1
					return do(ctx, fmt.Sprintf("w%d", next), fn, args...)
				})
				backward(ctx, t, c, loss, opts...)
				wantLocal(t, c, vs...)
			})
		}, ws[0])
	})
}

// The gradient of a sum of two types has the type of its variable.
func TestMixedTypes(t *testing.T) {
	wide := func(v autograd.Value) *autograd.Variable {
		if v.Sparse != nil {
			s, err := sparseops.Convert(v.Sparse, tensor.Float64)
			if err != nil {
				t.Fatal(err)
			}
			return autograd.SparseParameter(s)
		}
		return autograd.Parameter(tensor.Must(tensorops.Convert(v.Dense, tensor.Float64)))
	}
	worlds(t, 2, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		ways(t, func(t *testing.T, do doing) {
			t.Helper()
			ctx, c := ws[0].open(t)
			x, y := k.param(1), wide(k.param(2).Value())
			got := do(ctx, "w1", "s.add", x, y)
			if got.DType() != tensor.Float64 {
				t.Errorf("the sum is %v", got.DType())
			}
			if err := k.sum(x.Add(y)).Backward(ctx); err != nil {
				t.Fatal(err)
			}
			backward(ctx, t, c, k.sum(got))
			wantLocal(t, c, x, y)
			if dt := c.GradientValue(x).DType(); dt != tensor.Float32 {
				t.Errorf("the gradient of a float32 is %v", dt)
			}
		}, ws[0])
	})
}

// A function that calls others: its gradients, and those of two passes through a nested call.
func TestNested(t *testing.T) {
	worlds(t, 3, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
			t.Helper()
			ctx, c := ws[0].open(t)
			x, y := k.param(1), k.param(2)
			t3, t4 := x.Mul(y), x.Add(y)
			if err := k.sum(x.Mul(y).Mul(t3).Mul(t4).Mul(t3.Add(t4))).Backward(ctx); err != nil {
				t.Fatal(err)
			}
			backward(ctx, t, c, k.sum(call(ctx, t, ws[0], "w1", "s.nested", "w2", x, y)), opts...)
			wantLocal(t, c, x, y)

			ctx, c = ws[0].open(t)
			loss := k.sum(call(ctx, t, ws[0], "w1", "s.via", []string{"w2"}, x, y))
			backward(ctx, t, c, loss, append(opts, distautograd.RetainGraph())...)
			backward(ctx, t, c, loss, opts...)
			same(t, "x after two passes", c.GradientValue(x), k.ones(2))
			same(t, "y after two passes", c.GradientValue(y), k.ones(2))
		})
	})
}

// Only what requires gradients where it came from requires them where it arrives.
func TestMixedGradients(t *testing.T) {
	worlds(t, 2, func(t *testing.T, k kind, ws []*worker) {
		t.Helper()
		ways(t, func(t *testing.T, do doing) {
			t.Helper()
			ctx, c := ws[0].open(t)
			x, y := k.param(1), k.constant(2)
			got := do(ctx, "w1", "s.mixed", x, y)
			same(t, "the product", got.Value(), x.Mul(y).Value())
			backward(ctx, t, c, k.sum(got))
			if all, err := c.Gradients(); err != nil || len(all) != 1 {
				t.Errorf("gradients %v, %v", all, err)
			}
			same(t, "x", c.GradientValue(x), y.Value())
		}, ws[0])
	})
}
