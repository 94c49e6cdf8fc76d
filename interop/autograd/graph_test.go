// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package autograd compares gradients, type promotion, optimizers and files of parameters with real PyTorch.
package autograd

import (
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	ag "github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed graph.py
var graphScript string

type leaf struct {
	Bits  string `json:"bits"`
	Shape []int  `json:"shape"`
	Grad  bool   `json:"grad"`
	data  []float32
}

type step struct {
	Op   string `json:"op"`
	Args []int  `json:"args"`
}

// graph is a random program over registers; the first ones are leaves. roots are registers with their weights in the loss.
type graph struct {
	DType  string   `json:"dtype"`
	Leaves []leaf   `json:"leaves"`
	Steps  []step   `json:"steps"`
	Roots  [][2]any `json:"roots"`
}

type register = *ag.Variable

// ops does what the functions of graph.py do, in the same order of operations.
var ops = map[string]func(r []register, a []int) register{
	"add":        func(r []register, a []int) register { return r[a[0]].Add(r[a[1]]) },
	"sub":        func(r []register, a []int) register { return r[a[0]].Sub(r[a[1]]) },
	"mul":        func(r []register, a []int) register { return r[a[0]].Mul(r[a[1]]) },
	"div":        func(r []register, a []int) register { return r[a[0]].Div(r[a[1]].Mul(r[a[1]]).Shift(1)) },
	"scale":      func(r []register, a []int) register { return r[a[0]].Scale(-0.75) },
	"shift":      func(r []register, a []int) register { return r[a[0]].Shift(0.5) },
	"neg":        func(r []register, a []int) register { return r[a[0]].Neg() },
	"abs":        func(r []register, a []int) register { return r[a[0]].Abs() },
	"exp":        func(r []register, a []int) register { return r[a[0]].Tanh().Exp() },
	"log":        func(r []register, a []int) register { return r[a[0]].Abs().Shift(1).Log() },
	"sqrt":       func(r []register, a []int) register { return r[a[0]].Abs().Shift(1).Sqrt() },
	"square":     func(r []register, a []int) register { return r[a[0]].Tanh().Pow(2) },
	"tanh":       func(r []register, a []int) register { return r[a[0]].Tanh() },
	"sigmoid":    func(r []register, a []int) register { return r[a[0]].Sigmoid() },
	"relu":       func(r []register, a []int) register { return r[a[0]].ReLU() },
	"gelu":       func(r []register, a []int) register { return r[a[0]].GELU() },
	"gelutanh":   func(r []register, a []int) register { return r[a[0]].GELUTanh() },
	"softmax":    func(r []register, a []int) register { return r[a[0]].Softmax(a[1]) },
	"logsoftmax": func(r []register, a []int) register { return r[a[0]].LogSoftmax(a[1]) },
	"sum":        func(r []register, a []int) register { return r[a[0]].SumKeep(true, a[1]) },
	"mean":       func(r []register, a []int) register { return r[a[0]].MeanKeep(true, a[1]) },
	"max":        func(r []register, a []int) register { m, _ := r[a[0]].MaxDim(a[1], true); return m },
	"maxall":     func(r []register, a []int) register { return r[a[0]].Max() },
	"transpose":  func(r []register, a []int) register { return r[a[0]].Transpose(0, 1) },
	"flip": func(r []register, a []int) register {
		s := r[a[0]].Shape()
		return r[a[0]].Reshape(s[1], s[0])
	},
	"rows":   func(r []register, a []int) register { return r[a[0]].Slice(0, 0, 2, 1) },
	"cols":   func(r []register, a []int) register { return r[a[0]].Slice(1, 0, r[a[0]].Shape()[1], 2) },
	"select": func(r []register, a []int) register { return r[a[0]].Select(0, -1) },
	"cat":    func(r []register, a []int) register { return ag.Cat(1, r[a[0]], r[a[0]].Scale(2)) },
	"index": func(r []register, a []int) register {
		return r[a[0]].IndexSelect(tensor.Must(tensor.From([]int64{1, 0, 1})))
	},
	"matmul": func(r []register, a []int) register { return r[a[0]].MatMul(r[a[1]].Transpose(0, 1)) },
	"batch": func(r []register, a []int) register {
		s := append([]int{1}, r[a[0]].Shape()...)
		return ag.Cat(0, r[a[0]].Reshape(s...), r[a[0]].Scale(2).Reshape(s...)).MatMul(r[a[1]].Transpose(0, 1)).Sum(0)
	},
	"norm": func(r []register, a []int) register { return ag.LayerNorm(r[a[0]], nil, nil, 1, 1e-5) },
	"entropy": func(r []register, a []int) register {
		s := r[a[0]].Shape()
		ids := make([]int64, s[0])
		for i := range ids {
			ids[i] = int64(i % s[1])
		}
		return ag.CrossEntropy(r[a[0]], tensor.Must(tensor.From(ids)), ag.ReduceMean)
	},
	"mse":    func(r []register, a []int) register { return ag.MSE(r[a[0]], r[a[1]].Detach(), ag.ReduceMean) },
	"detach": func(r []register, a []int) register { return r[a[0]].Detach() },
}

// outcome is what a run of a graph gave.
type outcome struct {
	Values [][]float64 `json:"values"`
	Grads  [][]float64 `json:"grads"`
	Loss   float64     `json:"loss"`
}

type answer struct {
	Single, Double outcome
	Shapes         [][]int `json:"shapes"`
	Requires       []bool  `json:"requires"`
	Leaf           []bool  `json:"leaf"`
}

// generate makes a random graph; shapes follow from running it.
func generate(r *rand.Rand, dt tensor.DType) (*graph, []register) {
	g := &graph{DType: dt.String()}
	var regs []register
	names := make([]string, 0, len(ops))
	for name := range ops {
		names = append(names, name)
	}
	slices.Sort(names)
	for i := range 2 + r.IntN(3) {
		shape := []int{2 + r.IntN(4), 2 + r.IntN(4)}
		if i == 1 {
			shape = slices.Clone(g.Leaves[0].Shape)
		}
		l := leaf{Shape: shape, Grad: i == 0 || r.IntN(4) > 0, data: make([]float32, shape[0]*shape[1])}
		bits := make([]byte, 0, 4*len(l.data))
		for j := range l.data {
			l.data[j] = float32(r.NormFloat64())
			b := math.Float32bits(l.data[j])
			bits = append(bits, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		}
		l.Bits = hex.EncodeToString(bits)
		v := ag.Constant(ag.Constant(tensor.Must(tensor.From(l.data, shape...))).To(dt).Data())
		if l.Grad {
			v = ag.Parameter(v.Data())
		}
		g.Leaves, regs = append(g.Leaves, l), append(regs, v)
	}
	for len(g.Steps) < 3+r.IntN(9) {
		s := step{Op: names[r.IntN(len(names))]}
		x := r.IntN(len(regs))
		if regs[x].Dims() != 2 {
			continue
		}
		switch s.Op {
		case "softmax", "logsoftmax", "sum", "mean", "max":
			s.Args = []int{x, r.IntN(2)}
		case "add", "sub", "mul", "div", "matmul", "mse", "batch":
			s.Args = []int{x, r.IntN(len(regs))}
		default:
			s.Args = []int{x}
		}
		if r.IntN(8) > 0 && s.Op == "detach" {
			continue
		}
		rows := regs[x].Shape()[0]
		if rows < 2 && (s.Op == "index" || s.Op == "rows") {
			continue
		}
		if (s.Op == "matmul" || s.Op == "batch") && regs[s.Args[1]].Dims() != 2 {
			continue
		}
		out := ops[s.Op](regs, s.Args)
		if out.Err() != nil || out.Data().Numel() > 200 {
			continue // shapes that do not fit
		}
		g.Steps, regs = append(g.Steps, s), append(regs, out)
	}
	last := len(regs) - 1
	g.Roots = [][2]any{{last, 1.0}, {r.IntN(len(regs)), 0.5}, {0, 0.25}}
	return g, regs
}

func floats(t *testing.T, x *tensor.Tensor) []float64 {
	t.Helper()
	if x == nil {
		return nil
	}
	single, err := tensor.Copy[float32](ag.Constant(x).To(tensor.Float32).Data())
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, len(single))
	for i, v := range single {
		out[i] = float64(v)
	}
	return out
}

// near compares with a run in float64: the error is at most four times PyTorch's own, or small against the largest element
// of the run. (An element that cancels to 0 has no size of its own to compare with.)
func near(got, torch, exact []float64, least float64) bool {
	if len(got) != len(exact) || len(torch) != len(exact) {
		return false
	}
	var ours, theirs float64
	for i, want := range exact {
		ours = max(ours, math.Abs(got[i]-want))
		theirs = max(theirs, math.Abs(torch[i]-want))
	}
	return ours <= max(4*theirs, least)
}

func largest(lists [][]float64) float64 {
	m := 0.0
	for _, list := range lists {
		for _, v := range list {
			m = max(m, math.Abs(v))
		}
	}
	return m
}

// TestRandomGraphs runs random graphs here and in PyTorch and compares structure, values and gradients.
func TestRandomGraphs(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) { randomGraphs(t, torch, tensor.Float32, 1e-5, 400) })
}

// TestRandomHalfGraphs is TestRandomGraphs in types of half precision, with a rounding error or two instead of 1e-5.
func TestRandomHalfGraphs(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if torch == torchtest.V113 {
			torch.NotApplicable(t, "computes few functions in half types without a GPU")
		}
		for dt, least := range map[tensor.DType]float64{tensor.Float16: 0x1p-10, tensor.BFloat16: 0x1p-7} {
			t.Run(dt.String(), func(t *testing.T) { randomGraphs(t, torch, dt, least, 400) })
		}
	})
}

// randomGraphs runs graphs in a type; a difference below a part of the largest element is not an error.
func randomGraphs(t *testing.T, torch *torchtest.Torch, dt tensor.DType, least float64, graphs int) {
	t.Helper()
	p := torch.Start(t, torchtest.Script{Source: graphScript})
	r := rand.New(rand.NewPCG(7, 8))
	used := map[string]int{}
	for seed := range graphs {
		g, regs := generate(r, dt)
		text, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		p.Send(t, string(text))
		var want answer
		if err := json.Unmarshal([]byte(p.Line(t)), &want); err != nil {
			t.Fatalf("graph %d: %v\n%s", seed, err, text)
		}
		loss := ag.Constant(tensor.Must(tensor.Full(dt, 0.0)))
		for _, root := range g.Roots {
			i, _ := root[0].(int)
			w, _ := root[1].(float64)
			loss = loss.Add(regs[i].Sum().Scale(w))
		}
		if loss.RequiresGrad() {
			if err := loss.Backward(t.Context()); err != nil {
				t.Fatalf("graph %d: %v\n%s", seed, err, text)
			}
		}
		for i, v := range regs {
			if !slices.Equal(v.Shape(), want.Shapes[i]) || v.RequiresGrad() != want.Requires[i] || v.IsLeaf() != want.Leaf[i] {
				t.Errorf("graph %d register %d: shape %v requires %v leaf %v, PyTorch %v %v %v\n%s", seed, i,
					v.Shape(), v.RequiresGrad(), v.IsLeaf(), want.Shapes[i], want.Requires[i], want.Leaf[i], text)
			}
			if got := floats(t, v.Data()); !near(got, want.Single.Values[i], want.Double.Values[i], least*largest(want.Double.Values)) {
				t.Errorf("graph %d register %d:\n%v\nPyTorch\n%v\nfloat64\n%v\n%s", seed, i, got, want.Single.Values[i],
					want.Double.Values[i], text)
			}
		}
		for i := range g.Leaves {
			got, double := floats(t, regs[i].Grad()), want.Double.Grads[i]
			if (got == nil) != (double == nil) || got != nil && !near(got, want.Single.Grads[i], double, least*largest(want.Double.Grads)) {
				t.Errorf("graph %d gradient of leaf %d:\n%v\nPyTorch\n%v\nfloat64\n%v\n%s", seed, i, got, want.Single.Grads[i],
					double, text)
			}
		}
		for _, s := range g.Steps {
			used[s.Op]++
		}
		if t.Failed() {
			return
		}
	}
	for name := range ops {
		if used[name] < 5 {
			t.Errorf("%s was used %d times only", name, used[name])
		}
	}
}
