// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// lookUp makes a sparse gradient of a table: rows 1, twice, and 2, each times two.
func lookUp(t *testing.T, w *autograd.Variable) {
	t.Helper()
	e := autograd.SparseEmbedding(w, autograd.Constant(tensor.Must(tensor.From([]int64{1, 1, 2}, 3))), -1)
	if err := e.Mul(e).Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.GradValue().Sparse == nil {
		t.Fatal("the gradient is not sparse")
	}
}

func table() *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.Full(tensor.Float32, 1.0, 5, 2)))
}

// TestSparseSteps: three steps end where PyTorch 2.6 ends, and rows without a gradient stay as they are.
func TestSparseSteps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule optim.Rule
		want [2]float64 // of rows 1 and 2
	}{
		"SGD":        {optim.SGD{LR: 0.1}, [2]float64{0.2160000205039978, 0.5119999647140503}},
		"momentum":   {optim.SGD{LR: 0.1, Momentum: 0.9}, [2]float64{-0.5399999618530273, 0.06199999898672104}},
		"nesterov":   {optim.SGD{LR: 0.1, Momentum: 0.9, Nesterov: true}, [2]float64{-0.43329593539237976, -0.10835198312997818}},
		"Adagrad":    {optim.Adagrad{LR: 0.1}, [2]float64{0.7804561257362366, 0.7804561257362366}},
		"SparseAdam": {optim.SparseAdam{LR: 0.1}, [2]float64{0.7015863656997681, 0.7015863656997681}},
	} {
		w := table()
		opt, err := optim.New(c.rule, []*autograd.Variable{w})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			opt.ZeroGrad()
			lookUp(t, w)
			if err = opt.Step(); err != nil {
				t.Fatal(err)
			}
		}
		got, err := tensor.Copy[float32](w.Data())
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range got {
			want := 1.0
			if row := i / 2; row == 1 || row == 2 {
				want = c.want[row-1]
			}
			if math.Abs(float64(x)-want) > 1e-6 {
				t.Errorf("%s: element %d is %v, want %v", name, i, x, want)
			}
		}
	}
}

func TestSparseRefused(t *testing.T) {
	t.Parallel()
	for text, rule := range map[string]optim.Rule{
		"Adam does not support sparse gradients":                          optim.Adam{LR: 0.1},
		"AdamW does not support sparse gradients":                         optim.AdamW{LR: 0.1},
		"RMSprop does not support sparse gradients":                       optim.RMSprop{LR: 0.1},
		"weight_decay option is not compatible with sparse gradients":     optim.SGD{LR: 0.1, WeightDecay: 0.1},
		"weight_decay option is not compatible with sparse gradients too": optim.Adagrad{LR: 0.1, WeightDecay: 0.1},
	} {
		w := table()
		opt, err := optim.New(rule, []*autograd.Variable{w})
		if err != nil {
			t.Fatal(err)
		}
		lookUp(t, w)
		if err := opt.Step(); !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), strings.TrimSuffix(text, " too")) {
			t.Errorf("%T: %v", rule, err)
		}
	}
	w := table()
	opt, err := optim.New(optim.SparseAdam{LR: 0.1}, []*autograd.Variable{w})
	if err != nil {
		t.Fatal(err)
	}
	if err = w.Sum().Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := opt.Step(); !errors.Is(err, cohort.NotSupported) ||
		!strings.Contains(err.Error(), "SparseAdam does not support dense gradients") {
		t.Errorf("a dense gradient for SparseAdam: %v", err)
	}
	w.ZeroGrad()
	lookUp(t, w)
	if _, err := optim.ClipGradNorm([]*autograd.Variable{w}, 1, 2); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("clipping the norm: %v", err)
	}
	if err := optim.ClipGradValue([]*autograd.Variable{w}, 1); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("clipping values: %v", err)
	}
	s := autograd.SparseParameter(&tensor.Sparse{
		Shape: []int{2}, Indices: tensor.Must(tensor.From([]int64{1}, 1, 1)), Values: tensor.Must(tensor.From([]float32{1})),
	})
	if _, err := optim.New(optim.SGD{LR: 1}, []*autograd.Variable{s}); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a sparse parameter: %v", err)
	}
}

// TestSparseStepsByRows: a step with a gradient of a few rows makes nothing of the size of the table, and one without rows changes
// nothing but the number of steps. It is not parallel, since it looks at the memory that the process has allocated.
func TestSparseStepsByRows(t *testing.T) {
	const rows, width = 100_000, 8
	for name, rule := range map[string]optim.Rule{
		"SGD": optim.SGD{LR: 0.1}, "Adagrad": optim.Adagrad{LR: 0.1},
		"SparseAdam": optim.SparseAdam{LR: 0.1},
	} {
		w := autograd.Parameter(tensor.Must(tensor.Full(tensor.Float32, 1.0, rows, width)))
		opt, err := optim.New(rule, []*autograd.Variable{w})
		if err != nil {
			t.Fatal(err)
		}
		lookUp(t, w)
		if err = opt.Step(); err != nil { // makes what the rule remembers
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err = opt.Step(); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > rows*width*4/10 {
			t.Errorf("%s: a step with two rows allocated %d bytes for a table of %d", name, grown, rows*width*4)
		}
		now := tensor.Must(w.Data().Clone())
		empty := &tensor.Sparse{
			Shape: []int{rows, width}, Indices: tensor.Must(tensor.New(tensor.Int64, 1, 0)),
			Values: tensor.Must(tensor.New(tensor.Float32, 0, width)),
		}
		if err = w.SetGradValue(autograd.Value{Sparse: empty}); err != nil {
			t.Fatal(err)
		}
		if err = opt.Step(); err != nil {
			t.Fatal(err)
		}
		a, err := now.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := w.Data().Bytes(); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: a gradient without rows changed the table: %v", name, err)
		}
	}
}
