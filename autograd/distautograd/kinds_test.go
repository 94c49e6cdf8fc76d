// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// PyTorch runs most of its tests of distributed autograd twice, with dense and with sparse tensors. So do the tests that use kinds.

// kind is a kind of tensors.
type kind struct {
	param, constant func(scale float64) *autograd.Variable
	sum             func(*autograd.Variable) *autograd.Variable
	ones            func(n float64) autograd.Value // n times the gradient of the sum
	product         string                         // the function for products of stacks
}

var dense = kind{
	param:    func(scale float64) *autograd.Variable { return autograd.Parameter(full(scale)) },
	constant: func(scale float64) *autograd.Variable { return autograd.Constant(full(scale)) },
	sum:      func(v *autograd.Variable) *autograd.Variable { return v.Sum() },
	ones: func(n float64) autograd.Value {
		return autograd.Value{Dense: tensor.Must(tensor.Full(tensor.Float32, n, 3, 3))}
	},
	product: "s.matmul",
}

var sparse = kind{
	param:    func(scale float64) *autograd.Variable { return autograd.SparseParameter(matrix(scale)) },
	constant: func(scale float64) *autograd.Variable { return autograd.SparseConstant(matrix(scale)) },
	sum:      (*autograd.Variable).SparseSum,
	ones: func(n float64) autograd.Value {
		s := matrix(1)
		s.Values = tensor.Must(tensor.Full(tensor.Float32, n, 3))
		return autograd.Value{Sparse: s}
	},
	product: "t.mul",
}

// kinds runs a test with both kinds of tensors.
func kinds(t *testing.T, f func(t *testing.T, k kind)) {
	t.Helper()
	t.Run("dense", func(t *testing.T) { f(t, dense) })
	t.Run("sparse", func(t *testing.T) { f(t, sparse) })
}

// worlds runs a test with both kinds of tensors, in a world of n workers that serve functions of them.
func worlds(t *testing.T, n int, f func(t *testing.T, k kind, ws []*worker)) {
	t.Helper()
	kinds(t, func(t *testing.T, k kind) {
		t.Helper()
		reg, _ := tensorHandlers(k)
		f(t, k, newWorld(t, n, reg))
	})
}

// matrix is the sparse tensor of PyTorch's tests, multiplied by a number.
func matrix(scale float64) *tensor.Sparse {
	s := float32(scale)
	return &tensor.Sparse{
		Shape: []int{3, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 1, 2, 0, 2}, 2, 3)),
		Values: tensor.Must(tensor.From([]float32{3.2 * s, 4.1 * s, 5.3 * s})),
	}
}

// full is a dense matrix whose elements are all different.
func full(scale float64) *tensor.Tensor {
	values := make([]float32, 9)
	for i := range values {
		values[i] = float32(scale) * float32(i+1) / 8
	}
	return tensor.Must(tensor.From(values, 3, 3))
}

// same compares two tensors as PyTorch's tests do: kind, shape, type and values; of sparse ones those of the coalesced tensor.
func same(t *testing.T, what string, got, want autograd.Value) {
	t.Helper()
	switch {
	case got.Dense != nil && want.Dense != nil:
		if !got.Dense.SameShape(want.Dense) || got.DType() != want.DType() || !tensor.AllClose(got.Dense, want.Dense, 1.3e-6, 1e-5, false) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	case got.Sparse != nil && want.Sparse != nil:
		x, err := sparseops.Coalesce(got.Sparse)
		if err != nil {
			t.Fatal(err)
		}
		y, err := sparseops.Coalesce(want.Sparse)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(x.Shape, y.Shape) || x.Values.DType() != y.Values.DType() || !tensor.Equal(x.Indices, y.Indices) ||
			!tensor.AllClose(x.Values, y.Values, 1.3e-6, 1e-5, false) {
			t.Errorf("%s: %v, want %v", what, x, y)
		}
	default:
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// wantLocal checks that a pass has computed what a pass here alone has put into Grad, and nothing for other variables.
func wantLocal(t *testing.T, c *distautograd.Context, vs ...*autograd.Variable) {
	t.Helper()
	n := 0
	for i, v := range vs {
		if want := v.GradValue(); !want.IsNone() {
			n++
			same(t, fmt.Sprintf("variable %d", i), c.GradientValue(v), want)
		} else if got := c.GradientValue(v); !got.IsNone() {
			t.Errorf("variable %d has a gradient %v", i, got)
		}
	}
	if all, err := c.Gradients(); err != nil || len(all) != n {
		t.Errorf("%d gradients, %v; want %d", len(all), err, n)
	}
}

// owned are the variables that handlers of a world have made, by the names that they were asked for.
type owned struct {
	sync.Mutex

	made map[string]*autograd.Variable
}

func (o *owned) of(name string) *autograd.Variable {
	o.Lock()
	defer o.Unlock()
	return o.made[name]
}

// tensorHandlers are functions on tensors. "s.make" makes variables of a kind.
func tensorHandlers(k kind) (*rpc.Registry, *owned) {
	type variable = *autograd.Variable
	o := &owned{made: map[string]variable{}}
	add := func(x, y variable) variable { return x.Add(y) }
	reg := basics().
		MustHandle("s.add", add).
		MustHandle("__torch__.s.add", add).
		MustHandle("s.matmul", func(x, y variable) variable { return x.MatMul(y) }).
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
		MustHandle("s.make", func(name string) variable {
			o.Lock()
			defer o.Unlock()
			o.made[name] = k.param(1)
			return o.made[name]
		}).
		MustHandle("s.refadd", func(ctx context.Context, ref *rpc.Ref[variable], y variable) (variable, error) {
			defer func() { _ = ref.Close() }()
			x, err := ref.LocalValue(ctx)
			if err != nil {
				return nil, err
			}
			return x.Add(y), nil
		}).
		MustHandle("__torch__.s.refadd", func(ctx context.Context, ref *rpc.Ref[variable], y variable) (variable, error) {
			defer func() { _ = ref.Close() }()
			x, err := ref.Fetch(ctx)
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
