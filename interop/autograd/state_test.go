// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	ag "github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// TestOptimizerState carries an optimizer over: Go begins and saves, PyTorch loads, continues and saves, Go loads that and
// ends. The parameters are those of a run in Go alone.
func TestOptimizerState(t *testing.T) {
	const n, first, second, third = 5, 4, 3, 4
	rules := []struct {
		name  string
		rule  optim.Rule
		empty optim.Rule // what the second Go optimizer is made with: the file has the numbers
	}{
		{"SGD", optim.SGD{LR: 0.1}, optim.SGD{LR: 1}},
		{"SGD", optim.SGD{LR: 0.1, Momentum: 0.9, WeightDecay: 0.1, Nesterov: true}, optim.SGD{LR: 1}},
		{"Adam", optim.Adam{LR: 0.1, Beta1: 0.8, WeightDecay: 0.1}, optim.Adam{LR: 1}},
		{"AdamW", optim.AdamW{LR: 0.1, WeightDecay: 0.1}, optim.AdamW{LR: 1}},
		{"Adam", optim.Adam{LR: 0.1, AMSGrad: true, Maximize: true}, optim.Adam{LR: 1}},
		{"AdamW", optim.AdamW{LR: 0.1, WeightDecay: 0.1, AMSGrad: true}, optim.AdamW{LR: 1}},
		{"Adamax", optim.Adamax{LR: 0.1, Beta2: 0.9, WeightDecay: 0.1}, optim.Adamax{LR: 1}},
		{"Adadelta", optim.Adadelta{LR: 0.5, Rho: 0.8, Maximize: true}, optim.Adadelta{LR: 1}},
		{"Rprop", optim.Rprop{LR: 0.1, EtaPlus: 1.5, StepMax: 0.4}, optim.Rprop{LR: 1}},
		{"Adagrad", optim.Adagrad{LR: 0.1, LRDecay: 0.1, InitialAccumulator: 0.5}, optim.Adagrad{LR: 1}},
		{"RMSprop", optim.RMSprop{LR: 0.1}, optim.RMSprop{LR: 1}},
		{"RMSprop", optim.RMSprop{LR: 0.1, Momentum: 0.5, Centered: true}, optim.RMSprop{LR: 1}},
	}
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := torch.Start(t, torchtest.Script{Source: partsScript, Shared: torchtest.Optimizers})
		host, inside := torch.TempDir(t)
		r := rand.New(rand.NewPCG(5, 6))
		for _, c := range rules {
			start, grads := make([]float64, n), make([][]float64, first+second+third)
			for i := range start {
				start[i] = r.NormFloat64()
			}
			for i := range grads {
				for range n {
					grads[i] = append(grads[i], r.NormFloat64())
				}
			}
			run := func(opt *optim.Optimizer, v *ag.Variable, grads [][]float64) {
				t.Helper()
				for _, g := range grads {
					if err := v.SetGrad(tensor.Must(tensor.From(g))); err != nil {
						t.Fatal(err)
					}
					if err := opt.Step(); err != nil {
						t.Fatal(err)
					}
				}
			}
			optimizer := func(rule optim.Rule, values []float64) (*optim.Optimizer, *ag.Variable) {
				t.Helper()
				v := ag.Parameter(tensor.Must(tensor.Must(tensor.From(values)).Clone()))
				opt, err := optim.New(rule, []*ag.Variable{v})
				if err != nil {
					t.Fatal(err)
				}
				return opt, v
			}
			values := func(v *ag.Variable) []float64 {
				t.Helper()
				out, err := tensor.Copy[float64](v.Data())
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			const goSaved, torchSaved = "go.safetensors", "torch.safetensors"
			opt, v := optimizer(c.rule, start)
			run(opt, v, grads[:first])
			if err := opt.Save(filepath.Join(host, goSaved)); err != nil {
				t.Fatal(err)
			}
			steps := ask[[][]float64](t, p, object{
				"kind": "resume", "name": c.name, "dtype": "float64", "start": values(v), "grads": grads[first:][:second],
				"file": filepath.Join(inside, goSaved), "save": filepath.Join(inside, torchSaved),
			})
			run(opt, v, grads[first:][:second])
			last := steps[second-1]
			for i, x := range values(v) {
				if !close64(x, last[i], 1e-10) {
					t.Fatalf("%s: PyTorch went on to %v, Go to %v", c.name, last, values(v))
				}
			}
			again, w := optimizer(c.empty, last)
			if err := again.Load(filepath.Join(host, torchSaved)); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			run(opt, v, grads[first+second:])
			run(again, w, grads[first+second:])
			for i, x := range values(v) {
				if !close64(x, values(w)[i], 1e-10) {
					t.Fatalf("%s: with PyTorch's state %v, without %v", c.name, values(w), values(v))
				}
			}
		}
	})
}
