// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	ag "github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed shapes.py
var shapesScript string

// anyGraph is a random program over tensors of all shapes. The registers begin with the leaves; steps that are refused have no result.
type anyGraph struct {
	Leaves []anyLeaf   `json:"leaves"`
	Steps  []*anyStep  `json:"steps"`
	Hooks  []int       `json:"hooks"`  // registers whose gradients a hook multiplies by -2
	Kept   []int       `json:"kept"`   // registers that keep their gradients
	Passes [][]float64 `json:"passes"` // per backward pass the weights of all registers in the loss
}

type anyLeaf struct {
	Shape  []int    `json:"shape"`
	Values []string `json:"values"`
	Grad   bool     `json:"grad"`
	data   []float64
}

type anyStep struct {
	Op     string `json:"op"`
	Inputs []int  `json:"inputs"`
	Args   []int  `json:"args"`
	Bad    bool   `json:"bad"` // refused here
}

// idsOf are rows of a table with n, as ids of shapes.py.
func idsOf(n, count int) *tensor.Tensor {
	all := make([]int64, count)
	for i := range all {
		all[i] = int64(3 * i % max(n, 1))
	}
	return tensor.Must(tensor.From(all))
}

var reductions = []ag.Reduction{ag.ReduceMean, ag.ReduceSum, ag.ReduceNone}

// anyOps does what the functions of shapes.py do.
var anyOps = map[string]func(x []register, a []int) register{
	"neg": func(x []register, _ []int) register { return x[0].Neg() }, "abs": func(x []register, _ []int) register { return x[0].Abs() },
	"exp":  func(x []register, _ []int) register { return x[0].Tanh().Exp() },
	"log":  func(x []register, _ []int) register { return x[0].Abs().Shift(1).Log() },
	"sqrt": func(x []register, _ []int) register { return x[0].Abs().Shift(1).Sqrt() },
	"sin":  func(x []register, _ []int) register { return x[0].Sin() },
	"cos":  func(x []register, _ []int) register { return x[0].Cos() }, "tanh": func(x []register, _ []int) register { return x[0].Tanh() },
	"sigmoid":    func(x []register, _ []int) register { return x[0].Sigmoid() },
	"relu":       func(x []register, _ []int) register { return x[0].ReLU() },
	"gelu":       func(x []register, _ []int) register { return x[0].GELU() },
	"gelutanh":   func(x []register, _ []int) register { return x[0].GELUTanh() },
	"pow":        func(x []register, a []int) register { return x[0].Tanh().Pow(float64(a[0])) },
	"scale":      func(x []register, _ []int) register { return x[0].Scale(-0.75) },
	"shift":      func(x []register, _ []int) register { return x[0].Shift(0.5) },
	"add":        func(x []register, _ []int) register { return x[0].Add(x[1]) },
	"sub":        func(x []register, _ []int) register { return x[0].Sub(x[1]) },
	"mul":        func(x []register, _ []int) register { return x[0].Mul(x[1]) },
	"div":        func(x []register, _ []int) register { return x[0].Div(x[1].Mul(x[1]).Shift(1)) },
	"sum":        func(x []register, a []int) register { return x[0].SumKeep(a[0] > 0, a[1:]...) },
	"mean":       func(x []register, a []int) register { return x[0].MeanKeep(a[0] > 0, a[1:]...) },
	"sumall":     func(x []register, _ []int) register { return x[0].Sum() },
	"meanall":    func(x []register, _ []int) register { return x[0].Mean() },
	"maxall":     func(x []register, _ []int) register { return x[0].Max() },
	"max":        func(x []register, a []int) register { v, _ := x[0].MaxDim(a[1], a[0] > 0); return v },
	"softmax":    func(x []register, a []int) register { return x[0].Softmax(a[0]) },
	"logsoftmax": func(x []register, a []int) register { return x[0].LogSoftmax(a[0]) },
	"reshape":    func(x []register, a []int) register { return x[0].Reshape(a...) },
	"permute":    func(x []register, a []int) register { return x[0].Permute(a...) },
	"transpose":  func(x []register, a []int) register { return x[0].Transpose(a[0], a[1]) },
	"expand":     func(x []register, a []int) register { return x[0].Expand(append([]int{a[0]}, x[0].Shape()...)...) },
	"select":     func(x []register, a []int) register { return x[0].Select(a[0], a[1]) },
	"slice":      func(x []register, a []int) register { return x[0].Slice(0, a[0], a[1], a[2]) },
	"cat":        func(x []register, a []int) register { return ag.Cat(a[0], x...) },
	"stack":      func(x []register, a []int) register { return ag.Stack(a[0], x...) },
	"index":      func(x []register, _ []int) register { return x[0].IndexSelect(idsOf(firstDim(x[0]), 4)) },
	"embedding": func(x []register, _ []int) register {
		return ag.Embedding(x[0], ag.Constant(tensor.Must(idsOf(firstDim(x[0]), 4).Reshape(2, 2))), -1)
	},
	"matmul": func(x []register, _ []int) register { return x[0].MatMul(x[1]) },
	"linear": func(x []register, _ []int) register { return ag.Linear(x[0], x[1], nil) },
	"bias":   func(x []register, _ []int) register { return ag.Linear(x[0], x[1], x[2]) },
	"norm":   func(x []register, a []int) register { return ag.LayerNorm(x[0], nil, nil, a[0], 1e-5) },
	"affine": func(x []register, _ []int) register { return ag.LayerNorm(x[0], x[1], x[2], 1, 1e-5) },
	"entropy": func(x []register, a []int) register {
		if x[0].Dims() != 2 {
			return ag.CrossEntropy(x[0], idsOf(1, 1), reductions[a[0]])
		}
		return ag.CrossEntropy(x[0], idsOf(x[0].Shape()[1], x[0].Shape()[0]), reductions[a[0]])
	},
	"mse": func(x []register, a []int) register { return ag.MSE(x[0], x[1], reductions[a[0]]) },
	"mask": func(x []register, _ []int) register {
		values := wide(x[0].Data())
		mask := make([]bool, len(values))
		for i, v := range values {
			mask[i] = v > 0
		}
		return x[0].MaskedFill(tensor.Must(tensor.Must(tensor.From(mask)).Reshape(x[0].Shape()...)), 0.25)
	},
	"detach": func(x []register, _ []int) register { return x[0].Detach() },
}

func firstDim(v register) int {
	if v.Dims() == 0 {
		return 1
	}
	return v.Shape()[0]
}

// wide returns the elements of a tensor as float64.
func wide(x *tensor.Tensor) []float64 {
	values, err := tensor.Copy[float64](tensor.Must(tensorops.Convert(x, tensor.Float64)))
	if err != nil {
		panic(err)
	}
	return values
}

// arguments makes the arguments of a function for a register; most are in range.
func arguments(r *rand.Rand, op string, x register) []int {
	n := x.Dims()
	dim := func() int { return r.IntN(2*max(n, 1)) - max(n, 1) }
	switch op {
	case "pow":
		return []int{r.IntN(4)}
	case "sum", "mean":
		return append([]int{r.IntN(2)}, r.Perm(max(n, 1))[:1+r.IntN(max(n, 1))]...)
	case "max":
		return []int{r.IntN(2), dim()}
	case "reshape":
		if r.IntN(2) == 0 && x.Data().Numel() > 0 {
			return []int{-1}
		}
		shape := x.Shape()
		r.Shuffle(len(shape), func(i, j int) { shape[i], shape[j] = shape[j], shape[i] })
		return append([]int{1}, shape...)
	case "permute":
		return append([]int{}, r.Perm(n)...)
	case "transpose", "select":
		return []int{dim(), dim()}
	case "slice":
		return []int{r.IntN(4) - 2, r.IntN(5) - 1, 1 + r.IntN(2)}
	case "softmax", "logsoftmax", "cat", "stack":
		return []int{dim()}
	case "expand":
		return []int{r.IntN(3)}
	case "norm":
		return []int{1 + r.IntN(max(n, 1))}
	case "entropy", "mse":
		return []int{r.IntN(3)}
	}
	return []int{}
}

func (g *anyGraph) leaves(dt tensor.DType) (regs []register) {
	for _, l := range g.Leaves {
		x := tensor.Must(tensorops.Convert(tensor.Must(tensor.Must(tensor.From(l.data)).Reshape(l.Shape...)), dt))
		v := ag.Constant(x)
		if l.Grad {
			v = ag.Parameter(x)
		}
		regs = append(regs, v)
	}
	return regs
}

func (s *anyStep) run(regs []register) register {
	in := make([]register, len(s.Inputs))
	for i, k := range s.Inputs {
		in[i] = regs[k]
	}
	return anyOps[s.Op](in, s.Args)
}

// generateAny makes a random graph; what is refused is in it, too, so that PyTorch is asked for its opinion.
func generateAny(r *rand.Rand) *anyGraph {
	g := &anyGraph{Hooks: []int{}, Kept: []int{}}
	names := make([]string, 0, len(anyOps))
	for name := range anyOps {
		names = append(names, name)
	}
	slices.Sort(names)
	for range 8 { // which few shapes fit
		names = append(names, "affine", "bias", "embedding")
	}
	sizes := []int{1, 2, 3, 3, 2, 0}
	for i := range 4 {
		l := anyLeaf{Shape: []int{}, Values: []string{}, Grad: i == 0 || r.IntN(4) > 0}
		count := 1
		for range r.IntN(4) {
			size := sizes[r.IntN(len(sizes)-r.IntN(2))]
			l.Shape, count = append(l.Shape, size), count*size
		}
		for range count {
			v := float64(float32(r.NormFloat64()))
			l.data = append(l.data, v)
			l.Values = append(l.Values, strconv.FormatFloat(v, 'x', -1, 64))
		}
		g.Leaves = append(g.Leaves, l)
	}
	regs := g.leaves(tensor.Float64)
	for refused := 0; len(regs) < 14; {
		s := &anyStep{Op: names[r.IntN(len(names))], Inputs: []int{r.IntN(len(regs))}}
		s.Args = arguments(r, s.Op, regs[s.Inputs[0]])
		for range map[string]int{
			"add": 1, "sub": 1, "mul": 1, "div": 1, "cat": 1, "stack": 1, "matmul": 1, "linear": 1, "mse": 1,
			"bias": 2, "affine": 2,
		}[s.Op] {
			k := r.IntN(len(regs))
			if r.IntN(3) == 0 {
				k = s.Inputs[0] // used twice
			}
			s.Inputs = append(s.Inputs, k)
		}
		if s.Op == "bias" && regs[s.Inputs[0]].Dims() != 2 && regs[s.Inputs[2]].Dims() > 1 {
			continue // PyTorch's versions think differently of it
		}
		out := s.run(regs)
		switch {
		case out.Err() != nil:
			if refused++; refused <= 6 {
				s.Bad = true
				g.Steps = append(g.Steps, s)
			}
		case out.Data().Numel() <= 200:
			g.Steps, regs = append(g.Steps, s), append(regs, out)
		}
	}
	for k := range regs {
		switch r.IntN(6) {
		case 0:
			g.Hooks = append(g.Hooks, k)
		case 1:
			if k >= len(g.Leaves) {
				g.Kept = append(g.Kept, k)
			}
		}
	}
	for range 1 + r.IntN(2) {
		weights := make([]float64, len(regs))
		for k := range weights {
			weights[k] = float64(r.IntN(5)-2) / 2
		}
		g.Passes = append(g.Passes, weights)
	}
	return g
}

// run returns the registers and the gradients of the leaves and of the registers that keep them.
func (g *anyGraph) run(t *testing.T, dt tensor.DType) (regs []register, grads []*tensor.Tensor) {
	t.Helper()
	regs = g.leaves(dt)
	for _, s := range g.Steps {
		out := s.run(regs)
		if (out.Err() != nil) != s.Bad {
			t.Fatalf("%v: %v in %v", s, out.Err(), dt)
		}
		if !s.Bad {
			regs = append(regs, out)
		}
	}
	for _, k := range g.Hooks {
		if !regs[k].RequiresGrad() {
			continue
		}
		if _, err := regs[k].OnGrad(func(x *tensor.Tensor) (*tensor.Tensor, error) {
			return tensorops.Binary(tensorops.Mul, tensorops.Of(x), tensorops.Num(-2.0))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range g.Kept {
		if regs[k].RequiresGrad() {
			if err := regs[k].RetainGrad(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n, weights := range g.Passes {
		loss := ag.Constant(tensor.Must(tensor.Full(dt, 0.0)))
		for k, w := range weights {
			loss = loss.Add(regs[k].Sum().Scale(w))
		}
		var opts []ag.Option
		if n+1 < len(g.Passes) {
			opts = append(opts, ag.RetainGraph())
		}
		if loss.RequiresGrad() {
			if err := loss.Backward(t.Context(), opts...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for k, v := range regs {
		if k < len(g.Leaves) || slices.Contains(g.Kept, k) {
			grads = append(grads, v.Grad())
		}
	}
	return regs, grads
}

// torchRun is what PyTorch has computed with one type.
type torchRun struct {
	Values, Grads []*oddResult
	Refused       [][2]any
	Requires      []bool
}

// numbers are the elements of a tensor of PyTorch.
func (want *oddResult) numbers(t *testing.T) []float64 {
	t.Helper()
	out := make([]float64, len(want.Values))
	for i, s := range want.Values {
		var err error
		if out[i], err = strconv.ParseFloat(s, 64); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// away reports how a tensor differs from PyTorch's, or nothing: in float64 almost nothing is allowed, in float32 what [near] allows.
func away(t *testing.T, got *tensor.Tensor, want, exact *oddResult) string {
	t.Helper()
	if got == nil || want == nil {
		if got == nil && want == nil {
			return ""
		}
		return fmt.Sprintf("%v, PyTorch %v", got, want)
	}
	if !slices.Equal(got.Shape(), want.Shape) {
		return fmt.Sprintf("shape %v, PyTorch %v", got.Shape(), want.Shape)
	}
	ours, theirs, right := wide(got), want.numbers(t), exact.numbers(t)
	most := 1.0
	for i := range ours {
		odd := math.IsNaN(right[i]) || math.IsInf(right[i], 0)
		if odd && (ours[i] == right[i] || math.IsNaN(ours[i]) && math.IsNaN(right[i])) {
			ours[i], theirs[i], right[i] = 0, 0, 0
		}
		most = max(most, math.Abs(right[i]))
	}
	if got.DType() == tensor.Float64 {
		theirs, most = right, 1e-7*most // so that near allows 1e-12 of it
	}
	if near(ours, theirs, right, most) {
		return ""
	}
	return fmt.Sprintf("%v, PyTorch %v, in float64 %v", ours, theirs, right)
}

// TestRandomShapes runs random graphs here and in PyTorch, in float32 and float64: all functions; empty tensors, scalars and all that
// broadcasts; registers used several times, and twice by one function; hooks, kept gradients, two passes through one graph. What is refused
// here PyTorch must refuse, too.
func TestRandomShapes(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := torch.Start(t, torchtest.Script{Source: shapesScript})
		r := rand.New(rand.NewPCG(12, 6))
		used := map[string]int{}
		for seed := range 150 {
			g := generateAny(r)
			if difference := g.compare(t, p); difference != "" {
				t.Errorf("graph %d: %s\n%s", seed, difference, text(g))
			}
			for _, s := range g.Steps {
				if !s.Bad {
					used[s.Op]++
				}
			}
		}
		for name := range anyOps {
			if used[name] < 3 {
				t.Errorf("%s was used %d times only", name, used[name])
			}
		}
	})
}

// upTo returns the registers that the step at a place sees.
func (g *anyGraph) upTo(t *testing.T, place int) []register {
	t.Helper()
	regs := g.leaves(tensor.Float64)
	for _, s := range g.Steps[:place] {
		if !s.Bad {
			regs = append(regs, s.run(regs))
		}
	}
	return regs
}

// compare reports how the graph differs from PyTorch's, or nothing.
func (g *anyGraph) compare(t *testing.T, p *torchtest.Proc) string {
	t.Helper()
	want := ask[struct{ Single, Double torchRun }](t, p, g)
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64} {
		theirs := want.Single
		if dt == tensor.Float64 {
			theirs = want.Double
		}
		if d := g.refusals(t, theirs); d != "" {
			return d
		}
		regs, grads := g.run(t, dt)
		for k, v := range regs {
			if d := away(t, v.Data(), theirs.Values[k], want.Double.Values[k]); d != "" || v.RequiresGrad() != theirs.Requires[k] {
				return fmt.Sprintf("%v: register %d: requires gradients %v, %s", dt, k, v.RequiresGrad(), d)
			}
		}
		for k, v := range grads {
			if d := away(t, v, theirs.Grads[k], want.Double.Grads[k]); d != "" {
				return fmt.Sprintf("%v: gradient %d: %s", dt, k, d)
			}
		}
	}
	return ""
}

// refusals reports what only one of the two refuses.
func (g *anyGraph) refusals(t *testing.T, theirs torchRun) string {
	t.Helper()
	refused := map[int]bool{}
	for _, x := range theirs.Refused {
		at, _ := x[0].(float64)
		refused[int(at)] = true
		if s := g.Steps[int(at)]; !s.Bad {
			return fmt.Sprintf("only PyTorch refuses %+v: %v", *s, x[1])
		}
	}
	for i, s := range g.Steps {
		if s.Bad && !refused[i] {
			return fmt.Sprintf("only PyTorch does %+v: %v", *s, s.run(g.upTo(t, i)).Err())
		}
	}
	return ""
}
