// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/tensor"
)

// coordinates is a 3x3 matrix with values at the given places.
func coordinates(rows, cols []int64, v ...float64) *tensor.Sparse {
	return &tensor.Sparse{
		Shape: []int{3, 3}, Indices: tensor.Must(tensor.From(append(slices.Clone(rows), cols...), 2, len(rows))),
		Values: tensor.Must(tensor.From(v, len(v))),
	}
}

func sparseA() *tensor.Sparse { return coordinates([]int64{0, 1, 1}, []int64{2, 0, 2}, 3.2, 4.1, 5.3) }

// sparseB has an index twice, and they are in no order.
func sparseB() *tensor.Sparse {
	return coordinates([]int64{2, 1, 0, 1}, []int64{1, 2, 2, 2}, 0.5, -1.5, 2.5, 0.75)
}

func denseC() *tensor.Tensor {
	return tensor.Must(tensor.From([]float64{1, -2, 3, 0.5, 5, -6, 7, 8, 0.25}, 3, 3))
}

func parameterOf(v autograd.Value) *autograd.Variable {
	if v.Sparse != nil {
		return autograd.SparseParameter(v.Sparse)
	}
	return autograd.Parameter(v.Dense)
}

// dense is a gradient in dense form.
func dense(t *testing.T, v autograd.Value) *tensor.Tensor {
	t.Helper()
	d, err := v.ToDense()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

type expression struct {
	name string
	in   []autograd.Value
	f    func(vs []*autograd.Variable) *autograd.Variable
}

func sparseExpressions() []expression {
	type vars = []*autograd.Variable
	a, b, c := autograd.Value{Sparse: sparseA()}, autograd.Value{Sparse: sparseB()}, autograd.Value{Dense: denseC()}
	return []expression{
		{"sum", []autograd.Value{b}, func(v vars) *autograd.Variable { return v[0].SparseSum() }},
		{"add", []autograd.Value{a, b}, func(v vars) *autograd.Variable { return v[0].Add(v[1]).SparseSum() }},
		{"sub", []autograd.Value{a, b}, func(v vars) *autograd.Variable { return v[0].Sub(v[1]).SparseSum() }},
		{"mul", []autograd.Value{a, b}, func(v vars) *autograd.Variable { return v[0].Mul(v[1]).SparseSum() }},
		{"square", []autograd.Value{b}, func(v vars) *autograd.Variable { return v[0].Mul(v[0]).SparseSum() }},
		{"scale", []autograd.Value{b}, func(v vars) *autograd.Variable { return v[0].Scale(-2.5).Neg().SparseSum() }},
		{"sparse times dense", []autograd.Value{a, c}, func(v vars) *autograd.Variable { return v[0].Mul(v[1]).SparseSum() }},
		{"dense times sparse", []autograd.Value{c, b}, func(v vars) *autograd.Variable { return v[0].Mul(v[1]).SparseSum() }},
		{
			"times a row",
			[]autograd.Value{a, {Dense: tensor.Must(tensor.From([]float64{2, 3, 5}, 1, 3))}},
			func(v vars) *autograd.Variable { return v[0].Mul(v[1]).SparseSum() },
		},
		{
			"times a number",
			[]autograd.Value{a, {Dense: tensor.Must(tensor.Full(tensor.Float64, 3.0))}},
			func(v vars) *autograd.Variable { return v[0].Mul(v[1]).SparseSum() },
		},
		{"dense plus sparse", []autograd.Value{c, b}, func(v vars) *autograd.Variable { return v[0].Add(v[1]).Mul(v[0]).Sum() }},
		{"dense minus sparse", []autograd.Value{c, a}, func(v vars) *autograd.Variable { return v[0].Sub(v[1]).Exp().Sum() }},
		{"to dense", []autograd.Value{b, c}, func(v vars) *autograd.Variable { return v[0].ToDense().MatMul(v[1]).Tanh().Sum() }},
		{"stack", []autograd.Value{a, b}, func(v vars) *autograd.Variable {
			s := autograd.Stack(0, v[0], v[1])
			return s.Mul(autograd.Stack(0, v[1], v[1])).SparseSum()
		}},
		{"stack inside", []autograd.Value{a, b}, func(v vars) *autograd.Variable {
			s := autograd.Stack(1, v[0], v[1], v[0])
			return s.Mul(s).SparseSum()
		}},
		{"stack at the end", []autograd.Value{a, b}, func(v vars) *autograd.Variable {
			s := autograd.Stack(-1, v[0], v[1])
			return s.Mul(s).SparseSum()
		}},
		{"round trips", []autograd.Value{a, b, a}, func(v vars) *autograd.Variable { // PyTorch's test of several round trips
			val := v[2].Mul(v[0].Add(v[1].Detach()))
			val = autograd.Stack(0, v[1].Detach(), val).Mul(autograd.Stack(0, v[2], val))
			return val.Mul(val).SparseSum()
		}},
		{"nested", []autograd.Value{a, b}, func(v vars) *autograd.Variable { // PyTorch's test of nested functions
			t3, t4 := v[0].Mul(v[1]), v[0].Add(v[1])
			return v[0].Mul(v[1]).Mul(t3).Mul(t4).Mul(t3.Add(t4)).SparseSum()
		}},
		{"embedding", []autograd.Value{c}, func(v vars) *autograd.Variable {
			e := autograd.SparseEmbedding(v[0], autograd.Constant(tensor.Must(tensor.From([]int64{2, 0, 2, 1}, 2, 2))), -1)
			return e.Mul(e).Sum()
		}},
		{"embedding of a product", []autograd.Value{c, c}, func(v vars) *autograd.Variable {
			e := autograd.SparseEmbedding(v[0].Mul(v[1]).Scale(0.03), autograd.Constant(tensor.Must(tensor.From([]int64{2, 2}, 2))), -1)
			return e.Exp().Sum()
		}},
		{"embedding of a function of dense tensors", []autograd.Value{c}, func(v vars) *autograd.Variable {
			e := autograd.SparseEmbedding(v[0].Tanh(), autograd.Constant(tensor.Must(tensor.From([]int64{2, 2}, 2))), -1)
			return e.Mul(e).Sum()
		}},
		{"stack of dense ones", []autograd.Value{c, c}, func(v vars) *autograd.Variable {
			return autograd.Stack(-1, v[0], v[1].Exp()).Mul(autograd.Stack(2, v[1], v[0])).Sum()
		}},
	}
}

// TestSparseGradients: the gradient by every stored value is that of finite differences.
func TestSparseGradients(t *testing.T) {
	t.Parallel()
	for _, e := range sparseExpressions() {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			in := sparseExpressions()[slices.IndexFunc(sparseExpressions(), func(x expression) bool { return x.name == e.name })].in
			leaves := make([]*autograd.Variable, len(in))
			constants := make([]*autograd.Variable, len(in))
			for i, v := range in { // copies: values are changed below
				if v.Sparse != nil {
					s, err := sparseops.Clone(v.Sparse)
					if err != nil {
						t.Fatal(err)
					}
					in[i].Sparse = s
					leaves[i], constants[i] = autograd.SparseParameter(s), autograd.SparseConstant(s)
				} else {
					in[i].Dense = tensor.Must(v.Dense.Clone())
					leaves[i], constants[i] = autograd.Parameter(in[i].Dense), autograd.Constant(in[i].Dense)
				}
			}
			if err := e.f(leaves).Backward(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, v := range in {
				if leaves[i].GradValue().IsNone() {
					if e.name != "round trips" {
						t.Errorf("input %d has no gradient", i)
					}
					continue
				}
				grad, err := tensor.Copy[float64](dense(t, leaves[i].GradValue()))
				if err != nil {
					t.Fatal(err)
				}
				stored := v.Dense
				if v.Sparse != nil {
					stored = v.Sparse.Values
				}
				x, err := tensor.Data[float64](stored)
				if err != nil {
					t.Fatal(err)
				}
				for j, old := range x {
					const step = 1e-6
					x[j] = old + step
					up := e.f(constants)
					x[j] = old - step
					down := e.f(constants)
					x[j] = old
					if err := up.Err(); err != nil {
						t.Fatal(err)
					}
					at := j
					if v.Sparse != nil {
						index, _ := tensor.Copy[int64](v.Sparse.Indices)
						at = int(index[j]*3 + index[len(x)+j])
					}
					want := (up.Item() - down.Item()) / (2 * step)
					if math.Abs(want-grad[at]) > 1e-5+1e-4*math.Abs(want) {
						t.Errorf("input %d, value %d: the gradient is %v, finite differences give %v", i, j, grad[at], want)
					}
				}
			}
		})
	}
}

// TestSparseLayouts: which gradients are sparse, as in PyTorch.
func TestSparseLayouts(t *testing.T) {
	t.Parallel()
	for _, e := range sparseExpressions() {
		leaves := make([]*autograd.Variable, len(e.in))
		for i, v := range e.in {
			leaves[i] = parameterOf(v)
		}
		if err := e.f(leaves).Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, v := range leaves {
			want := true
			switch e.name {
			case "dense plus sparse", "dense minus sparse", "stack of dense ones":
				want = false // that of a sparse summand is dense in PyTorch 2, too
			case "times a number", "to dense":
				want = i == 0
			case "round trips":
				want = i != 1
			}
			if got := v.GradValue().Sparse != nil; got != want {
				t.Errorf("%s: that the gradient of input %d is sparse is %v", e.name, i, got)
			}
		}
	}
}

// TestSparseAccumulation: sparse gradients add up to a sparse one, and a dense one makes the sum dense, in either order.
func TestSparseAccumulation(t *testing.T) {
	t.Parallel()
	ids := autograd.Constant(tensor.Must(tensor.From([]int64{1, 1}, 2)))
	sparseLoss := func(w *autograd.Variable) *autograd.Variable { return autograd.SparseEmbedding(w, ids, -1).Sum() }
	denseLoss := func(w *autograd.Variable) *autograd.Variable { return w.Sum() }
	for name, c := range map[string]struct {
		losses []func(*autograd.Variable) *autograd.Variable
		sparse bool
		want   []float64
	}{
		"sparse":            {[]func(*autograd.Variable) *autograd.Variable{sparseLoss}, true, []float64{0, 2, 0}},
		"sparse and sparse": {[]func(*autograd.Variable) *autograd.Variable{sparseLoss, sparseLoss}, true, []float64{0, 4, 0}},
		"sparse and dense":  {[]func(*autograd.Variable) *autograd.Variable{sparseLoss, denseLoss}, false, []float64{1, 3, 1}},
		"dense and sparse":  {[]func(*autograd.Variable) *autograd.Variable{denseLoss, sparseLoss}, false, []float64{1, 3, 1}},
		"dense, sparse, dense": {
			[]func(*autograd.Variable) *autograd.Variable{denseLoss, sparseLoss, denseLoss},
			false,
			[]float64{2, 4, 2},
		},
	} {
		for _, together := range []bool{false, true} {
			w := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3}, 3, 1)))
			var err error
			if together { // in one pass
				var sum *autograd.Variable
				for _, f := range c.losses {
					if sum == nil {
						sum = f(w)
					} else {
						sum = sum.Add(f(w))
					}
				}
				err = sum.Backward(t.Context())
			} else {
				for _, f := range c.losses {
					err = errors.Join(err, f(w).Backward(t.Context()))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			g := w.GradValue()
			if got, _ := tensor.Copy[float64](dense(t, g)); (g.Sparse != nil) != c.sparse || !slices.Equal(got, c.want) {
				t.Errorf("%s, together %v: %v", name, together, g)
			}
			if (w.Grad() == nil) != c.sparse {
				t.Errorf("%s: Grad is %v", name, w.Grad())
			}
		}
	}
}

// TestSparseGradientIsKept: gradients that two leaves share do not change together, and a hook sees and replaces sparse ones.
func TestSparseGradientIsKept(t *testing.T) {
	t.Parallel()
	x, y := autograd.SparseParameter(sparseA()), autograd.SparseParameter(sparseA())
	seen := 0
	if _, err := y.OnGradValue(func(g autograd.Value) (autograd.Value, error) {
		seen++
		s, err := sparseops.Add(g.Sparse, g.Sparse)
		return autograd.Value{Sparse: s}, err
	}); err != nil {
		t.Fatal(err)
	}
	sum := x.Add(y)
	if err := sum.RetainGrad(); err != nil {
		t.Fatal(err)
	}
	loss := sum.SparseSum()
	for range 2 {
		if err := loss.Backward(t.Context(), autograd.RetainGraph()); err != nil {
			t.Fatal(err)
		}
	}
	for v, want := range map[*autograd.Variable]float64{x: 2, y: 4, sum: 2} {
		got, _ := tensor.Copy[float64](v.GradValue().Sparse.Values)
		if !slices.Equal(got, []float64{want, want, want}) {
			t.Errorf("gradient %v, want %v", got, want)
		}
	}
	if seen != 2 {
		t.Errorf("the hook was called %d times", seen)
	}
	x.ZeroGrad()
	if !x.GradValue().IsNone() {
		t.Error("the gradient was not forgotten")
	}
	got, err := autograd.Grad(t.Context(), []*autograd.Variable{loss}, nil, []*autograd.Variable{x})
	if err != nil || got[0].Sparse == nil || !slices.Equal(values64(t, dense(t, got[0])), []float64{0, 0, 1, 1, 0, 1, 0, 0, 0}) {
		t.Errorf("Grad returns %v, %v", got, err)
	}
}

// TestSparseGrad: Grad returns the gradient of a table as it is. The table may be computed: functions that PyTorch has sparse gradients for
// (sums, products, exp) and other functions of single elements keep it sparse, the others get it in dense form. Values are those of a
// table with dense gradients.
func TestSparseGrad(t *testing.T) {
	t.Parallel()
	ids := autograd.Constant(tensor.Must(tensor.From([]int64{1, 2, 2})))
	other := autograd.Constant(tensor.Must(tensor.From([]float64{2, 3, 4})))
	for name, c := range map[string]struct {
		f      func(*autograd.Variable) *autograd.Variable
		sparse bool
	}{
		"itself":    {func(w *autograd.Variable) *autograd.Variable { return w }, true},
		"scale":     {func(w *autograd.Variable) *autograd.Variable { return w.Scale(0.5) }, true},
		"sub":       {func(w *autograd.Variable) *autograd.Variable { return w.Sub(other) }, true},
		"mul":       {func(w *autograd.Variable) *autograd.Variable { return w.Mul(other) }, true},
		"exp":       {(*autograd.Variable).Exp, true},
		"neg":       {(*autograd.Variable).Neg, true},
		"tanh":      {(*autograd.Variable).Tanh, true},
		"reshape":   {func(w *autograd.Variable) *autograd.Variable { return w.Reshape(3, 4).Reshape(4, 3) }, false},
		"transpose": {func(w *autograd.Variable) *autograd.Variable { return w.Transpose(0, 1).Transpose(0, 1) }, false},
	} {
		w := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 4, 3)))
		var got [2]autograd.Value
		for i, sparse := range []bool{true, false} {
			look := autograd.Embedding
			if sparse {
				look = autograd.SparseEmbedding
			}
			y := look(c.f(w), ids, -1)
			gs, err := autograd.Grad(t.Context(), []*autograd.Variable{y.Mul(y).Sum()}, nil, []*autograd.Variable{w})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got[i] = gs[0]
		}
		if (got[0].Sparse != nil) != c.sparse || got[1].Sparse != nil {
			t.Errorf("%s: the gradients are %v and %v", name, got[0], got[1])
		}
		if x, y := values64(t, dense(t, got[0])), values64(t, dense(t, got[1])); !slices.Equal(x, y) {
			t.Errorf("%s: %v, want %v", name, x, y)
		}
	}
}

// TestSparseRoots: the gradient of a root may be sparse, whether the root is or not, and roots that are given twice add up.
func TestSparseRoots(t *testing.T) {
	t.Parallel()
	x, y := autograd.SparseParameter(sparseA()), autograd.Parameter(tensor.Must(tensor.New(tensor.Float64, 3, 3)))
	for _, v := range []*autograd.Variable{x, y} {
		root := v.Scale(2)
		err := autograd.Backward(t.Context(), []*autograd.Variable{root, root}, []autograd.Value{{Sparse: sparseA()}, {Sparse: sparseA()}})
		if err != nil {
			t.Fatal(err)
		}
		want, err := sparseops.Dense(sparseA())
		if err != nil {
			t.Fatal(err)
		}
		times4 := values64(t, want)
		for i := range times4 {
			times4[i] *= 4
		}
		if g := v.GradValue(); g.Sparse == nil || !slices.Equal(values64(t, dense(t, g)), times4) {
			t.Errorf("gradient %v, want %v", g, times4)
		}
	}
	bad := sparseA()
	bad.Shape = []int{1, 1}
	for _, g := range []*tensor.Sparse{bad, {Indices: bad.Indices, Values: bad.Values, Shape: []int{3, 3, 3}}} {
		if err := autograd.Backward(t.Context(), []*autograd.Variable{y.Scale(2)}, []autograd.Value{{Sparse: g}}); !errors.Is(err,
			cohort.InvalidArgument) {
			t.Errorf("a bad gradient: %v", err)
		}
	}
}

func values64(t *testing.T, x *tensor.Tensor) []float64 {
	t.Helper()
	v, err := tensor.Copy[float64](x)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSparseTypes: gradients have the type of what they belong to.
func TestSparseTypes(t *testing.T) {
	t.Parallel()
	s, err := sparseops.Convert(sparseA(), tensor.Float32)
	if err != nil {
		t.Fatal(err)
	}
	x, y := autograd.SparseParameter(s), autograd.SparseParameter(sparseA())
	sum := x.Add(y)
	if err := errors.Join(sum.SparseSum().Backward(t.Context()), y.To(tensor.Float32).SparseSum().Backward(t.Context())); err != nil {
		t.Fatal(err)
	}
	if sum.DType() != tensor.Float64 || x.GradValue().DType() != tensor.Float32 || y.GradValue().DType() != tensor.Float64 {
		t.Errorf("%v with gradients %v and %v", sum.DType(), x.GradValue().DType(), y.GradValue().DType())
	}
	if got := values64(t, y.GradValue().Sparse.Values); !slices.Equal(got, []float64{2, 2, 2}) {
		t.Errorf("gradient %v", got)
	}
}

// TestSparseSize: a tensor of a few values may have any shape, as a message can. What is computed with it is never of that size.
func TestSparseSize(t *testing.T) {
	t.Parallel()
	const huge = 1 << 20 // eight terabytes of elements
	x := autograd.SparseParameter(&tensor.Sparse{
		Shape: []int{huge, huge}, Indices: tensor.Must(tensor.From([]int64{huge - 1, 5, 7, huge - 1}, 2, 2)),
		Values: tensor.Must(tensor.From([]float64{2, 3})),
	})
	w := autograd.Parameter(tensor.Must(tensor.From([]float64{5}, 1)))
	y := x.Mul(w).Add(x).Sub(x.Scale(0.5))
	if err := autograd.Stack(0, y, y.Mul(y)).SparseSum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	// y = x (w + 1/2): the sum is s1 (w + 1/2) + s2 (w + 1/2)^2.
	if got := dense(t, w.GradValue()); !slices.Equal(values64(t, got), []float64{5 + 2*13*5.5}) {
		t.Errorf("the gradient of the factor is %v", got)
	}
	if got := values64(t, x.GradValue().Sparse.Values); !slices.Equal(got, []float64{5.5 + 2*3*5.5*5.5, 5.5 + 2*2*5.5*5.5}) {
		t.Errorf("the gradient is %v", got)
	}
}

func TestSparsePadding(t *testing.T) {
	t.Parallel()
	w := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3}, 3, 1)))
	ids := autograd.Constant(tensor.Must(tensor.From([]int64{1, 2, 1}, 3)))
	if err := autograd.SparseEmbedding(w, ids, 1).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.GradValue().Sparse; got.Values.Dim(0) != 1 || !slices.Equal(values64(t, dense(t, w.GradValue())), []float64{0, 0, 1}) {
		t.Errorf("gradient %v", got)
	}
}

func TestSparseRefused(t *testing.T) {
	t.Parallel()
	x := autograd.SparseParameter(sparseA())
	d := autograd.Parameter(denseC())
	for name, c := range map[string]struct {
		v    *autograd.Variable
		code cohort.Code
		says string
	}{
		"a function of dense tensors": {x.Exp(), cohort.NotSupported, "ToDense"},
		"sum":                         {x.Sum(), cohort.NotSupported, "ToDense"},
		"sparse plus dense":           {x.Add(d), cohort.NotSupported, "put the dense one first"},
		"shift":                       {x.Shift(1), cohort.NotSupported, "ToDense"},
		"another shape":               {x.Add(autograd.Stack(0, x, x)), cohort.InvalidArgument, "not broadcast"},
		"a mixed stack":               {autograd.Stack(0, x, d), cohort.NotSupported, "input 1 is dense"},
		"a sum of dense ones":         {d.SparseSum(), cohort.InvalidArgument, "takes a sparse one"},
		"integers": {autograd.SparseParameter(
			&tensor.Sparse{
				Shape: []int{1}, Indices: tensor.Must(tensor.New(tensor.Int64, 1, 0)),
				Values: tensor.Must(tensor.New(tensor.Int64, 0)),
			}), cohort.InvalidArgument, "floating point"},
		"no tensor":        {autograd.SparseConstant(nil), cohort.InvalidArgument, "no tensor"},
		"an index outside": {autograd.SparseConstant(coordinates([]int64{3}, []int64{0}, 1)), cohort.InvalidArgument, "outside"},
		"a sparse table": {
			autograd.SparseEmbedding(x, autograd.Constant(tensor.Must(tensor.From([]int64{1}))), -1),
			cohort.NotSupported, "dense",
		},
	} {
		if err := c.v.Err(); !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := x.Backward(t.Context()); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a sparse root: %v", err)
	}
	if _, err := x.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if err := x.SparseSum().Backward(context.Background()); !errors.Is(err, cohort.NotSupported) ||
		!strings.Contains(err.Error(), "OnGradValue") {
		t.Errorf("a hook of dense gradients: %v", err)
	}
}
