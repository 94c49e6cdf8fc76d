// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package optim updates parameters with their gradients. It corresponds to torch.optim; the rules compute the same as
// PyTorch's, in the same order.
//
//	opt, err := optim.New(optim.Adam{LR: 1e-3}, nn.Variables(model))
//	for step := range steps {
//		opt.ZeroGrad()
//		err = loss().Backward(ctx)
//		err = opt.Step()
//		opt.SetLR(schedule(step + 1))
//	}
//
// A rule ([SGD], [Adam], [AdamW], [SparseAdam], [Adamax], [Adagrad], [RMSprop], [Adadelta], [Rprop]) is a plain struct
// of numbers; with Maximize set it goes up instead of down. Where 0 means a default, [Zero] is an explicit zero.
// Schedules are functions from the number of steps to a learning rate. An [Optimizer] is for one goroutine at a time.
package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// Rule defines how a parameter changes with its gradient.
type Rule interface {
	// Rate is the learning rate to begin with.
	Rate() float64
	check() error
	maximize() bool
	sparse() string // why it takes no sparse gradients, in PyTorch's text, or ""
	slots() slots
	// group is the rule as an entry of PyTorch's param_groups; withGroup is the rule with the numbers of one.
	group(lr float64) any
	withGroup(text []byte) (Rule, error)
	step32(p *param, w, g []float32, lr float64)
	step64(p *param, w, g []float64, lr float64)
}

// slots describes what a rule remembers of each parameter: tensors of the parameter's type and shape.
type slots struct {
	names   [3]string // PyTorch's; "" where there is none
	initial float64
	counted bool // PyTorch remembers the number of steps too
}

// param is a parameter with what the rule remembers about it.
type param struct {
	v     *autograd.Variable
	steps int
	state [3]*tensor.Tensor
}

// Optimizer applies a rule to parameters.
type Optimizer struct {
	rule   Rule
	lr     float64
	params []*param
}

// New returns an optimizer of parameters of float32 or float64. Parameters that want another rule or learning rate get an
// optimizer of their own.
func New(rule Rule, params []*autograd.Variable) (*Optimizer, error) {
	const op = "optim: new"
	switch {
	case rule == nil:
		return nil, cohort.New(op, cohort.InvalidArgument, "no rule: give one such as optim.SGD{LR: 0.1}")
	case len(params) == 0:
		return nil, cohort.New(op, cohort.InvalidArgument, "optimizer got an empty parameter list")
	}
	if err := rule.check(); err != nil {
		return nil, err
	}
	o := &Optimizer{rule: rule, lr: rule.Rate()}
	seen := map[*autograd.Variable]bool{}
	for i, v := range params {
		if err := v.Err(); err != nil {
			return nil, err
		}
		dt := v.DType()
		switch {
		case v.Data() == nil:
			return nil, cohort.Newf(op, cohort.InvalidArgument,
				"parameter %d is sparse: parameters are dense, only their gradients may be sparse", i)
		case !v.IsLeaf():
			return nil, cohort.Newf(op, cohort.InvalidArgument, "parameter %d: can't optimize a non-leaf variable", i)
		case seen[v]:
			return nil, cohort.Newf(op, cohort.InvalidArgument, "parameter %d appears twice", i)
		case dt != tensor.Float32 && dt != tensor.Float64 || !v.Data().IsContiguous():
			return nil, cohort.Newf(op, cohort.InvalidArgument,
				"parameter %d is %v with strides %v: want dense float32 or float64", i, dt, v.Data().Strides())
		}
		seen[v] = true
		o.params = append(o.params, &param{v: v})
	}
	return o, nil
}

// LR returns the learning rate.
func (o *Optimizer) LR() float64 { return o.lr }

// SetLR changes the learning rate from the next step on.
func (o *Optimizer) SetLR(lr float64) { o.lr = lr }

// ZeroGrad clears the gradients of all parameters. It corresponds to Optimizer.zero_grad.
func (o *Optimizer) ZeroGrad() {
	for _, p := range o.params {
		p.v.ZeroGrad()
	}
}

// Step updates every parameter that has a gradient. It corresponds to Optimizer.step.
func (o *Optimizer) Step() error { return o.StepWith((*autograd.Variable).GradValue) }

// StepWith is Step with gradients from a function; where it returns none the parameter is not changed. SGD and Adagrad without weight
// decay take sparse gradients too, and SparseAdam takes only those.
func (o *Optimizer) StepWith(grad func(*autograd.Variable) autograd.Value) error {
	for i, p := range o.params {
		g := grad(p.v)
		if g.IsNone() {
			continue
		}
		if g.DType() != p.v.DType() || !slices.Equal(g.Shape(), p.v.Shape()) {
			return cohort.Newf("optim: step", cohort.InvalidArgument, "parameter %d is %v%v, its gradient %v%v", i, p.v.DType(),
				p.v.Shape(), g.DType(), g.Shape())
		}
		if err := o.step(p, g); err != nil {
			return err
		}
	}
	return nil
}

func (o *Optimizer) step(p *param, grad autograd.Value) error {
	if o.rule.maximize() {
		var err error
		if grad, err = negative(grad); err != nil {
			return err
		}
	}
	if grad.Sparse != nil {
		if reason := o.rule.sparse(); reason != "" {
			return cohort.New("optim: step", cohort.NotSupported, reason)
		}
		switch r := o.rule.(type) {
		case SGD:
			if r.Momentum == 0 {
				return p.add(grad.Sparse, -o.lr)
			}
		case Adagrad, SparseAdam:
			return o.stepRows(p, grad.Sparse)
		}
	} else if _, ok := o.rule.(SparseAdam); ok {
		return cohort.New("optim: step", cohort.NotSupported, "SparseAdam does not support dense gradients, please consider Adam instead")
	}
	// Momentum moves all of a parameter: with zeros it computes what PyTorch computes without them.
	g, err := grad.ToDense()
	if err != nil {
		return err
	}
	if g, err = g.Contiguous(); err != nil {
		return err
	}
	if err := p.remember(o.rule.slots()); err != nil {
		return err
	}
	p.steps++
	return o.run(p, p.v.Data(), g)
}

// negative is a gradient with the other sign.
func negative(grad autograd.Value) (out autograd.Value, err error) {
	neg := func(t *tensor.Tensor) (*tensor.Tensor, error) { return tensorops.Unary(tensorops.Neg, t) }
	if grad.Sparse != nil {
		out.Sparse, err = sparseops.Map(grad.Sparse, neg)
	} else {
		out.Dense, err = neg(grad.Dense)
	}
	return out, err
}

// stepRows applies the rule where a sparse gradient has values, and leaves the rest of the parameter and of what the rule remembers
// about it as they are. The time it takes depends on the gradient, not on the parameter.
func (o *Optimizer) stepRows(p *param, grad *tensor.Sparse) error {
	grad, err := sparseops.Coalesce(grad) // the rules are not linear, so every index must come once
	if err != nil {
		return err
	}
	if err = p.remember(o.rule.slots()); err != nil {
		return err
	}
	p.steps++
	wholes := append([]*tensor.Tensor{p.v.Data()}, p.state[:]...)
	parts := make([]*tensor.Sparse, len(wholes))
	rows := &param{steps: p.steps}
	for i, t := range wholes {
		if t == nil {
			continue
		}
		if parts[i], err = sparseops.Take(t, grad); err != nil {
			return err
		}
		if i > 0 {
			rows.state[i-1] = parts[i].Values
		}
	}
	g, err := grad.Values.Contiguous()
	if err != nil {
		return err
	}
	if err := o.run(rows, parts[0].Values, g); err != nil {
		return err
	}
	for i, part := range parts {
		if part == nil {
			continue
		}
		if err := sparseops.Put(wholes[i], part); err != nil {
			return err
		}
	}
	return nil
}

// run applies the rule to dense tensors: the values of a parameter and their gradient.
func (o *Optimizer) run(p *param, w, g *tensor.Tensor) error {
	if w.DType() == tensor.Float32 {
		return run(o.rule.step32, p, w, g, o.lr)
	}
	return run(o.rule.step64, p, w, g, o.lr)
}

// add adds a sparse tensor times a number to the parameter in place: all there is to do where a gradient of a few rows meets a
// table of many.
func (p *param) add(s *tensor.Sparse, by float64) error {
	change, err := sparseops.Map(s, func(v *tensor.Tensor) (*tensor.Tensor, error) {
		return tensorops.Binary(tensorops.Mul, tensorops.Of(v), tensorops.Num(by))
	})
	if err != nil {
		return err
	}
	p.steps++
	return sparseops.AddInto(p.v.Data(), change)
}

// remember makes the tensors of a rule that are not there yet.
func (p *param) remember(s slots) error {
	for i, name := range s.names {
		if name == "" || p.state[i] != nil {
			continue
		}
		var err error
		if p.state[i], err = tensor.Full(p.v.DType(), s.initial, p.v.Shape()...); err != nil {
			return err
		}
	}
	return nil
}

func run[T float32 | float64](step func(p *param, w, g []T, lr float64), p *param, w, g *tensor.Tensor, lr float64) error {
	x, err := tensor.Data[T](w)
	if err != nil {
		return err
	}
	y, err := tensor.Data[T](g)
	if err != nil {
		return err
	}
	step(p, x, y, lr)
	return nil
}

// slot is the i-th state of a parameter, nil where its rule has none; its type was chosen with the parameter's.
func slot[T float32 | float64](p *param, i int) []T {
	if p.state[i] == nil {
		return nil
	}
	data, err := tensor.Data[T](p.state[i])
	if err != nil {
		panic(err) // made by remember: dense and of this type
	}
	return data
}

// ClipGradNorm scales all gradients so that their norm together is at most limit, and returns what it was. norm is 2 for
// the usual one, or infinite. It corresponds to torch.nn.utils.clip_grad_norm_.
func ClipGradNorm(params []*autograd.Variable, limit, norm float64) (float64, error) {
	var norms []float64
	if err := denseGrads("optim: clip grad norm", params); err != nil {
		return 0, err
	}
	for _, v := range params {
		if g := v.Grad(); g != nil {
			n, err := tensorops.Norm(g, norm)
			if err != nil {
				return 0, err
			}
			norms = append(norms, n)
		}
	}
	if len(norms) == 0 {
		return 0, nil
	}
	total, err := tensorops.Norm(tensor.Must(tensor.From(norms)), norm)
	if err != nil {
		return 0, err
	}
	scale := limit / (total + 1e-6)
	if scale >= 1 {
		return total, nil
	}
	for _, v := range params {
		if g := v.Grad(); g != nil {
			if err := tensorops.Scale(g, scale); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

// ClipGradValue limits every element of all gradients to [-limit, limit]. It corresponds to
// torch.nn.utils.clip_grad_value_.
func ClipGradValue(params []*autograd.Variable, limit float64) error {
	if err := denseGrads("optim: clip grad value", params); err != nil {
		return err
	}
	for _, v := range params {
		g := v.Grad()
		if g == nil {
			continue
		}
		var err error
		if g.DType() == tensor.Float64 {
			err = clamp[float64](g, limit)
		} else {
			err = clamp[float32](g, limit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// denseGrads refuses sparse gradients, which PyTorch cannot clip either.
func denseGrads(op string, params []*autograd.Variable) error {
	for i, v := range params {
		if v == nil {
			return cohort.Newf(op, cohort.InvalidArgument, "parameter %d is nil", i)
		}
		if v.GradValue().Sparse != nil {
			return cohort.Newf(op, cohort.NotSupported,
				"the gradient of parameter %d is sparse: only dense ones are clipped, as in PyTorch", i)
		}
	}
	return nil
}

func clamp[T float32 | float64](g *tensor.Tensor, limit float64) error {
	x, err := tensor.Data[T](g)
	if err != nil {
		return err
	}
	hi := T(limit)
	for i, v := range x {
		switch { // NaN stays
		case v > hi:
			x[i] = hi
		case v < -hi:
			x[i] = -hi
		}
	}
	return nil
}

func badRule(format string, args ...any) error {
	return cohort.Newf("optim: new", cohort.InvalidArgument, format, args...)
}

// notNegative checks numbers of a rule; NaN is refused too.
func notNegative(name string, v float64) error {
	if !(v >= 0) || math.IsInf(v, 0) { // NaN is refused too
		return badRule("invalid %s: %v", name, v)
	}
	return nil
}

// String names the rule, the learning rate and the number of parameters.
func (o *Optimizer) String() string {
	return fmt.Sprintf("%T (lr=%v, %d parameters)", o.rule, o.lr, len(o.params))
}
