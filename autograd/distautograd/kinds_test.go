// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/observe"
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

// TestTrace: a pass over one call has a beginning and an end at the worker that began it, and within that time gradients leave and arrive
// once at each of the two. A pass that fails has its error.
func TestTrace(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		var mu sync.Mutex
		var all []observe.Event
		ws := newWorld(t, 2, basics(), distautograd.WithHook(func(e observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
		}))
		events := func() []observe.Event {
			mu.Lock()
			defer mu.Unlock()
			taken := all
			all = nil
			return taken
		}
		ctx, c := ws[0].open(t)
		loss := call(ctx, t, ws[0], "w1", "t.mul", param(2), param(3)).Sum()
		if early := events(); len(early) > 0 {
			t.Errorf("before the pass: %v", early)
		}
		backward(ctx, t, c, loss, opts...)
		got := events()
		first, last := got[0], got[len(got)-1]
		if first.Kind != "autograd.backward" || first.Phase != observe.Begin || last.Kind != first.Kind || last.Phase != observe.End ||
			first.Rank != 0 || last.Rank != 0 || first.Key != strconv.FormatInt(int64(c.ID()), 10) ||
			last.Dur != last.Time.Sub(first.Time) || last.Err != nil {
			t.Errorf("the pass is from %+v to %+v", first, last)
		}
		var order []string
		from := time.Time{}
		for _, e := range got[1 : len(got)-1] {
			order = append(order, fmt.Sprintf("%s at %d", e.Kind, e.Rank))
			if e.Phase != observe.Point || e.Peer != ws[1-int(e.Rank)].name() || e.Key == "" {
				t.Errorf("%+v", e)
			}
			if e.Time.Before(first.Time) || e.Time.After(last.Time) || e.Time.Before(from) {
				t.Errorf("%s at %v is not within the pass, or before what led to it", e.Kind, e.Time)
			}
			from = e.Time
		}
		if want := "autograd.recv at 0, autograd.send at 1, autograd.recv at 1, autograd.send at 0"; strings.Join(order, ", ") != want {
			t.Errorf("%v, want %s", order, want)
		}

		ctx, c = ws[0].open(t)
		loss = call(ctx, t, ws[0], "w1", "t.fail", param(2)).Sum()
		err := c.Backward(ctx, []*autograd.Variable{loss}, opts...)
		if got := events(); err == nil || !errors.Is(got[len(got)-1].Err, err) || got[len(got)-1].Phase != observe.End {
			t.Errorf("a pass that failed with %v ends with %+v", err, got[len(got)-1])
		}
	})
}

// TestHookPanics: a hook with a bug takes no pass with it, neither where it begins nor where gradients come by.
func TestHookPanics(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ws := newWorld(t, 2, basics(), distautograd.WithHook(func(observe.Event) { panic("a bug") }))
		ctx, c := ws[0].open(t)
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.mul", param(2), param(3)).Sum(), opts...)
	})
}
