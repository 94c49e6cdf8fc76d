// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

// stepped makes an optimizer of two parameters and runs steps from..to with gradients that depend on the step only. The
// second parameter has no gradient before step 3.
func stepped(t *testing.T, opt *optim.Optimizer, params []*autograd.Variable, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		err := opt.StepWith(func(v *autograd.Variable) autograd.Value {
			g := []float64{r.NormFloat64(), r.NormFloat64()}
			if v == params[1] && i < 3 {
				return autograd.Value{}
			}
			return autograd.Constant(tensor.Must(tensor.From(g))).To(v.DType()).Value()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func fresh() []*autograd.Variable {
	return []*autograd.Variable{parameter(1, 2), autograd.Parameter(tensor.Must(tensor.From([]float32{3, 4})))}
}

func copyOf(t *testing.T, params []*autograd.Variable) []*autograd.Variable {
	t.Helper()
	var out []*autograd.Variable
	for _, v := range params {
		out = append(out, autograd.Parameter(tensor.Must(v.Data().Clone())))
	}
	return out
}

// TestResume: a run that is saved at any step and loaded into a new optimizer, made with other numbers, ends with the same
// bits as one that is not interrupted.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, other optim.Rule }{
		{optim.SGD{LR: 0.1}, optim.SGD{LR: 1}},
		{optim.SGD{LR: 0.1, Momentum: 0.9, Dampening: 0.2, WeightDecay: 0.1}, optim.SGD{LR: 1}},
		{optim.SGD{LR: 0.1, Momentum: 0.9, Nesterov: true}, optim.SGD{LR: 1}},
		{optim.Adam{LR: 0.1}, optim.Adam{LR: 1, Beta1: 0.5}},
		{optim.AdamW{LR: 0.1, Beta1: 0.8, WeightDecay: 0.1}, optim.AdamW{LR: 1}},
		{optim.Adagrad{LR: 0.1, InitialAccumulator: 0.5, LRDecay: 0.1}, optim.Adagrad{LR: 1}},
		{optim.RMSprop{LR: 0.1}, optim.RMSprop{LR: 1, Centered: true}},
		{optim.RMSprop{LR: 0.1, Momentum: 0.5, Centered: true}, optim.RMSprop{LR: 1}},
	} {
		for at := range 6 {
			whole, first := fresh(), fresh()
			opt, err := optim.New(c.rule, whole)
			if err != nil {
				t.Fatal(err)
			}
			stepped(t, opt, whole, 0, 3)
			opt.SetLR(0.05)
			stepped(t, opt, whole, 3, 8)

			if opt, err = optim.New(c.rule, first); err != nil {
				t.Fatal(err)
			}
			stepped(t, opt, first, 0, min(at, 3))
			if at >= 3 {
				opt.SetLR(0.05)
				stepped(t, opt, first, 3, at)
			}
			path := filepath.Join(t.TempDir(), "optimizer.safetensors")
			if err = opt.Save(path); err != nil {
				t.Fatal(err)
			}
			second := copyOf(t, first)
			if opt, err = optim.New(c.other, second); err != nil {
				t.Fatal(err)
			}
			if err = opt.Load(path); err != nil {
				t.Fatalf("%T%+v at step %d: %v", c.rule, c.rule, at, err)
			}
			if at < 3 {
				stepped(t, opt, second, at, 3)
				opt.SetLR(0.05)
			}
			stepped(t, opt, second, max(at, 3), 8)
			for i := range whole {
				if !tensor.Equal(whole[i].Data(), second[i].Data()) {
					t.Errorf("%T%+v saved at step %d: parameter %d is %v, without %v", c.rule, c.rule, at, i, second[i].Data(),
						whole[i].Data())
				}
			}
			if opt.LR() != 0.05 {
				t.Errorf("%T: learning rate %v", c.rule, opt.LR())
			}
		}
	}
}

// TestStateLayout pins the names that PyTorch's users see.
func TestStateLayout(t *testing.T) {
	t.Parallel()
	params := fresh()
	opt, err := optim.New(optim.Adam{LR: 0.1}, params)
	if err != nil {
		t.Fatal(err)
	}
	stepped(t, opt, params, 0, 4)
	f, err := opt.State()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range f.Tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"state.0.exp_avg", "state.0.exp_avg_sq", "state.0.step", "state.1.exp_avg", "state.1.exp_avg_sq", "state.1.step"}
	if !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if n, _ := f.Tensors["state.1.step"].Item(); n != float32(1) {
		t.Errorf("the second parameter had %v steps, want 1", n)
	}
	if got, want := f.Metadata["param_groups"],
		`[{"amsgrad":false,"betas":[0.9,0.999],"eps":1e-8,"lr":0.1,"maximize":false,"params":[0,1],"weight_decay":0}]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestBadState: what does not fit is refused, and the optimizer continues as before.
func TestBadState(t *testing.T) {
	t.Parallel()
	params := fresh()
	opt, err := optim.New(optim.Adam{LR: 0.1}, params)
	if err != nil {
		t.Fatal(err)
	}
	stepped(t, opt, params, 0, 4)
	for _, c := range []struct {
		change func(f *safetensors.File)
		want   string
	}{
		{func(f *safetensors.File) { delete(f.Metadata, "param_groups") }, "no param_groups"},
		{func(f *safetensors.File) { f.Metadata["param_groups"] = `[{"params":[0]},{"params":[1]}]` }, "2 groups"},
		{func(f *safetensors.File) { f.Metadata["param_groups"] = `[{"params":[0]}]` }, "1 parameters, the optimizer has 2"},
		{func(f *safetensors.File) { f.Metadata["param_groups"] = `[{"params":[0,1],"lr":"fast"}]` }, "param_groups"},
		{func(f *safetensors.File) { f.Metadata["param_groups"] = `[{"params":[0,1],"lr":-1}]` }, "invalid learning rate"},
		{
			func(f *safetensors.File) { f.Metadata["param_groups"] = `[{"params":[0,1],"amsgrad":true}]` },
			"2 of the tensors [exp_avg exp_avg_sq max_exp_avg_sq]",
		},
		{func(f *safetensors.File) {
			f.Metadata["param_groups"] = `[{"params":[0,1],"decoupled_weight_decay":true}]`
		}, "another rule"},
		{func(f *safetensors.File) { delete(f.Tensors, "state.0.exp_avg") }, "1 of the tensors"},
		{func(f *safetensors.File) { f.Tensors["state.0.sum"] = params[0].Data() }, `unexpected tensor "state.0.sum"`},
		{func(f *safetensors.File) { f.Tensors["state.7.exp_avg"] = params[0].Data() }, "from 0 to 1"},
		{func(f *safetensors.File) { f.Tensors["exp_avg"] = params[0].Data() }, "want state.N.NAME"},
		{func(f *safetensors.File) { f.Tensors["state.0.step"] = params[0].Data() }, "one whole number"},
		{func(f *safetensors.File) {
			f.Tensors["state.0.step"] = tensor.Must(tensor.Full(tensor.Float32, float32(1.5)))
		}, "one whole number"},
		{
			func(f *safetensors.File) { f.Tensors["state.0.exp_avg"] = tensor.Must(tensor.New(tensor.Float32, 3)) },
			"the parameter float64[2]",
		},
		{func(f *safetensors.File) { f.Tensors["state.0.exp_avg"] = tensor.Must(tensor.New(tensor.Int64, 2)) }, "the parameter float64[2]"},
	} {
		f, err := opt.State()
		if err != nil {
			t.Fatal(err)
		}
		c.change(f)
		err = opt.LoadState(f)
		if code := cohort.CodeOf(err); code != cohort.InvalidArgument && code != cohort.NotSupported ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if f, err := opt.State(); err != nil || opt.LR() != 0.1 || len(f.Tensors) != 6 {
		t.Errorf("afterwards: %v, learning rate %v", err, opt.LR())
	}
	if err := opt.Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, cohort.NotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestZerosInState: a zero of PyTorch is a zero here, and is saved as one, though a rule takes 0 for its default; one that is missing stays
// what it is.
func TestZerosInState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule  optim.Rule
		zeros []string
	}{
		{optim.Adam{LR: 0.1}, []string{`"betas":[0,0.9]`, `"betas":[0.9,0]`, `"eps":0`}},
		{optim.AdamW{LR: 0.1}, []string{`"betas":[0,0.9]`, `"eps":0`}},
		{optim.Adamax{LR: 0.1}, []string{`"betas":[0,0.9]`, `"eps":0`}},
		{optim.SparseAdam{LR: 0.1}, []string{`"betas":[0,0.9]`, `"eps":0`}},
		{optim.Adagrad{LR: 0.1}, []string{`"eps":0`}},
		{optim.RMSprop{LR: 0.1}, []string{`"alpha":0`, `"eps":0`}},
		{optim.Adadelta{LR: 1}, []string{`"rho":0`, `"eps":0`}},
		{optim.Rprop{LR: 0.1}, []string{`"step_sizes":[0,50]`, `"step_sizes":[0.25,0]`}},
	} {
		opt, err := optim.New(c.rule, fresh())
		if err != nil {
			t.Fatal(err)
		}
		load := func(number string) error {
			return opt.LoadState(&safetensors.File{Metadata: map[string]string{"param_groups": `[{"params":[0,1],` + number + `}]`}})
		}
		for _, zero := range c.zeros {
			if err := load(zero); err != nil {
				t.Errorf("%T with %s: %v", c.rule, zero, err)
			}
			f, err := opt.State()
			if err != nil {
				t.Fatal(err)
			}
			// not 0.99
			if groups := f.Metadata["param_groups"]; !strings.Contains(groups, zero+",") && !strings.Contains(groups, zero+"}") {
				t.Errorf("%T with %s is saved as %s", c.rule, zero, groups)
			}
		}
		if err := load(`"lr":0.25`); err != nil || opt.LR() != 0.25 {
			t.Errorf("%T without the numbers: %v, learning rate %v", c.rule, err, opt.LR())
		}
	}
	opt, err := optim.New(optim.Rprop{LR: 0.1}, fresh())
	if err != nil {
		t.Fatal(err)
	}
	for _, etas := range []string{`[0,1.2]`, `[0.5,0]`} { // which PyTorch refuses
		if err := opt.LoadState(&safetensors.File{Metadata: map[string]string{"param_groups": `[{"params":[0,1],"etas":` + etas +
			`}]`}}); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("etas %s: %v", etas, err)
		}
	}
}
