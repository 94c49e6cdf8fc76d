// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	_ "embed"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	ag "github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed odd.py
var oddScript string

// oddOps does what the functions of odd.py do.
var oddOps = map[string]func(x []register, a []float64) register{
	"neg":      func(x []register, _ []float64) register { return x[0].Neg() },
	"abs":      func(x []register, _ []float64) register { return x[0].Abs() },
	"exp":      func(x []register, _ []float64) register { return x[0].Exp() },
	"log":      func(x []register, _ []float64) register { return x[0].Log() },
	"sqrt":     func(x []register, _ []float64) register { return x[0].Sqrt() },
	"sin":      func(x []register, _ []float64) register { return x[0].Sin() },
	"cos":      func(x []register, _ []float64) register { return x[0].Cos() },
	"tanh":     func(x []register, _ []float64) register { return x[0].Tanh() },
	"sigmoid":  func(x []register, _ []float64) register { return x[0].Sigmoid() },
	"relu":     func(x []register, _ []float64) register { return x[0].ReLU() },
	"gelu":     func(x []register, _ []float64) register { return x[0].GELU() },
	"gelutanh": func(x []register, _ []float64) register { return x[0].GELUTanh() },
	"pow":      func(x []register, a []float64) register { return x[0].Pow(a[0]) },
	"scale":    func(x []register, a []float64) register { return x[0].Scale(a[0]) },
	"shift":    func(x []register, a []float64) register { return x[0].Shift(a[0]) },
	"add":      func(x []register, _ []float64) register { return x[0].Add(x[1]) },
	"sub":      func(x []register, _ []float64) register { return x[0].Sub(x[1]) },
	"mul":      func(x []register, _ []float64) register { return x[0].Mul(x[1]) },
	"div":      func(x []register, _ []float64) register { return x[0].Div(x[1]) },
	"matmul":   func(x []register, _ []float64) register { return x[0].MatMul(x[1]) },
	"linear": func(x []register, _ []float64) register {
		if len(x) == 2 {
			return ag.Linear(x[0], x[1], nil)
		}
		return ag.Linear(x[0], x[1], x[2])
	},
	"sum":        func(x []register, _ []float64) register { return x[0].Sum() },
	"mean":       func(x []register, _ []float64) register { return x[0].Mean() },
	"max":        func(x []register, _ []float64) register { return x[0].Max() },
	"sumdim":     func(x []register, a []float64) register { return x[0].Sum(int(a[0])) },
	"meandim":    func(x []register, a []float64) register { return x[0].Mean(int(a[0])) },
	"maxdim":     func(x []register, a []float64) register { m, _ := x[0].MaxDim(int(a[0]), false); return m },
	"softmax":    func(x []register, a []float64) register { return x[0].Softmax(int(a[0])) },
	"logsoftmax": func(x []register, a []float64) register { return x[0].LogSoftmax(int(a[0])) },
	"entropy": func(x []register, a []float64) register {
		return ag.CrossEntropy(x[0], x[1].Data(), ag.Reduction(a[0]))
	},
	"mse":       func(x []register, a []float64) register { return ag.MSE(x[0], x[1], ag.Reduction(a[0])) },
	"embedding": func(x []register, _ []float64) register { return ag.Embedding(x[0], x[1], -1) },
	"index":     func(x []register, _ []float64) register { return x[0].IndexSelect(x[1].Data()) },
	"layernorm": func(x []register, _ []float64) register { return ag.LayerNorm(x[0], nil, nil, 1, 1e-5) },
	"cat":       func(x []register, a []float64) register { return ag.Cat(int(a[0]), x...) },
	"stack":     func(x []register, a []float64) register { return ag.Stack(int(a[0]), x...) },
	"select":    func(x []register, a []float64) register { return x[0].Select(int(a[0]), int(a[1])) },
	"slice":     func(x []register, a []float64) register { return x[0].Slice(0, int(a[0]), int(a[1]), int(a[2])) },
	"reshape":   func(x []register, a []float64) register { return x[0].Reshape(whole(a)...) },
	"expand":    func(x []register, a []float64) register { return x[0].Expand(whole(a)...) },
	"transpose": func(x []register, a []float64) register { return x[0].Transpose(int(a[0]), int(a[1])) },
	"permute":   func(x []register, a []float64) register { return x[0].Permute(whole(a)...) },
	"to": func(x []register, a []float64) register {
		return x[0].To([]tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16}[int(a[0])])
	},
}

func whole(a []float64) []int {
	out := make([]int, len(a))
	for i, v := range a {
		out[i] = int(v)
	}
	return out
}

// oddCase is a function with its arguments.
type oddCase struct {
	op      string
	args    []float64
	inputs  []argument
	weights []float64 // the gradient of the result, repeated
}

func oddCases(t *testing.T) (all []oddCase) {
	t.Helper()
	nan, inf := math.NaN(), math.Inf(1)
	odd := []float64{math.Copysign(0, -1), 0, 1, -1.5, nan, inf, -inf, 88, -104, 1e-42, 3e38, 20, -20, 1e-8}
	add := func(op string, args []float64, inputs ...argument) {
		all = append(all, oddCase{op, append([]float64{}, args...), inputs, []float64{1, -2, 0.5, 0, 3}})
	}
	f32, f64 := tensor.Float32, tensor.Float64
	floats := []tensor.DType{f32, f64}
	of := func(dt tensor.DType, values []float64, shape ...int) argument {
		return tensorArgument(t, dt, false, values, shape...)
	}
	scalar := func(dt tensor.DType, v float64) argument { return of(dt, []float64{v}, []int{}...) }
	empty := func(dt tensor.DType, shape ...int) argument { return of(dt, []float64{}, shape...) }
	for _, dt := range append(floats, tensor.BFloat16, tensor.Int64, tensor.Bool) {
		values := odd
		if tensorops.KindOf(dt) != tensorops.Real {
			values = []float64{0, 1, 1, 0, 1, 1}
		}
		unary := []string{
			"neg", "abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "relu", "gelu", "gelutanh", "sum",
			"mean", "max",
		}
		if dt == tensor.BFloat16 {
			unary = slices.DeleteFunc(unary, func(s string) bool { return strings.HasPrefix(s, "gelu") }) // not in PyTorch 1.13
		}
		for _, op := range unary {
			some := values
			if strings.HasPrefix(op, "gelu") && tensorops.KindOf(dt) == tensorops.Real { // PyTorch's kernels overflow, each in its own way
				some = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsInf(v, 0) || v > 1e30 })
			}
			add(op, nil, of(dt, some))
			add(op, nil, tensorArgument(t, dt, true, values[:6], 2, 3))
			add(op, nil, scalar(dt, 1))
			add(op, nil, empty(dt, 0))
			add(op, nil, empty(dt, 3, 0, 2))
		}
		for _, e := range []float64{0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, inf, -inf} {
			add("pow", []float64{e}, of(dt, values))
		}
		for _, by := range []float64{0, -2.5, inf, 1e300, 3} {
			add("scale", []float64{by}, of(dt, values))
			add("shift", []float64{by}, of(dt, values))
		}
	}
	for _, op := range []string{"add", "sub", "mul", "div"} {
		for _, dt := range floats {
			pairs := make([][2]float64, 0, len(odd)*len(odd))
			for _, x := range odd {
				for _, y := range odd {
					pairs = append(pairs, [2]float64{x, y})
				}
			}
			var a, b []float64
			for _, p := range pairs {
				a, b = append(a, p[0]), append(b, p[1])
			}
			add(op, nil, of(dt, a), of(dt, b))
		}
		for _, other := range []tensor.DType{f64, tensor.BFloat16, tensor.Int64, tensor.Bool, tensor.Uint8} {
			add(op, nil, of(f32, []float64{1, 2, 3}), of(other, []float64{1, 1, 1}))
			add(op, nil, of(f32, []float64{1, 2, 3}), scalar(other, 1))
			add(op, nil, scalar(f32, 2), of(other, []float64{1, 1, 1}))
			add(op, nil, of(other, []float64{1, 1, 1}), of(f32, []float64{4, 5}, 2, 1))
		}
		add(op, nil, of(f32, []float64{1, 2, 3, 4, 5, 6}, 2, 1, 3), of(f32, []float64{1, 2, 3, 4}, 4, 1))
		add(op, nil, of(f32, []float64{1, 2, 3}), of(f32, []float64{1, 2}))
		add(op, nil, empty(f32, 0), scalar(f32, 2))
		add(op, nil, empty(f32, 2, 0), of(f32, []float64{1, 2}, 2, 1))
		add(op, nil, empty(f32, 0), of(f32, []float64{1}))
		add(op, nil, empty(f32, 0), of(f32, []float64{1, 2}))
		add(op, nil, empty(f32, 0, 1), empty(f32, 1, 0))
	}
	rows := []float64{1, 2, 3, nan, 1, 2, inf, inf, 1, -inf, -inf, -inf, -inf, 3, inf, 3e38, 3e38, -3e38, 5, 5, 5}
	for _, dt := range floats {
		for _, op := range []string{"softmax", "logsoftmax", "sumdim", "meandim", "maxdim"} {
			for _, dim := range []float64{0, 1, -1, 2, -3} {
				add(op, []float64{dim}, of(dt, rows, 7, 3))
				add(op, []float64{dim}, tensorArgument(t, dt, true, rows, 3, 7))
				add(op, []float64{dim}, empty(dt, 0, 3))
				add(op, []float64{dim}, empty(dt, 3, 0))
			}
			for _, dim := range []float64{0, -1, 1} {
				add(op, []float64{dim}, scalar(dt, 2))
			}
		}
		add("layernorm", nil, of(dt, rows, 7, 3))
		add("layernorm", nil, of(dt, append(slices.Repeat([]float64{2e19}, 8), slices.Repeat([]float64{0}, 8)...)))
		add("layernorm", nil, of(dt, append(slices.Repeat([]float64{3e38}, 8), slices.Repeat([]float64{-3e38}, 8)...)))
		for _, op := range []string{"softmax", "logsoftmax"} {
			all = append(all, oddCase{
				op,
				[]float64{0},
				[]argument{of(dt, []float64{1, 2, 3, 1, 2})},
				[]float64{3e38, 3e38, -3e38, 3e38, 1},
			})
		}
		add("sum", nil, of(dt, []float64{3e38, 3e38, -3e38, 1}, 2, 2))
		add("mean", nil, of(dt, []float64{3e38, 3e38, 3e38, -3e38}, 2, 2))
		add("layernorm", nil, of(dt, []float64{7, 7, 1e-20, 0, 0, 3}, 6, 1))
		add("layernorm", nil, empty(dt, 0, 3))
		for _, r := range []float64{0, 1, 2} {
			red := []float64{r}
			add("entropy", red, of(dt, rows, 7, 3), of(tensor.Int64, []float64{0, 1, 2, 0, 1, -100, 2}))
			add("entropy", red, of(dt, rows[:3], 1, 3), of(tensor.Int64, []float64{-100}))
			add("entropy", red, of(dt, rows[:3], 1, 3), of(tensor.Int64, []float64{3}))
			add("entropy", red, of(dt, rows[:3], 1, 3), of(tensor.Int64, []float64{-1}))
			add("entropy", red, of(dt, rows[:3], 1, 3), of(tensor.Int64, []float64{1, 2}))
			add("entropy", red, of(dt, rows[:3], 3), scalar(tensor.Int64, 2))
			add("entropy", red, empty(dt, 0, 3), empty(tensor.Int64, 0))
			add("mse", red, of(dt, odd), of(dt, odd))
			add("mse", red, empty(dt, 0), empty(dt, 0))
			add("mse", red, scalar(dt, 3), scalar(dt, 1))
			add("mse", red, of(dt, rows[:3], 3, 1), of(dt, odd[:5]))
			add("mse", red, of(dt, rows[:6], 2, 3), scalar(dt, 1))
			add("mse", red, of(dt, rows[:3]), of(dt, rows[:2]))
		}
	}
	add("layernorm", nil, of(f32, []float64{3e38, 3e38, 3e38, 1e20, 1, 2, 1e20, 1e20, -1e20, 3e38, 1e38, 2e38, 1, 2, 3}, 5, 3))
	m := func(dt tensor.DType, transposed bool, shape ...int) argument {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(i%7) - 2.5
		}
		return tensorArgument(t, dt, transposed, v, shape...)
	}
	for _, shapes := range [][2][]int{
		{{3, 4}, {4, 2}},
		{{3, 0}, {0, 2}},
		{{0, 3}, {3, 2}},
		{{3, 4}, {4}},
		{{4}, {4, 2}},
		{{4}, {4}},
		{{0}, {0}},
		{{2, 3, 4}, {4, 5}},
		{{2, 3, 4}, {2, 4, 5}},
		{{2, 1, 3, 4}, {5, 4, 2}},
		{{3, 4}, {5, 4, 2}},
		{{4}, {5, 4, 2}},
		{{5, 2, 4}, {4}},
		{{0, 2, 4}, {4, 3}},
		{{0, 2, 4}, {1, 4, 3}},
		{{3, 4}, {3, 4}},
		{{}, {4}},
		{{2, 3, 4}, {3, 4, 5}},
	} {
		add("matmul", nil, m(f32, false, shapes[0]...), m(f32, false, shapes[1]...))
	}
	add("matmul", nil, m(f32, true, 4, 3), m(f32, true, 2, 4))
	add("matmul", nil, m(f32, false, 3, 4), m(f64, false, 4, 2))
	add("matmul", nil, of(f32, []float64{inf, 0, nan, 1}, 2, 2), of(f32, []float64{0, 1, inf, 0}, 2, 2))
	for _, x := range [][]int{{3, 4}, {4}, {2, 3, 4}, {0, 4}, {2, 0, 4}} {
		add("linear", nil, m(f32, false, x...), m(f32, false, 2, 4), m(f32, false, 2))
		add("linear", nil, m(f32, false, x...), m(f32, false, 2, 4))
	}
	add("linear", nil, m(f32, false, 3, 0), m(f32, false, 2, 0), m(f32, false, 2))
	for _, bias := range [][]int{{}, {1}, {1, 2}, {3, 1}, {3, 2}, {2, 2}, {3}, {0}, {1, 1}, {1, 3, 2}} {
		add("linear", nil, m(f32, false, 3, 4), m(f32, false, 2, 4), m(f32, false, bias...))
		if len(bias) < 2 { // of others PyTorch's versions think differently
			add("linear", nil, m(f32, false, 4), m(f32, false, 2, 4), m(f32, false, bias...))
		}
	}
	ids := func(shape []int, v ...float64) argument { return of(tensor.Int64, append([]float64{}, v...), shape...) }
	for _, op := range []string{"embedding", "index"} {
		add(op, nil, m(f32, false, 4, 3), ids([]int{3}, 1, 1, 3))
		add(op, nil, m(f32, true, 3, 4), ids([]int{2, 2}, 1, 1, 3, 0))
		add(op, nil, m(f32, false, 4, 3), ids([]int{}, 2))
		add(op, nil, m(f32, false, 4, 3), ids([]int{0}))
		add(op, nil, m(f32, false, 4, 3), ids([]int{1}, 4))
		add(op, nil, m(f32, false, 4, 3), ids([]int{1}, -1))
		add(op, nil, m(f32, false, 4, 0), ids([]int{2}, 1, 2))
		add(op, nil, m(f32, false, 0, 3), ids([]int{1}, 0))
	}
	add("embedding", nil, m(f32, false, 4, 3), of(tensor.Int32, []float64{1, 2}))
	add("index", nil, m(f32, false, 4, 3), ids([]int{2}, -4, 3))
	add("index", nil, m(f32, false, 4, 3), ids([]int{2}, -5, 3))
	add("index", nil, m(f32, false, 4), ids([]int{1, 1}, -1))
	add("index", nil, m(f32, false, 4), ids([]int{2}, 3, 3))
	add("index", nil, m(f32, false, 4, 2, 3), ids([]int{2}, 3, 3))
	add("index", nil, m(f32, false, 4, 0, 3), ids([]int{2}, 3, 3))
	for _, dim := range []float64{0, 1, -1, 2, -3} {
		d := []float64{dim}
		add("cat", d, m(f32, false, 2, 3), m(f32, true, 3, 2))
		add("cat", d, m(f32, false, 2, 3), m(f64, false, 2, 3), m(tensor.Int64, false, 2, 3))
		add("cat", d, m(f32, false, 2, 3), m(f32, false, 2, 1))
		add("cat", d, m(f32, false, 2, 3), m(f32, false, 0, 3))
		add("cat", d, m(f32, false, 2, 3), empty(f32, 0))
		add("cat", d, empty(f32, 0), m(f32, false, 2, 3))
		add("cat", d, scalar(f32, 1), scalar(f32, 1))
		add("stack", d, m(f32, false, 2, 3), m(f32, true, 3, 2))
		add("stack", d, m(f32, false, 2, 3), m(f64, false, 2, 3))
		add("stack", d, scalar(f32, 1), scalar(f32, 2))
		add("stack", d, m(f32, false, 2, 3), m(f32, false, 3, 2))
		for _, i := range []float64{0, -1, 2, -3, 5} {
			add("select", []float64{dim, i}, m(f32, false, 2, 3))
			add("transpose", []float64{dim, i}, m(f32, false, 2, 3))
		}
	}
	for _, s := range [][]float64{{0, 2, 1}, {-2, 5, 1}, {0, -1, 1}, {3, 1, 1}, {0, 4, 3}, {-9, 9, 2}, {4, 4, 1}, {1, 2, 0}} {
		add("slice", s, m(f32, false, 4, 3))
		add("slice", s, empty(f32, 0, 3))
	}
	for _, s := range [][]float64{{6}, {3, 2}, {-1}, {2, -1}, {-1, -1}, {4}, {0, -1}, {1, 6, 1}, {}} {
		add("reshape", s, m(f32, false, 2, 3))
		add("reshape", s, m(f32, true, 2, 3))
		add("reshape", s, empty(f32, 0, 3))
		add("reshape", s, scalar(f32, 1))
	}
	for _, s := range [][]float64{{2, 3}, {4, 2, 3}, {-1, 3}, {2, -1}, {-1, -1, 3}, {3}, {0, 3}, {2, 0}} {
		add("expand", s, m(f32, false, 1, 3))
		add("expand", s, m(f32, false, 2, 1))
		add("expand", s, scalar(f32, 3))
	}
	for _, s := range [][]float64{{1, 0}, {-1, 0}, {0, 0}, {0}, {0, 1, 2}, {0, 2}} {
		add("permute", s, m(f32, false, 2, 3))
	}
	for _, to := range []float64{0, 1, 2} {
		for _, dt := range append(floats, tensor.Int64) {
			values := odd
			if dt == tensor.Int64 {
				values = []float64{1, 2, 1 << 25, -7}
			}
			add("to", []float64{to}, of(dt, values))
		}
	}
	return all
}

// oddResult is a tensor of PyTorch.
type oddResult struct {
	DType  string   `json:"dtype"`
	Shape  []int    `json:"shape"`
	Values []string `json:"values"`
}

// differs reports how a tensor differs from PyTorch's, or nothing.
func (want *oddResult) differs(t *testing.T, got *tensor.Tensor) string {
	t.Helper()
	if got == nil || want == nil {
		if got == nil && want == nil {
			return ""
		}
		return "one has none"
	}
	if got.DType().String() != want.DType || !slices.Equal(got.Shape(), want.Shape) {
		return got.DType().String() + text(got.Shape()) + ", PyTorch " + want.DType + text(want.Shape)
	}
	wide, err := tensorops.Convert(got, tensor.Float64)
	if err != nil {
		t.Fatal(err)
	}
	values, err := tensor.Copy[float64](wide)
	if err != nil {
		t.Fatal(err)
	}
	tolerance := map[tensor.DType]float64{tensor.Float64: 1e-12, tensor.BFloat16: 1e-2, tensor.Float32: 1e-6}[got.DType()]
	for i, v := range values {
		w, err := strconv.ParseFloat(want.Values[i], 64)
		if err != nil {
			t.Fatal(err)
		}
		if !close64(v, w, tolerance) {
			return "element " + strconv.Itoa(i) + " is " + strconv.FormatFloat(v, 'g', -1, 64) + ", PyTorch " +
				strconv.FormatFloat(w, 'g', -1, 64)
		}
	}
	return ""
}

// TestOddValues compares every function and its gradient with PyTorch's on values, types and shapes at the edges: what is not a number,
// infinite, empty, without dimensions, broadcast or of mixed types, and what is refused.
func TestOddValues(t *testing.T) {
	cases := oddCases(t)
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := torch.Start(t, torchtest.Script{Source: oddScript})
		for _, c := range cases {
			var inputs []any
			var vs []register
			for _, a := range c.inputs {
				inputs = append(inputs, a.json)
				x, _ := a.value.(*tensor.Tensor)
				v := ag.Constant(x)
				if tensorops.KindOf(x.DType()) == tensorops.Real {
					v = ag.Parameter(x)
				}
				vs = append(vs, v)
			}
			args := make([]any, len(c.args))
			for i, a := range c.args {
				args[i] = a
				if math.IsInf(a, 0) {
					args[i] = map[bool]string{true: "Infinity", false: "-Infinity"}[a > 0]
				}
			}
			want := ask[struct {
				Result *oddResult   `json:"result"`
				Grads  []*oddResult `json:"grads"`
				Error  string       `json:"error"`
			}](t, p, object{"op": c.op, "args": args, "inputs": inputs, "weights": c.weights})
			where := c.op + " " + text(args) + " of " + text(inputs)
			got, err := oddRun(t, c, vs)
			if (err != nil) != (want.Error != "") {
				t.Errorf("%s: %v, PyTorch %q", where, err, want.Error)
				continue
			}
			if err != nil {
				continue
			}
			if d := want.Result.differs(t, got.Data()); d != "" {
				t.Errorf("%s: %s", where, d)
			}
			for i, v := range vs {
				if d := want.Grads[i].differs(t, v.Grad()); d != "" {
					t.Errorf("%s: gradient %d: %s", where, i, d)
				}
			}
		}
	})
}

func oddRun(t *testing.T, c oddCase, vs []register) (register, error) {
	t.Helper()
	y := oddOps[c.op](vs, c.args)
	if y.Err() != nil || !y.RequiresGrad() {
		return y, y.Err()
	}
	w := make([]float64, y.Data().Numel())
	for i := range w {
		w[i] = c.weights[i%len(c.weights)]
	}
	g, err := tensorops.Convert(tensor.Must(tensor.Must(tensor.From(w)).Reshape(y.Shape()...)), y.DType())
	if err != nil {
		t.Fatal(err)
	}
	return y, ag.Backward(t.Context(), []register{y}, []ag.Value{{Dense: g}})
}
