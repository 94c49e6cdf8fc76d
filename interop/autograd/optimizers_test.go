// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	ag "github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

var (
	optimizerSeeds = flag.Int("optimizers", 60, "how many random optimizers to run with each PyTorch")
	optimizerFirst = flag.Uint64("optimizer", 1, "the seed of the first random optimizer")
)

// meant is how a rule is given a number, of which 0 would be its default.
func meant(x float64) float64 {
	if x == 0 {
		return optim.Zero
	}
	return x
}

// randomRule returns a rule of one of PyTorch's classes, with options of which many are zero or at a limit.
func randomRule(f *rand.Rand) (name string, options object, rule optim.Rule) {
	pick := func(list ...float64) float64 { return list[f.IntN(len(list))] }
	lr, decay, up := pick(0, 1e-3, 0.1, 1), pick(0, 0, 0.01, 0.5), f.IntN(3) == 0
	eps, flagged := pick(0, 1e-8, 1e-3, 0.5), f.IntN(2) == 0
	b1, b2 := pick(0, 0.3, 0.5, 0.9, 0.99), pick(0, 0.5, 0.9, 0.999)
	options = object{"lr": lr, "maximize": up}
	if f.IntN(3) == 0 {
		options["foreach"] = flagged
	}
	adam := object{"betas": []float64{b1, b2}, "eps": eps, "weight_decay": decay}
	more := func(of object) { maps.Copy(options, of) }
	switch name = []string{"SGD", "Adam", "AdamW", "Adamax", "Adagrad", "RMSprop", "Adadelta", "Rprop"}[f.IntN(8)]; name {
	case "SGD":
		r := optim.SGD{LR: lr, Momentum: pick(0, 0.5, 0.9, 1), Dampening: pick(0, 0, 0.3, 1), WeightDecay: decay, Maximize: up}
		r.Nesterov = r.Momentum > 0 && r.Dampening == 0 && flagged
		more(object{"momentum": r.Momentum, "dampening": r.Dampening, "weight_decay": decay, "nesterov": r.Nesterov})
		rule = r
	case "Adam", "AdamW":
		more(adam)
		options["amsgrad"] = flagged
		a := optim.Adam{LR: lr, Beta1: meant(b1), Beta2: meant(b2), Eps: meant(eps), WeightDecay: decay, AMSGrad: flagged, Maximize: up}
		if rule = a; name == "AdamW" {
			rule = optim.AdamW(a)
		}
	case "Adamax":
		more(adam)
		rule = optim.Adamax{LR: lr, Beta1: meant(b1), Beta2: meant(b2), Eps: meant(eps), WeightDecay: decay, Maximize: up}
	case "Adagrad":
		r := optim.Adagrad{
			LR: lr, LRDecay: pick(0, 0.1, 2), WeightDecay: decay, InitialAccumulator: pick(0, 0.5), Eps: meant(eps),
			Maximize: up,
		}
		more(object{"lr_decay": r.LRDecay, "weight_decay": decay, "initial_accumulator_value": r.InitialAccumulator, "eps": eps})
		rule = r
	case "RMSprop":
		flagged = flagged && b1 > 0 // a variance of one number is 0 and a rounding error
		r := optim.RMSprop{
			LR: lr, Alpha: meant(b1), Eps: meant(eps), WeightDecay: decay, Momentum: pick(0, 0.5, 0.9),
			Centered: flagged, Maximize: up,
		}
		more(object{"alpha": b1, "eps": eps, "weight_decay": decay, "momentum": r.Momentum, "centered": flagged})
		rule = r
	case "Adadelta":
		more(object{"rho": b1, "eps": eps, "weight_decay": decay})
		rule = optim.Adadelta{LR: lr, Rho: meant(b1), Eps: meant(eps), WeightDecay: decay, Maximize: up}
	case "Rprop":
		minus, plus, least, most := pick(0.1, 0.5, 0.9), pick(1.1, 1.2, 3), pick(0, 1e-6, 0.05), pick(0.2, 50)
		more(object{"etas": []float64{minus, plus}, "step_sizes": []float64{least, most}})
		rule = optim.Rprop{LR: lr, EtaMinus: minus, EtaPlus: plus, StepMin: meant(least), StepMax: most, Maximize: up}
	}
	return name, options, rule
}

// stepped returns the parameter after every step.
func stepped(t *testing.T, rule optim.Rule, dt tensor.DType, start []float64, grads [][]float64) (out [][]float64) {
	t.Helper()
	convert := func(x []float64) *tensor.Tensor {
		return tensor.Must(ag.Constant(tensor.Must(tensor.From(x))).To(dt).Data().Clone())
	}
	v := ag.Parameter(convert(start))
	opt, err := optim.New(rule, []*ag.Variable{v})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range grads {
		if err := v.SetGrad(convert(g)); err != nil {
			t.Fatal(err)
		}
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		now, err := tensor.Copy[float64](ag.Constant(v.Data()).To(tensor.Float64).Data())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, now)
	}
	return out
}

// TestRandomOptimizers: rules with odd options take many steps with gradients of many sizes, among them zeros, which an
// epsilon of 0 makes NaN. In float64 the parameters are PyTorch's, in float32 they are as near to its float64 as its own are.
//
//	COHORT_INTEROP=auto go test ./interop/autograd -run RandomOptimizers -optimizers 1000 -optimizer 1000
func TestRandomOptimizers(t *testing.T) {
	const n, steps = 7, 60
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := torch.Start(t, torchtest.Script{Source: partsScript, Shared: torchtest.Optimizers})
		for i := range *optimizerSeeds {
			seed := *optimizerFirst + uint64(i)
			f := rand.New(rand.NewPCG(seed, 29))
			name, options, rule := randomRule(f)
			if torch == torchtest.V113 && name == "Rprop" && options["maximize"] == true {
				continue // it has no such option
			}
			if torch == torchtest.V113 {
				delete(options, "foreach") // its Adagrad then rounds the learning rate to float32
			}
			what := fmt.Sprintf("seed %d, %s %v", seed, name, options)
			start, grads := make([]float64, n), make([][]float64, steps)
			for i := range start {
				start[i] = float64(float32(f.NormFloat64()))
			}
			for i := range grads {
				for range n {
					g := f.NormFloat64() * math.Pow(10, float64(f.IntN(5)-2))
					if f.IntN(6) == 0 {
						g = 0
					}
					grads[i] = append(grads[i], float64(float32(g)))
				}
			}
			want := func(dt string) (out [][]float64) {
				for _, text := range ask[[]string](t, p,
					object{
						"kind": "optimizer", "name": name, "options": options, "dtype": dt, "start": start, "grads": grads,
						"bits": true,
					}) {
					x := make([]float64, n)
					raw, err := hex.DecodeString(text)
					if err == nil {
						_, err = binary.Decode(raw, binary.LittleEndian, x)
					}
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					out = append(out, x)
				}
				return out
			}
			exact, theirs := want("float64"), want("float32")
			double, single := stepped(t, rule, tensor.Float64, start, grads), stepped(t, rule, tensor.Float32, start, grads)
			for step := range steps {
				largest, allowed := 0.0, 0.0
				for _, x := range exact[step] {
					if !math.IsInf(x, 0) && !math.IsNaN(x) {
						largest = max(largest, math.Abs(x))
					}
				}
				for i, x := range theirs[step] {
					if d := math.Abs(x - exact[step][i]); !math.IsInf(d, 0) && !math.IsNaN(d) {
						allowed = max(allowed, 4*d)
					}
				}
				allowed = max(allowed, 1e-5*largest)
				for i, x := range exact[step] {
					if !close64(double[step][i], x, 1e-9) {
						t.Fatalf("%s: float64, step %d, element %d: %v, PyTorch %v", what, step, i, double[step][i], x)
					}
					got, own := single[step][i], theirs[step][i]
					same := math.IsNaN(got) == math.IsNaN(own) && (!math.IsInf(own, 0) || got == own)
					if math.Abs(got-x) > allowed && !math.IsInf(own, 0) || !same {
						t.Fatalf("%s: float32, step %d, element %d: %v, PyTorch %v, in float64 %v (allowed %g)", what, step, i,
							got, own, x, allowed)
					}
				}
			}
		}
	})
}
