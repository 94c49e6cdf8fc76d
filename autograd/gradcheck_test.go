// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

type vars = []*autograd.Variable

// random returns a float64 tensor of numbers in [lo, hi).
func random(r *rand.Rand, lo, hi float64, shape ...int) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = lo + (hi-lo)*r.Float64()
	}
	return tensor.Must(tensor.Must(tensor.From(x)).View(shape...))
}

func ints(x []int64, shape ...int) *tensor.Tensor { return tensor.Must(tensor.From(x, shape...)) }

// TestGradients checks the gradient of every function by finite differences.
func TestGradients(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	n := func(shape ...int) *tensor.Tensor { return random(r, -2, 2, shape...) }
	pos := func(shape ...int) *tensor.Tensor { return random(r, 0.5, 2, shape...) }
	mask := tensor.Must(tensor.From([]bool{true, false, false, true}, 4))
	for _, c := range []struct {
		name string
		in   []*tensor.Tensor
		f    func(v vars) *autograd.Variable
	}{
		{"add", []*tensor.Tensor{n(2, 3), n(3)}, func(v vars) *autograd.Variable { return v[0].Add(v[1]) }},
		{"sub", []*tensor.Tensor{n(3), n(2, 1)}, func(v vars) *autograd.Variable { return v[0].Sub(v[1]) }},
		{"mul", []*tensor.Tensor{n(2, 1, 3), n(4, 1)}, func(v vars) *autograd.Variable { return v[0].Mul(v[1]) }},
		{"mul by itself", []*tensor.Tensor{n(4)}, func(v vars) *autograd.Variable { return v[0].Mul(v[0]) }},
		{"div", []*tensor.Tensor{n(2, 3), pos(3)}, func(v vars) *autograd.Variable { return v[0].Div(v[1]) }},
		{"scale", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Scale(-1.5).Shift(2) }},
		{"pow", []*tensor.Tensor{pos(3)}, func(v vars) *autograd.Variable { return v[0].Pow(2.5).Add(v[0].Pow(0)) }},
		{"neg", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Neg() }},
		{"abs", []*tensor.Tensor{n(5)}, func(v vars) *autograd.Variable { return v[0].Abs() }},
		{"exp", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Exp() }},
		{"log", []*tensor.Tensor{pos(3)}, func(v vars) *autograd.Variable { return v[0].Log() }},
		{"sqrt", []*tensor.Tensor{pos(3)}, func(v vars) *autograd.Variable { return v[0].Sqrt() }},
		{"sin", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Sin() }},
		{"cos", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Cos() }},
		{"tanh", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Tanh() }},
		{"sigmoid", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].Sigmoid() }},
		{"relu", []*tensor.Tensor{n(5)}, func(v vars) *autograd.Variable { return v[0].ReLU() }},
		{"gelu", []*tensor.Tensor{n(5)}, func(v vars) *autograd.Variable { return v[0].GELU() }},
		{"gelu tanh", []*tensor.Tensor{n(5)}, func(v vars) *autograd.Variable { return v[0].GELUTanh() }},
		{"softmax", []*tensor.Tensor{n(2, 3, 2)}, func(v vars) *autograd.Variable { return v[0].Softmax(1) }},
		{"log softmax", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable { return v[0].LogSoftmax(-1) }},
		{"masked fill", []*tensor.Tensor{n(3, 4)}, func(v vars) *autograd.Variable { return v[0].MaskedFill(mask, 7) }},
		{"sum", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable { return v[0].Sum() }},
		{"sum dims", []*tensor.Tensor{n(2, 3, 4)}, func(v vars) *autograd.Variable { return v[0].Sum(0, -1) }},
		{"sum keep", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable { return v[0].SumKeep(true, 1) }},
		{"mean", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable { return v[0].Mean() }},
		{"mean dims", []*tensor.Tensor{n(2, 3, 4)}, func(v vars) *autograd.Variable { return v[0].MeanKeep(true, 1) }},
		{"max", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable { return v[0].Max() }},
		{"max dim", []*tensor.Tensor{n(2, 3, 2)}, func(v vars) *autograd.Variable { m, _ := v[0].MaxDim(1, false); return m }},
		{"reshape", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable { return v[0].Transpose(0, 1).Reshape(-1, 2) }},
		{"permute", []*tensor.Tensor{n(2, 3, 4)}, func(v vars) *autograd.Variable { return v[0].Permute(2, 0, -2) }},
		{"select", []*tensor.Tensor{n(3, 2)}, func(v vars) *autograd.Variable { return v[0].Select(0, -1) }},
		{"slice", []*tensor.Tensor{n(2, 7)}, func(v vars) *autograd.Variable { return v[0].Slice(1, 1, 6, 2) }},
		{"expand", []*tensor.Tensor{n(2, 1)}, func(v vars) *autograd.Variable { return v[0].Expand(3, 2, 4) }},
		{"cat", []*tensor.Tensor{n(2, 1), n(2, 3)}, func(v vars) *autograd.Variable { return autograd.Cat(-1, v[0], v[1], v[0]) }},
		{"index", []*tensor.Tensor{n(4, 2, 2)}, func(v vars) *autograd.Variable { return v[0].IndexSelect(ints([]int64{3, 0, 3}, 3)) }},
		{"matmul", []*tensor.Tensor{n(3, 4), n(4, 2)}, func(v vars) *autograd.Variable { return v[0].MatMul(v[1]) }},
		{"matmul batch", []*tensor.Tensor{n(2, 3, 4), n(4, 2)}, func(v vars) *autograd.Variable { return v[0].MatMul(v[1]) }},
		{"matmul broadcast", []*tensor.Tensor{n(2, 1, 3, 4), n(3, 4, 2)}, func(v vars) *autograd.Variable { return v[0].MatMul(v[1]) }},
		{"matmul vectors", []*tensor.Tensor{n(4), n(4)}, func(v vars) *autograd.Variable { return v[0].MatMul(v[1]) }},
		{"matmul vector left", []*tensor.Tensor{n(4), n(2, 4, 3)}, func(v vars) *autograd.Variable { return v[0].MatMul(v[1]) }},
		{"matmul vector right", []*tensor.Tensor{n(2, 3, 4), n(4)}, func(v vars) *autograd.Variable { return v[0].MatMul(v[1]) }},
		{
			"matmul transposed",
			[]*tensor.Tensor{n(4, 3), n(2, 4)},
			func(v vars) *autograd.Variable { return v[0].Transpose(0, 1).MatMul(v[1].Transpose(0, 1)) },
		},
		{
			"linear",
			[]*tensor.Tensor{n(2, 3, 4), n(5, 4), n(5)},
			func(v vars) *autograd.Variable { return autograd.Linear(v[0], v[1], v[2]) },
		},
		{
			"linear with one bias",
			[]*tensor.Tensor{n(2, 3, 4), n(5, 4), n(1)},
			func(v vars) *autograd.Variable { return autograd.Linear(v[0], v[1], v[2]) },
		},
		{
			"linear with a bias per row",
			[]*tensor.Tensor{n(3, 4), n(5, 4), n(3, 1)},
			func(v vars) *autograd.Variable { return autograd.Linear(v[0], v[1], v[2]) },
		},
		{"stack", []*tensor.Tensor{n(2, 3), n(2, 3)}, func(v vars) *autograd.Variable { return autograd.Stack(1, v[0], v[1], v[0]) }},
		{
			"linear without bias",
			[]*tensor.Tensor{n(4), n(5, 4)},
			func(v vars) *autograd.Variable { return autograd.Linear(v[0], v[1], nil) },
		},
		{"cross entropy", []*tensor.Tensor{n(4, 3)}, func(v vars) *autograd.Variable {
			return autograd.CrossEntropy(v[0], ints([]int64{0, 2, autograd.IgnoreIndex, 1}, 4), autograd.ReduceMean)
		}},
		{"cross entropy sum", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable {
			return autograd.CrossEntropy(v[0], ints([]int64{0, 2}, 2), autograd.ReduceSum)
		}},
		{"cross entropy rows", []*tensor.Tensor{n(2, 3)}, func(v vars) *autograd.Variable {
			return autograd.CrossEntropy(v[0], ints([]int64{0, 2}, 2), autograd.ReduceNone)
		}},
		{"mse", []*tensor.Tensor{n(2, 3), n(2, 3)}, func(v vars) *autograd.Variable {
			return autograd.MSE(v[0], v[1], autograd.ReduceMean)
		}},
		{
			"mse of two shapes",
			[]*tensor.Tensor{n(2, 3), n(2, 1)},
			func(v vars) *autograd.Variable { return autograd.MSE(v[0], v[1], autograd.ReduceMean) },
		},
		{
			"mse of elements",
			[]*tensor.Tensor{n(3), n(3)},
			func(v vars) *autograd.Variable { return autograd.MSE(v[0], v[1], autograd.ReduceNone) },
		},
		{"mse sum", []*tensor.Tensor{n(3), n(3)}, func(v vars) *autograd.Variable { return autograd.MSE(v[0], v[1], autograd.ReduceSum) }},
		{"embedding", []*tensor.Tensor{n(5, 3)}, func(v vars) *autograd.Variable {
			return autograd.Embedding(v[0], autograd.Constant(ints([]int64{4, 1, 4, 0}, 2, 2)), -1)
		}},
		{"layer norm", []*tensor.Tensor{n(2, 3, 4), n(3, 4), n(3, 4)}, func(v vars) *autograd.Variable {
			return autograd.LayerNorm(v[0], v[1], v[2], 2, 1e-5)
		}},
		{"to", []*tensor.Tensor{n(3)}, func(v vars) *autograd.Variable { return v[0].To(tensor.Float64).Mul(v[0]) }},
	} {
		if err := autograd.GradCheck(t.Context(), c.f, c.in, 0, 0); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// wrong is a function whose gradient is not the right one.
type wrong struct{}

func (wrong) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out, err := in[0].Clone()
	return []*tensor.Tensor{out}, err
}

func (wrong) Backward(_ *autograd.Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	half, err := tensor.Full(tensor.Float64, 0.5, g[0].Shape()...)
	return []*tensor.Tensor{half}, err
}

// TestGradCheckFinds: the check itself can fail.
func TestGradCheckFinds(t *testing.T) {
	t.Parallel()
	err := autograd.GradCheck(t.Context(), func(v vars) *autograd.Variable {
		out, err := autograd.Apply(wrong{}, v[0])
		if err != nil {
			t.Fatal(err)
		}
		return out[0]
	}, []*tensor.Tensor{random(rand.New(rand.NewPCG(1, 1)), 0, 1, 3)}, 0, 0)
	if !errors.Is(err, cohort.Mismatch) {
		t.Errorf("a wrong gradient passed: %v", err)
	}
}

func TestPadding(t *testing.T) {
	t.Parallel()
	w := autograd.Parameter(random(rand.New(rand.NewPCG(1, 1)), 0, 1, 3, 2))
	if err := autograd.Embedding(w, autograd.Constant(ints([]int64{0, 1, 1}, 3)), 1).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := w.Grad(), tensor.Must(tensor.From([]float64{1, 1, 0, 0, 0, 0}, 3, 2)); !tensor.Equal(got, want) {
		t.Errorf("gradient %v", got)
	}
}

func TestNaN(t *testing.T) {
	t.Parallel()
	x := autograd.Parameter(tensor.Must(tensor.From([]float32{float32(math.NaN()), -1, 2})))
	y := x.ReLU()
	if v := y.Select(0, 0).Item(); v == v {
		t.Errorf("relu(NaN) is %v", v)
	}
	if v := x.Max().Item(); v == v {
		t.Errorf("max with NaN is %v", v)
	}
	if _, at := x.MaxDim(0, false); at.Item() != 0 {
		t.Errorf("NaN is not the largest: index %v", at)
	}
}

// TestRetainedGradient: a variable that keeps its gradient adds up those of all passes, once each, however often it was told to.
func TestRetainedGradient(t *testing.T) {
	t.Parallel()
	x := autograd.Parameter(tensor.Must(tensor.From([]float64{2, 3})))
	y := x.Mul(x)
	if err := errors.Join(y.RetainGrad(), y.RetainGrad()); err != nil {
		t.Fatal(err)
	}
	for pass := 1; pass <= 2; pass++ {
		if err := y.Sum().Backward(t.Context(), autograd.RetainGraph()); err != nil {
			t.Fatal(err)
		}
		if want := tensor.Must(tensor.Full(tensor.Float64, pass, 2)); !tensor.Equal(y.Grad(), want) {
			t.Errorf("after pass %d the gradient is %v, want %v", pass, y.Grad(), want)
		}
	}
}

// TestRareShapes: a scalar has a dimension to exchange with itself, a weight with one dimension is one output, and a layer norm refuses
// what only broadcasts.
func TestRareShapes(t *testing.T) {
	t.Parallel()
	scalar := tensor.Must(tensor.Full(tensor.Float64, 3.0))
	row, column := tensor.Must(tensor.From([]float64{1, 2, 3})), tensor.Must(tensor.From([]float64{1, 2, 4}, 3, 1))
	for name, c := range map[string]struct {
		f      func(in []*autograd.Variable) *autograd.Variable
		inputs []*tensor.Tensor
	}{
		"transpose": {func(in []*autograd.Variable) *autograd.Variable { return in[0].Transpose(0, -1) }, []*tensor.Tensor{scalar}},
		"linear": {func(in []*autograd.Variable) *autograd.Variable {
			return autograd.Linear(in[0].Mul(in[1]), in[0], in[2])
		}, []*tensor.Tensor{row, column, scalar}},
	} {
		if err := autograd.GradCheck(t.Context(), c.f, c.inputs, 1e-6, 1e-6); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, w := range []*tensor.Tensor{scalar, column} {
		weight := autograd.Constant(w)
		for _, out := range []*autograd.Variable{
			autograd.LayerNorm(autograd.Constant(row), weight, nil, 1, 1e-5),
			autograd.LayerNorm(autograd.Constant(row), nil, weight, 1, 1e-5),
		} {
			if !errors.Is(out.Err(), cohort.InvalidArgument) {
				t.Errorf("a layer norm with a weight or bias of shape %v: %v", w.Shape(), out)
			}
		}
	}
	if _, err := scalar.Transpose(0, 1); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a scalar with two dimensions: %v", err)
	}
}

// TestShapesOfMSE: two shapes are broadcast, with one warning for each line that does it.
func TestShapesOfMSE(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	r := rand.New(rand.NewPCG(1, 1))
	column, row := autograd.Constant(random(r, 0, 1, 3, 1)), autograd.Constant(random(r, 0, 1, 4))
	for range 3 {
		got := autograd.MSE(column, row, autograd.ReduceMean)
		d := column.Sub(row)
		if want := d.Mul(d).Sum().Item() / 12; got.Item()-want > 1e-15 || want-got.Item() > 1e-15 {
			t.Errorf("%v, want %v", got, want)
		}
		autograd.MSE(row, row, autograd.ReduceMean)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "gradcheck_test.go:") ||
		!strings.Contains(text, "[3 1]") {
		t.Errorf("the log is\n%s", text)
	}
	autograd.MSE(column, row, autograd.ReduceMean)
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings of two lines", n)
	}
	if err := autograd.MSE(column, autograd.Constant(random(r, 0, 1, 2, 2)), autograd.ReduceMean).Err(); err == nil {
		t.Error("shapes that do not broadcast are taken")
	}
}
