// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	ag "github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// rowGrad is the sparse gradient of a table.
type rowGrad struct {
	IDs  []int64     `json:"ids"`
	Rows [][]float64 `json:"rows"`
}

func (g rowGrad) tensor(t *testing.T, dt tensor.DType, shape []int) *tensor.Sparse {
	t.Helper()
	flat := []float64{}
	for _, row := range g.Rows {
		flat = append(flat, row...)
	}
	values := ag.Constant(tensor.Must(tensor.From(flat, len(g.IDs), shape[1]))).To(dt).Data()
	return &tensor.Sparse{Shape: shape, Indices: tensor.Must(tensor.From(g.IDs, 1, len(g.IDs))), Values: values}
}

// TestSparseOptimizers compares the rules that take sparse gradients with PyTorch's, step by step. Gradients have rows several times, in
// any order. Halfway a second Go optimizer continues with the state that PyTorch has saved.
func TestSparseOptimizers(t *testing.T) {
	const rows, width, steps, half = 6, 3, 12, 7
	shape := []int{rows, width}
	rules := []struct {
		name    string
		options object
		rule    optim.Rule
		empty   optim.Rule // what the second optimizer is made with: the file has the numbers
	}{
		{"SGD", object{"lr": 0.1}, optim.SGD{LR: 0.1}, optim.SGD{LR: 1}},
		{"SGD", object{"lr": 0.1, "momentum": 0.9}, optim.SGD{LR: 0.1, Momentum: 0.9}, nil}, // PyTorch's state is sparse
		{"Adagrad", object{"lr": 0.1}, optim.Adagrad{LR: 0.1}, optim.Adagrad{LR: 1}},
		{
			"Adagrad",
			object{"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-6},
			optim.Adagrad{LR: 0.1, LRDecay: 0.1, InitialAccumulator: 0.5, Eps: 1e-6},
			optim.Adagrad{LR: 1},
		},
		{"SparseAdam", object{"lr": 0.1}, optim.SparseAdam{LR: 0.1}, optim.SparseAdam{LR: 1}},
		{
			"SparseAdam",
			object{"lr": 0.1, "betas": []float64{0.8, 0.95}, "eps": 1e-3},
			optim.SparseAdam{LR: 0.1, Beta1: 0.8, Beta2: 0.95, Eps: 1e-3},
			optim.SparseAdam{LR: 1},
		},
	}
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := torch.Start(t, torchtest.Script{Source: partsScript, Shared: torchtest.Optimizers})
		host, inside := torch.TempDir(t)
		r := rand.New(rand.NewPCG(3, 4))
		for k, c := range rules {
			for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64} {
				start := make([][]float64, rows)
				flat := []float64{}
				for i := range start {
					for range width {
						start[i] = append(start[i], float64(float32(r.NormFloat64())))
					}
					flat = append(flat, start[i]...)
				}
				grads := make([]rowGrad, steps)
				for i := range grads {
					g := rowGrad{IDs: []int64{}, Rows: [][]float64{}}
					for range 1 + i%4 { // PyTorch 1.13 cannot do an Adagrad step without any
						g.IDs = append(g.IDs, r.Int64N(rows-1)) // the last row never gets a gradient
						row := make([]float64, width)
						for j := range row {
							row[j] = float64(float32(r.NormFloat64()))
						}
						g.Rows = append(g.Rows, row)
					}
					grads[i] = g
				}
				file := fmt.Sprintf("%d-%v.safetensors", k, dt)
				request := object{
					"kind": "optimizer", "name": c.name, "options": c.options, "dtype": dt.String(), "start": start,
					"grads": grads,
				}
				want := ask[[][][]float64](t, p, request)
				if c.empty != nil {
					request["grads"], request["save"] = grads[:half], filepath.Join(inside, file)
					ask[[][][]float64](t, p, request)
				}
				first := func(rule optim.Rule, values []float64) (*optim.Optimizer, *ag.Variable) {
					v := ag.Parameter(tensor.Must(ag.Constant(tensor.Must(tensor.From(values, shape...))).To(dt).Data().Clone()))
					opt, err := optim.New(rule, []*ag.Variable{v})
					if err != nil {
						t.Fatal(err)
					}
					return opt, v
				}
				step := func(opt *optim.Optimizer, v *ag.Variable, i int) {
					t.Helper()
					if err := v.SetGradValue(ag.Value{Sparse: grads[i].tensor(t, dt, shape)}); err != nil {
						t.Fatal(err)
					}
					if err := opt.Step(); err != nil {
						t.Fatal(err)
					}
					got, err := tensor.Copy[float64](ag.Constant(v.Data()).To(tensor.Float64).Data())
					if err != nil {
						t.Fatal(err)
					}
					tolerance := 1e-12
					if dt == tensor.Float32 {
						tolerance = 2e-6
					}
					for j, x := range got {
						if w := want[i][j/width][j%width]; !close64(x, w, tolerance) {
							t.Fatalf("%s %v of %v, step %d element %d: %v, PyTorch %v", c.name, c.options, dt, i, j, x, w)
						}
					}
				}
				opt, v := first(c.rule, flat)
				for i := range steps {
					step(opt, v, i)
				}
				if c.empty == nil {
					continue
				}
				flat = flat[:0]
				for _, row := range want[half-1] {
					flat = append(flat, row...)
				}
				opt, v = first(c.empty, flat)
				if err := opt.Load(filepath.Join(host, file)); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				for i := half; i < steps; i++ {
					step(opt, v, i)
				}
			}
		}
	})
}
