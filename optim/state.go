// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

// paramGroups is the entry of a file's metadata that holds the numbers of the rule, as PyTorch's param_groups in JSON.
const paramGroups = "param_groups"

// State returns what the optimizer remembers, in the layout of PyTorch's Optimizer.state_dict: the tensor exp_avg of the
// first parameter is called "state.0.exp_avg", the number of its steps "state.0.step", and the metadata has
// "param_groups" as JSON. The tensors are those that the optimizer works with, not copies: the next step changes them.
// It corresponds to Optimizer.state_dict.
func (o *Optimizer) State() (*safetensors.File, error) {
	if o.rule == nil {
		return nil, cohort.New("optim: state", cohort.InvalidArgument, "no rule: make an optimizer with New")
	}
	f := &safetensors.File{Tensors: map[string]*tensor.Tensor{}, Metadata: map[string]string{"format": "pt"}}
	s := o.rule.slots()
	for i, p := range o.params {
		for j, name := range s.names {
			if name != "" && p.state[j] != nil {
				f.Tensors[key(i, name)] = p.state[j]
			}
		}
		if s.counted && p.steps > 0 {
			n, err := tensor.Full(tensor.Float32, float32(p.steps)) // PyTorch's type for it
			if err != nil {
				return nil, err
			}
			f.Tensors[key(i, "step")] = n
		}
	}
	text, err := json.Marshal(o.rule.group(o.lr))
	if err != nil {
		return nil, err
	}
	var group map[string]any
	if err = json.Unmarshal(text, &group); err != nil {
		return nil, err
	}
	indices := make([]int, len(o.params))
	for i := range indices {
		indices[i] = i
	}
	group["params"] = indices
	if text, err = json.Marshal([]any{group}); err != nil {
		return nil, err
	}
	f.Metadata[paramGroups] = string(text)
	return f, nil
}

func key(i int, name string) string { return fmt.Sprintf("state.%d.%s", i, name) }

// LoadState loads the state of an optimizer with the same rule and parameters, and its hyperparameters, including the
// learning rate. If something does not fit, it changes nothing. It corresponds to Optimizer.load_state_dict.
func (o *Optimizer) LoadState(f *safetensors.File) error {
	if f == nil || o.rule == nil {
		return cohort.New("optim: load state", cohort.InvalidArgument, "no file, or no rule: make an optimizer with New")
	}
	rule, err := o.loadGroup(f.Metadata[paramGroups])
	if err != nil {
		return err
	}
	loaded := make([]*param, len(o.params))
	for i, p := range o.params {
		loaded[i] = &param{v: p.v}
	}
	s := rule.slots()
	for _, name := range slices.Sorted(maps.Keys(f.Tensors)) {
		if err := load(loaded, s, name, f.Tensors[name]); err != nil {
			return err
		}
	}
	for i, p := range loaded {
		if err := p.complete(i, s); err != nil {
			return err
		}
	}
	o.rule, o.lr, o.params = rule, rule.Rate(), loaded
	return nil
}

// loadGroup reads the numbers of the rule.
func (o *Optimizer) loadGroup(text string) (Rule, error) {
	var groups []json.RawMessage
	if err := json.Unmarshal([]byte(text), &groups); err != nil {
		return nil, badState("the metadata has no param_groups in JSON: %w", err)
	}
	if len(groups) != 1 {
		return nil, badState("%d groups of parameters: an optimizer has one, load each into one of its own", len(groups))
	}
	var g struct {
		Params []int `json:"params"`
		Apart  *bool `json:"decoupled_weight_decay"` // what PyTorch 2.7 and newer tell Adam and AdamW apart by
	}
	if err := json.Unmarshal(groups[0], &g); err != nil {
		return nil, badState("param_groups: %w", err)
	}
	_, apart := o.rule.(AdamW)
	switch {
	case len(g.Params) != len(o.params):
		return nil,
			badState(
				"loaded state dict contains a parameter group that doesn't match the size of optimizer's group: %d parameters, the "+
					"optimizer has %d", len(g.Params), len(o.params))
	case g.Apart != nil && *g.Apart != apart:
		return nil, badState("the state is of another rule than %T: decoupled_weight_decay is %v", o.rule, *g.Apart)
	}
	rule, err := o.rule.withGroup(groups[0])
	if err != nil {
		return nil, badState("param_groups: %w", err)
	}
	return rule, rule.check()
}

// load puts one tensor in its place.
func load(params []*param, s slots, name string, t *tensor.Tensor) error {
	rest, ok := strings.CutPrefix(name, "state.")
	number, what, ok2 := strings.Cut(rest, ".")
	i, err := strconv.Atoi(number)
	if !ok || !ok2 || err != nil || i < 0 || i >= len(params) {
		return badState("unexpected tensor %q: want state.N.NAME with N from 0 to %d", name, len(params)-1)
	}
	p := params[i]
	if what == "step" && s.counted {
		p.steps, err = steps(name, t)
		return err
	}
	at := slices.Index(s.names[:], what)
	if at < 0 || what == "" {
		return badState("unexpected tensor %q: the rule remembers %v", name, s.list())
	}
	if !t.SameShape(p.v.Data()) || !t.DType().Floating() {
		return badState("%s is %v%v, the parameter %v%v", name, t.DType(), t.Shape(), p.v.DType(), p.v.Shape())
	}
	if t, err = tensorops.Convert(t, p.v.DType()); err != nil {
		return err
	}
	p.state[at], err = t.Clone()
	return err
}

// steps reads the number of steps: a whole number in a tensor of one element.
func steps(name string, t *tensor.Tensor) (int, error) {
	if t.Numel() == 1 && tensorops.Computes(t.DType()) {
		if wide, err := tensorops.Convert(t, tensor.Float64); err == nil {
			if n, err := tensor.Copy[float64](wide); err == nil && n[0] >= 0 && n[0] < 1<<53 && n[0] == math.Trunc(n[0]) {
				return int(n[0]), nil
			}
		}
	}
	return 0, badState("%s is %v: want one whole number", name, t)
}

// complete checks that a parameter has all of its state or nothing.
func (p *param) complete(i int, s slots) error {
	have, want := 0, 0
	for j, name := range s.names {
		if name != "" {
			want++
			if p.state[j] != nil {
				have++
			}
		}
	}
	switch {
	case have == 0 && (p.steps == 0 || want == 0):
		return nil
	case have < want:
		return badState("parameter %d has %d of the tensors %v", i, have, s.list())
	case !s.counted:
		p.steps = 1 // there was a step: the momentum begins with the first
	}
	return nil
}

func (s slots) list() []string {
	return slices.DeleteFunc(slices.Clone(s.names[:]), func(name string) bool { return name == "" })
}

const loadOp = "optim: load state"

func badState(format string, args ...any) error {
	return cohort.Newf(loadOp, cohort.InvalidArgument, format, args...)
}

// Save writes what the optimizer remembers to a safetensors file. docs/autograd.md shows the few lines that make a
// state_dict of it in Python.
func (o *Optimizer) Save(path string) error {
	f, err := o.State()
	if err != nil {
		return err
	}
	return f.Save(path)
}

// Load is [Optimizer.LoadState] of a file.
func (o *Optimizer) Load(path string) error {
	f, err := safetensors.Load(path)
	if err != nil {
		return err
	}
	return o.LoadState(f)
}

func (r SGD) group(lr float64) any {
	r.LR = lr
	return r
}

func (r SGD) withGroup(text []byte) (Rule, error) {
	err := json.Unmarshal(text, &r)
	return r, err
}

func (r Adagrad) group(lr float64) any {
	r.LR, r.Eps = lr, or(r.Eps, 1e-10)
	return r
}

func (r Adagrad) withGroup(text []byte) (Rule, error) {
	r.Eps = or(r.Eps, 1e-10)
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	meant(&r.Eps)
	return r, nil
}

func (r RMSprop) group(lr float64) any {
	r.LR, r.Alpha, r.Eps = lr, or(r.Alpha, 0.99), or(r.Eps, 1e-8)
	return r
}

func (r RMSprop) withGroup(text []byte) (Rule, error) {
	r.Alpha, r.Eps = or(r.Alpha, 0.99), or(r.Eps, 1e-8)
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	meant(&r.Alpha, &r.Eps)
	return r, nil
}

// meant turns zeros of PyTorch into those that a rule does not take for its default.
func meant(numbers ...*float64) {
	for _, x := range numbers {
		if *x == 0 {
			*x = Zero
		}
	}
}

func (r Adadelta) group(lr float64) any {
	r.LR, r.Rho, r.Eps = lr, or(r.Rho, 0.9), or(r.Eps, 1e-6)
	return r
}

func (r Adadelta) withGroup(text []byte) (Rule, error) {
	r.Rho, r.Eps = or(r.Rho, 0.9), or(r.Eps, 1e-6)
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	meant(&r.Rho, &r.Eps)
	return r, nil
}

// rpropGroup is how PyTorch writes the numbers of Rprop.
type rpropGroup struct {
	LR       float64    `json:"lr"`
	Etas     [2]float64 `json:"etas"`
	Steps    [2]float64 `json:"step_sizes"`
	Maximize bool       `json:"maximize"`
}

func (r Rprop) group(lr float64) any {
	return rpropGroup{
		lr,
		[2]float64{or(r.EtaMinus, 0.5), or(r.EtaPlus, 1.2)},
		[2]float64{or(r.StepMin, 1e-6), or(r.StepMax, 50)},
		r.Maximize,
	}
}

func (r Rprop) withGroup(text []byte) (Rule, error) {
	g, _ := r.group(r.LR).(rpropGroup)
	if err := json.Unmarshal(text, &g); err != nil {
		return nil, err
	}
	meant(&g.Etas[0], &g.Etas[1], &g.Steps[0], &g.Steps[1])
	return Rprop{g.LR, g.Etas[0], g.Etas[1], g.Steps[0], g.Steps[1], g.Maximize}, nil
}

// adamGroup is how PyTorch writes the numbers of Adam, AdamW and Adamax.
type adamGroup struct {
	LR          float64    `json:"lr"`
	Betas       [2]float64 `json:"betas"`
	Eps         float64    `json:"eps"`
	WeightDecay float64    `json:"weight_decay"`
	AMSGrad     bool       `json:"amsgrad"`
	Maximize    bool       `json:"maximize"`
}

func (r Adam) group(lr float64) any {
	return adamGroup{lr, [2]float64{or(r.Beta1, 0.9), or(r.Beta2, 0.999)}, or(r.Eps, 1e-8), r.WeightDecay, r.AMSGrad, r.Maximize}
}

func (r Adam) withGroup(text []byte) (Rule, error) {
	g, _ := r.group(r.LR).(adamGroup)
	if err := json.Unmarshal(text, &g); err != nil {
		return nil, err
	}
	meant(&g.Betas[0], &g.Betas[1], &g.Eps)
	return Adam{g.LR, g.Betas[0], g.Betas[1], g.Eps, g.WeightDecay, g.AMSGrad, g.Maximize}, nil
}

func (r Adamax) group(lr float64) any { return r.adam().group(lr) }

func (r Adamax) withGroup(text []byte) (Rule, error) {
	rule, err := r.adam().withGroup(text)
	if err != nil {
		return nil, err
	}
	a, _ := rule.(Adam)
	return Adamax{a.LR, a.Beta1, a.Beta2, a.Eps, a.WeightDecay, a.Maximize}, nil
}

// sparseAdamGroup is how PyTorch writes the numbers of SparseAdam.
type sparseAdamGroup struct {
	LR       float64    `json:"lr"`
	Betas    [2]float64 `json:"betas"`
	Eps      float64    `json:"eps"`
	Maximize bool       `json:"maximize"`
}

func (r SparseAdam) group(lr float64) any {
	a, _ := r.adam().group(lr).(adamGroup)
	return sparseAdamGroup{LR: a.LR, Betas: a.Betas, Eps: a.Eps, Maximize: a.Maximize}
}

func (r SparseAdam) withGroup(text []byte) (Rule, error) {
	rule, err := r.adam().withGroup(text)
	if err != nil {
		return nil, err
	}
	a, _ := rule.(Adam)
	return SparseAdam{a.LR, a.Beta1, a.Beta2, a.Eps, a.Maximize}, nil
}

func (r AdamW) group(lr float64) any { return Adam(r).group(lr) }

func (r AdamW) withGroup(text []byte) (Rule, error) {
	a, err := Adam(r).withGroup(text)
	if err != nil {
		return nil, err
	}
	return AdamW(a.(Adam)), nil //nolint:errcheck // it returns an Adam
}
