// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// edgeTensor is a tensor as these tables write it.
type edgeTensor struct {
	dtype  tensor.DType
	shape  []int
	values []float64
}

// ramp is what the inputs count up from: -2.5, -1.5, ...
func ramp(dt tensor.DType, shape ...int) edgeTensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	e := edgeTensor{dt, shape, make([]float64, n)}
	for i := range e.values {
		e.values[i] = float64(i%7) - 2.5
	}
	return e
}

func edge(dt tensor.DType, shape []int, values ...float64) edgeTensor {
	return edgeTensor{dt, shape, values}
}

func zeros(dt tensor.DType, shape ...int) edgeTensor {
	e := ramp(dt, shape...)
	clear(e.values)
	return e
}

func (e edgeTensor) tensor(t *testing.T) *tensor.Tensor {
	t.Helper()
	x, err := tensorops.Convert(tensor.Must(tensor.Must(tensor.From(append([]float64{}, e.values...))).Reshape(e.shape...)), e.dtype)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// compare checks type, shape and every bit of the values, except that one NaN is like another.
func (e edgeTensor) compare(t *testing.T, what string, got *tensor.Tensor) {
	t.Helper()
	if got == nil || got.DType() != e.dtype || !slices.Equal(got.Shape(), e.shape) {
		t.Errorf("%s is %v, want %v%v", what, got, e.dtype, e.shape)
		return
	}
	wide, err := tensorops.Convert(got, tensor.Float64)
	if err != nil {
		t.Fatal(err)
	}
	values, err := tensor.Copy[float64](wide)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(values, e.values, func(a, b float64) bool {
		return math.IsNaN(a) && math.IsNaN(b) || math.Float64bits(a) == math.Float64bits(b)
	}) {
		t.Errorf("%s is %v, want %v", what, values, e.values)
	}
}

type edgeCase struct {
	name   string
	f      func(x []*autograd.Variable) *autograd.Variable
	inputs []edgeTensor
	want   edgeTensor
	grads  []edgeTensor // of the inputs with a floating type
	failed string       // instead of a result
}

// TestEdges: results and gradients at the edges are PyTorch's. The gradient of a result is 1, -2, 0.5, 0, 3, and so on again.
func TestEdges(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(emptyProducts(), joins(), picks(), oddPowers()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var in, floating []*autograd.Variable
			for _, e := range c.inputs {
				v := autograd.Constant(e.tensor(t))
				if e.dtype.Floating() {
					v = autograd.Parameter(e.tensor(t))
					floating = append(floating, v)
				}
				in = append(in, v)
			}
			y := c.f(in)
			if c.failed != "" {
				if y.Err() == nil || !strings.Contains(y.Err().Error(), c.failed) {
					t.Errorf("%v, want an error with %q", y.Err(), c.failed)
				}
				return
			}
			if y.Err() != nil {
				t.Fatal(y.Err())
			}
			c.want.compare(t, "the result", y.Data())
			upstream := zeros(y.DType(), y.Shape()...)
			for i := range upstream.values {
				upstream.values[i] = []float64{1, -2, 0.5, 0, 3}[i%5]
			}
			if err := autograd.Backward(t.Context(), []*autograd.Variable{y}, []autograd.Value{{Dense: upstream.tensor(t)}}); err != nil {
				t.Fatal(err)
			}
			if len(c.grads) != len(floating) {
				t.Fatalf("%d gradients in the table, %d inputs", len(c.grads), len(floating))
			}
			for i, v := range floating {
				c.grads[i].compare(t, "gradient "+string(rune('0'+i)), v.Grad())
			}
		})
	}
}

// emptyProducts are products with dimensions of no elements: sums of nothing are zero.
func emptyProducts() (all []edgeCase) {
	const f32 = tensor.Float32
	matmul := func(x []*autograd.Variable) *autograd.Variable { return x[0].MatMul(x[1]) }
	for _, c := range []struct {
		name      string
		a, b, out []int
	}{
		{"nothing to add", []int{3, 0}, []int{0, 2}, []int{3, 2}},
		{"no rows", []int{0, 3}, []int{3, 2}, []int{0, 2}},
		{"empty vectors", []int{0}, []int{0}, []int{}},
		{"no batches and a matrix", []int{0, 2, 4}, []int{4, 3}, []int{0, 2, 3}},
		{"no batches and one", []int{0, 2, 4}, []int{1, 4, 3}, []int{0, 2, 3}},
		{"a vector and no batches", []int{2}, []int{0, 2, 3}, []int{0, 3}},
		{"no batches and a vector", []int{0, 2, 4}, []int{4}, []int{0, 2}},
		{"no rows and a vector", []int{0, 2}, []int{2}, []int{0}},
		{"a vector and no columns", []int{2}, []int{2, 0}, []int{0}},
	} {
		all = append(all, edgeCase{
			name: "matmul of " + c.name, f: matmul, inputs: []edgeTensor{ramp(f32, c.a...), ramp(f32, c.b...)},
			want: zeros(f32, c.out...), grads: []edgeTensor{zeros(f32, c.a...), zeros(f32, c.b...)},
		})
	}
	linear := func(x []*autograd.Variable) *autograd.Variable { return autograd.Linear(x[0], x[1], x[2]) }
	for name, shape := range map[string][]int{"no rows": {0, 4}, "batches of no rows": {2, 0, 4}} {
		out := append(slices.Clone(shape[:len(shape)-1]), 2)
		all = append(all, edgeCase{
			name: "linear of " + name, f: linear, inputs: []edgeTensor{ramp(f32, shape...), ramp(f32, 2, 4), ramp(f32, 2)},
			want: zeros(f32, out...), grads: []edgeTensor{zeros(f32, shape...), zeros(f32, 2, 4), zeros(f32, 2)},
		})
	}
	return append(all, edgeCase{
		name: "linear of nothing to add", f: linear, inputs: []edgeTensor{ramp(f32, 3, 0), ramp(f32, 2, 0), ramp(f32, 2)},
		want:  edge(f32, []int{3, 2}, -2.5, -1.5, -2.5, -1.5, -2.5, -1.5),
		grads: []edgeTensor{zeros(f32, 3, 0), zeros(f32, 2, 0), edge(f32, []int{2}, 4.5, -1)},
	})
}

// joins are concatenations of mixed types and of empty lists, which fit everything but count for the type.
func joins() []edgeCase {
	const f32, f64, i64 = tensor.Float32, tensor.Float64, tensor.Int64
	cat := func(dim int) func(x []*autograd.Variable) *autograd.Variable {
		return func(x []*autograd.Variable) *autograd.Variable { return autograd.Cat(dim, x...) }
	}
	stack := func(dim int) func(x []*autograd.Variable) *autograd.Variable {
		return func(x []*autograd.Variable) *autograd.Variable { return autograd.Stack(dim, x...) }
	}
	column, itsGrad := ramp(f32, 2, 1), edge(f32, []int{2, 1}, 1, -2)
	return []edgeCase{
		{
			"cat of types", cat(0),
			[]edgeTensor{ramp(f32, 2), ramp(f64, 2), edge(i64, []int{1}, 7)},
			edge(f64, []int{5}, -2.5, -1.5, -2.5, -1.5, 7),
			[]edgeTensor{edge(f32, []int{2}, 1, -2), edge(f64, []int{2}, 0.5, 0)},
			"",
		},
		{
			"cat of halves", cat(0),
			[]edgeTensor{ramp(tensor.BFloat16, 1), ramp(tensor.Float16, 1)},
			edge(f32, []int{2}, -2.5, -2.5),
			[]edgeTensor{edge(tensor.BFloat16, []int{1}, 1), edge(tensor.Float16, []int{1}, -2)},
			"",
		},
		{"cat with nothing behind", cat(1), []edgeTensor{column, ramp(f32, 0)}, column, []edgeTensor{itsGrad, zeros(f32, 0)}, ""},
		{"cat with nothing before", cat(1), []edgeTensor{ramp(f32, 0), column}, column, []edgeTensor{zeros(f32, 0), itsGrad}, ""},
		{"cat of nothing", cat(0), []edgeTensor{ramp(f32, 0), ramp(f32, 0)}, zeros(f32, 0), []edgeTensor{zeros(f32, 0), zeros(f32, 0)}, ""},
		{
			"cat with no integers", cat(0),
			[]edgeTensor{ramp(i64, 0), ramp(f32, 2)},
			ramp(f32, 2),
			[]edgeTensor{edge(f32, []int{2}, 1, -2)},
			"",
		},
		{
			"cat with nothing of a wider type", cat(0),
			[]edgeTensor{ramp(f64, 0), ramp(f32, 2)},
			ramp(f64, 2),
			[]edgeTensor{zeros(f64, 0), edge(f32, []int{2}, 1, -2)},
			"",
		},
		{
			name: "cat of a number", f: cat(0), inputs: []edgeTensor{ramp(f32, 1), ramp(f32)},
			failed: "zero-dimensional tensor (at position 1) cannot be concatenated",
		},
		{
			"stack of types", stack(-1),
			[]edgeTensor{ramp(f32, 2), ramp(f64, 2)},
			edge(f64, []int{2, 2}, -2.5, -2.5, -1.5, -1.5),
			[]edgeTensor{edge(f32, []int{2}, 1, 0.5), edge(f64, []int{2}, -2, 0)},
			"",
		},
		{
			"stack of numbers", stack(0),
			[]edgeTensor{edge(f32, []int{}, 1), edge(f32, []int{}, 2)},
			edge(f32, []int{2}, 1, 2),
			[]edgeTensor{edge(f32, []int{}, 1), edge(f32, []int{}, -2)},
			"",
		},
	}
}

// picks are indices that count from the end, are repeated, or out of bounds.
func picks() []edgeCase {
	const f32, i64 = tensor.Float32, tensor.Int64
	index := func(x []*autograd.Variable) *autograd.Variable { return x[0].IndexSelect(x[1].Data()) }
	rows, list := ramp(f32, 4, 3), ramp(f32, 4)
	return []edgeCase{
		{
			"index of the last row", index,
			[]edgeTensor{rows, edge(i64, []int{1}, -1)},
			edge(f32, []int{1, 3}, -0.5, 0.5, 1.5),
			[]edgeTensor{edge(f32, []int{4, 3}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -2, 0.5)},
			"",
		},
		{
			"index from both ends", index,
			[]edgeTensor{rows, edge(i64, []int{2}, -4, 3)},
			edge(f32, []int{2, 3}, -2.5, -1.5, -0.5, -0.5, 0.5, 1.5),
			[]edgeTensor{edge(f32, []int{4, 3}, 1, -2, 0.5, 0, 0, 0, 0, 0, 0, 0, 3, 1)},
			"",
		},
		{
			"index in a list", index,
			[]edgeTensor{list, edge(i64, []int{1, 1}, -1)},
			edge(f32, []int{1, 1}, 0.5),
			[]edgeTensor{edge(f32, []int{4}, 0, 0, 0, 1)},
			"",
		},
		{
			"index named twice", index,
			[]edgeTensor{list, edge(i64, []int{2}, 3, -1)},
			edge(f32, []int{2}, 0.5, 0.5),
			[]edgeTensor{edge(f32, []int{4}, 0, 0, 0, -1)},
			"",
		},
		{
			"index of matrices", index,
			[]edgeTensor{ramp(f32, 2, 2, 1), edge(i64, []int{2}, -1, 1)},
			edge(f32, []int{2, 2, 1}, -0.5, 0.5, -0.5, 0.5),
			[]edgeTensor{edge(f32, []int{2, 2, 1}, 0, 0, 1.5, -2)},
			"",
		},
		{
			"index of empty matrices", index,
			[]edgeTensor{ramp(f32, 4, 0, 3), edge(i64, []int{2}, 3, -1)},
			zeros(f32, 2, 0, 3),
			[]edgeTensor{zeros(f32, 4, 0, 3)},
			"",
		},
		{
			name: "index before the first", f: index, inputs: []edgeTensor{rows, edge(i64, []int{1}, -5)},
			failed: "index -5 is out of bounds for dimension 0 with size 4",
		},
		{name: "index behind the last", f: index, inputs: []edgeTensor{rows, edge(i64, []int{1}, 4)}, failed: "4"},
		{name: "index into nothing", f: index, inputs: []edgeTensor{ramp(f32, 0, 3), edge(i64, []int{1}, 0)}, failed: "0"},
	}
}

// oddPowers are absolute values and powers of what is not a number, infinite, or a zero with a sign.
func oddPowers() []edgeCase {
	const f32 = tensor.Float32
	nan, inf, minus0 := math.NaN(), math.Inf(1), math.Copysign(0, -1)
	all := []edgeCase{{
		"abs", func(x []*autograd.Variable) *autograd.Variable { return x[0].Abs() },
		[]edgeTensor{edge(f32, []int{5}, nan, minus0, 0, -inf, inf)},
		edge(f32, []int{5}, nan, 0, 0, inf, inf),
		[]edgeTensor{edge(f32, []int{5}, 0, minus0, 0, minus0, 3)},
		"",
	}}
	for _, c := range []struct {
		name       string
		exponent   float64
		want, grad []float64
	}{
		{"root", 0.5, []float64{nan, nan, minus0, 0, inf, nan}, []float64{nan, nan, -inf, nan, 0, nan}},
		{"inverse root", -0.5, []float64{nan, nan, -inf, inf, 0, nan}, []float64{minus0, nan, -inf, nan, minus0, nan}},
		{"root of the cube", 1.5, []float64{inf, nan, 0, 0, inf, nan}, []float64{nan, nan, minus0, 0, inf, nan}},
		{"power of 0", 0, []float64{1, 1, 1, 1, 1, 1}, []float64{0, 0, 0, 0, 0, 0}},
		{"power of 2.5", 2.5, []float64{inf, nan, 0, 0, inf, nan}, []float64{inf, nan, 0, 0, inf, nan}},
	} {
		all = append(all, edgeCase{
			c.name, func(x []*autograd.Variable) *autograd.Variable { return x[0].Pow(c.exponent) },
			[]edgeTensor{edge(f32, []int{6}, -inf, -1, minus0, 0, inf, nan)},
			edge(f32, []int{6}, c.want...),
			[]edgeTensor{edge(f32, []int{6}, c.grad...)},
			"",
		})
	}
	return all
}
