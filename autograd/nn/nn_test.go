// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func names(m nn.Module) []string {
	var out []string
	for _, p := range m.Params() {
		out = append(out, p.Name)
	}
	return out
}

func TestNames(t *testing.T) {
	t.Parallel()
	r := newRand()
	m := nn.Sequential{nn.NewEmbedding(r, 5, 4), nn.NewAttention(r, 4, 2, true), nn.ReLU, nn.NewLayerNorm(4), nn.NewLinear(r, 4, 3)}
	want := []string{
		"0.weight", "1.in_proj_weight", "1.in_proj_bias", "1.out_proj.weight", "1.out_proj.bias", "3.weight", "3.bias", "4.weight",
		"4.bias",
	}
	if got := names(m); !slices.Equal(got, want) {
		t.Errorf("names %v", got)
	}
	y := m.Forward(autograd.Constant(tensor.Must(tensor.From([]int64{0, 1, 4, 2, 2, 3}, 2, 3))))
	if y.Err() != nil || !slices.Equal(y.Shape(), []int{2, 3, 3}) {
		t.Fatalf("shape %v, %v", y.Shape(), y.Err())
	}
	if err := y.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Params() {
		if p.Value.Grad() == nil {
			t.Errorf("%s has no gradient", p.Name)
		}
	}
	// Evaluated without gradients, nothing is recorded.
	if y := m.Forward(autograd.NoGrad(tensor.Must(tensor.From([]int64{0, 1}, 1, 2)))); y.Err() != nil || y.RequiresGrad() {
		t.Errorf("NoGrad: %v requires %v", y.Err(), y.RequiresGrad())
	}
}

// TestCausal: what comes later does not change what came before.
func TestCausal(t *testing.T) {
	t.Parallel()
	r := newRand()
	for _, causal := range []bool{true, false} {
		a := nn.NewAttention(r, 4, 2, causal)
		x := make([]float32, 3*4)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		run := func() float64 {
			return a.Forward(autograd.NoGrad(tensor.Must(tensor.From(x, 1, 3, 4)))).Select(1, 0).Sum().Item()
		}
		before := run()
		x[11]++
		if changed := run() != before; changed == causal {
			t.Errorf("causal %v: the first output changed: %v", causal, changed)
		}
	}
	for _, a := range []*autograd.Variable{
		nn.NewAttention(r, 5, 2, false).Forward(autograd.Constant(tensor.Must(tensor.New(tensor.Float32, 1, 2, 5)))),
		nn.NewAttention(r, 4, 2, false).Forward(autograd.Constant(tensor.Must(tensor.New(tensor.Float32, 2, 4)))),
		nn.NewLinear(r, 3, 2).Forward(autograd.Constant(tensor.Must(tensor.New(tensor.Float32, 2, 4)))),
		nn.NewLinear(r, -3, 2).Forward(autograd.Constant(tensor.Must(tensor.New(tensor.Float32, 2, 4)))),
	} {
		if !errors.Is(a.Err(), cohort.InvalidArgument) {
			t.Errorf("error %v", a.Err())
		}
	}
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	r := newRand()
	a := nn.Sequential{nn.NewLinear(r, 3, 2), nn.NewLayerNorm(2)}
	first := nn.NewLinear(r, 3, 2)
	b := nn.Sequential{first, nn.NewLayerNorm(2)}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := nn.Save(path, a); err != nil {
		t.Fatal(err)
	}
	if err := nn.Load(path, b); err != nil {
		t.Fatal(err)
	}
	for i, p := range a.Params() {
		if !tensor.SameBits(p.Value.Data(), b.Params()[i].Value.Data()) {
			t.Errorf("%s differs", p.Name)
		}
	}
	before, err := first.Weight.Data().Clone()
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []nn.Module{
		nn.Sequential{nn.NewLinear(r, 3, 2)},
		nn.Sequential{nn.NewLinear(r, 3, 2), nn.NewLayerNorm(2), nn.NewLinear(r, 1, 1)},
		nn.Sequential{nn.NewLinear(r, 3, 2), nn.NewLayerNorm(3)},
	} {
		state, err := nn.State(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := nn.LoadState(b, state); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("another model was loaded: %v", err)
		}
	}
	if !tensor.SameBits(before, first.Weight.Data()) {
		t.Error("a refused state changed the model")
	}
}

func TestInitialisers(t *testing.T) {
	t.Parallel()
	r := newRand()
	v := autograd.Parameter(tensor.Must(tensor.New(tensor.Float32, 200, 300)))
	for name, c := range map[string]struct {
		f         func()
		deviation float64
	}{
		"uniform":         {func() { nn.Uniform(r, v, -1, 1) }, 1 / math.Sqrt(3)},
		"normal":          {func() { nn.Normal(r, v, 0, 2) }, 2},
		"xavier uniform":  {func() { nn.XavierUniform(r, v) }, math.Sqrt(2.0 / 500)},
		"xavier normal":   {func() { nn.XavierNormal(r, v) }, math.Sqrt(2.0 / 500)},
		"kaiming uniform": {func() { nn.KaimingUniform(r, v) }, math.Sqrt(2.0 / 300)},
		"kaiming normal":  {func() { nn.KaimingNormal(r, v) }, math.Sqrt(2.0 / 300)},
		"fill":            {func() { nn.Fill(v, 0) }, 0},
	} {
		c.f()
		x := autograd.NoGrad(v.Data())
		mean, deviation := x.Mean().Item(), math.Sqrt(x.Mul(x).Mean().Item())
		if math.Abs(mean) > 0.02*c.deviation+1e-12 || math.Abs(deviation-c.deviation) > 0.02*c.deviation {
			t.Errorf("%s: mean %v, deviation %v, want %v", name, mean, deviation, c.deviation)
		}
	}
}

// TestLearns fits a function that needs the hidden layer.
func TestLearns(t *testing.T) {
	t.Parallel()
	r := newRand()
	model := nn.Sequential{nn.NewLinear(r, 2, 16), nn.Tanh, nn.NewLinear(r, 16, 1)}
	opt, err := optim.New(optim.Adam{LR: 0.05}, nn.Variables(model))
	if err != nil {
		t.Fatal(err)
	}
	x := autograd.Constant(tensor.Must(tensor.From([]float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)))
	y := autograd.Constant(tensor.Must(tensor.From([]float32{0, 1, 1, 0}, 4, 1)))
	var last float64
	for range 200 {
		opt.ZeroGrad()
		loss := autograd.MSE(model.Forward(x), y, autograd.ReduceMean)
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		last = loss.Item()
	}
	if last > 0.01 {
		t.Errorf("exclusive or was not learned: loss %v", last)
	}
}

func TestBatchNorm(t *testing.T) {
	t.Parallel()
	m := nn.NewBatchNorm(2)
	x := autograd.Parameter(tensor.Must(tensor.Of([][]float32{{1, 10}, {3, 30}})))
	y := m.Forward(x)
	if err := y.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, v := range []float64{y.Select(0, 0).Select(0, 0).Item() + 1, y.Select(0, 1).Select(0, 1).Item() - 1} {
		if v > 1e-3 || v < -1e-3 {
			t.Errorf("output %v", y)
		}
	}
	state, err := nn.State(nn.Sequential{m})
	if err != nil || len(state) != 5 {
		t.Fatalf("%v, %v", state, err)
	}
	if v, err := state["0.running_mean"].At(1); err != nil || v != float32(2) { // a tenth of the way to 20
		t.Errorf("running mean %v, %v", v, err)
	}
	for _, bad := range []*tensor.Tensor{
		tensor.Must(tensor.New(tensor.Float32, 1, 2)),
		tensor.Must(tensor.New(tensor.Float32, 3, 3)), tensor.Must(tensor.New(tensor.Float32, 2)),
	} {
		if err := m.Forward(autograd.Constant(bad)).Err(); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("input of %v: %v", bad.Shape(), err)
		}
	}
	m.Evaluation = true
	if err := m.Forward(autograd.Constant(tensor.Must(tensor.New(tensor.Float32, 1, 2)))).Err(); err != nil {
		t.Error(err)
	}
	if err := nn.NewBatchNorm(-1).Forward(x).Err(); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a layer of -1 features: %v", err)
	}
}
