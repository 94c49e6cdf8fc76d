// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/rpc/aten"
	"github.com/cohort-dist/cohort/tensor"
)

// formulas are the operators as functions of variables, which know their gradients.
var formulas = map[string]func(x, y *autograd.Variable) *autograd.Variable{
	"aten::neg":     unary((*autograd.Variable).Neg),
	"aten::relu":    unary((*autograd.Variable).ReLU),
	"aten::abs":     unary((*autograd.Variable).Abs),
	"aten::exp":     unary((*autograd.Variable).Exp),
	"aten::log":     unary((*autograd.Variable).Log),
	"aten::sqrt":    unary((*autograd.Variable).Sqrt),
	"aten::tanh":    unary((*autograd.Variable).Tanh),
	"aten::sin":     unary((*autograd.Variable).Sin),
	"aten::cos":     unary((*autograd.Variable).Cos),
	"aten::sigmoid": unary((*autograd.Variable).Sigmoid),
	"aten::clone":   func(x, _ *autograd.Variable) *autograd.Variable { return x.Scale(1) },
	"aten::t": func(x, _ *autograd.Variable) *autograd.Variable {
		if x.Dims() < 2 {
			return x.Scale(1)
		}
		return x.Transpose(0, 1)
	},
	"aten::sum":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Sum() },
	"aten::mean":   func(x, _ *autograd.Variable) *autograd.Variable { return x.Mean() },
	"aten::mm":     (*autograd.Variable).MatMul,
	"aten::matmul": (*autograd.Variable).MatMul,
	"aten::add":    (*autograd.Variable).Add,
	"aten::sub":    (*autograd.Variable).Sub,
	"aten::mul":    (*autograd.Variable).Mul,
	"aten::div":    (*autograd.Variable).Div,
}

func unary(f func(*autograd.Variable) *autograd.Variable) func(x, _ *autograd.Variable) *autograd.Variable {
	return func(x, _ *autograd.Variable) *autograd.Variable { return f(x) }
}

// recorded is an operator some of whose arguments are variables: it is computed by the kernel, within its budget, and by the
// formula when the gradient is asked for.
type recorded struct {
	budget  *aten.Budget
	name    string
	stack   []any
	at      []int // the positions of the variables
	formula func(x, y *autograd.Variable) *autograd.Variable
}

// differentiate runs an operator with variables among its arguments. It reports false when there are none.
func differentiate(budget *aten.Budget, name string, stack []any) (any, bool, error) {
	var at []int
	var inputs []*autograd.Variable
	for i, v := range stack {
		if v, ok := v.(*autograd.Variable); ok {
			at, inputs = append(at, i), append(inputs, v)
		}
	}
	if len(inputs) == 0 {
		return nil, false, nil
	}
	base, _, _ := strings.Cut(name, ".")
	r := &recorded{budget: budget, name: name, stack: stack, at: at, formula: formulas[base]}
	if r.formula == nil {
		return nil, true, cohort.Newf("rpc: operator", cohort.NotSupported,
			"this Go worker has no gradient for this operator: detach its arguments, or send the work to a PyTorch worker")
	}
	out, err := autograd.Apply(r, inputs...)
	if err != nil {
		return nil, true, err
	}
	return out[0], true, nil
}

// Name names the operator in errors.
func (r *recorded) Name() string { return r.name }

// Forward runs the kernel.
func (r *recorded) Forward(c *autograd.Context, inputs []*tensor.Tensor) ([]*tensor.Tensor, error) {
	stack := append([]any{}, r.stack...)
	for i, at := range r.at {
		stack[at] = inputs[i]
	}
	v, _, err := r.budget.Run(r.name, stack)
	if err != nil {
		return nil, err
	}
	t, ok := v.(*tensor.Tensor)
	if !ok {
		return nil, cohort.Newf("rpc: operator", cohort.Internal, "the result is a %T", v)
	}
	c.Save(inputs...)
	return []*tensor.Tensor{t}, nil
}

// Backward computes the operator again, as a formula, and its gradient.
func (r *recorded) Backward(c *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	var args [2]*autograd.Variable
	var wanted []*autograd.Variable
	var positions []int
	for i, t := range c.Saved() {
		v := autograd.Constant(t)
		if c.NeedsGrad(i) {
			v = autograd.Parameter(t)
			wanted, positions = append(wanted, v), append(positions, i)
		}
		if at := r.at[i]; at < len(args) {
			args[at] = v
		}
	}
	for i := range args {
		if i >= len(r.stack) || args[i] != nil {
			continue
		}
		if t, ok := r.stack[i].(*tensor.Tensor); ok {
			args[i] = autograd.Constant(t)
		} else if x, ok := toFloat(r.stack[i]); ok {
			args[i] = number(x, args[0])
		}
	}
	if alpha := r.alpha(); alpha != 1 && args[1] != nil {
		args[1] = args[1].Scale(alpha)
	}
	given := make([]autograd.Value, len(grads))
	for i, g := range grads {
		given[i].Dense = g
	}
	found, err := autograd.Grad(c.Ctx(), []*autograd.Variable{r.formula(args[0], args[1])}, given, wanted)
	if err != nil {
		return nil, err
	}
	out := make([]*tensor.Tensor, len(r.at))
	for i, at := range positions {
		out[at] = found[i].Dense
	}
	return out, nil
}

// alpha is the factor of the second argument of a sum or difference.
func (r *recorded) alpha() float64 {
	if len(r.stack) == 3 && (strings.HasPrefix(r.name, "aten::add") || strings.HasPrefix(r.name, "aten::sub")) {
		if x, ok := toFloat(r.stack[2]); ok {
			return x
		}
	}
	return 1
}

// toFloat is a Python number.
func toFloat(v any) (float64, bool) {
	switch x := v.(type) {
	case int64:
		return float64(x), true
	case float64:
		return x, true
	}
	return 0, false
}

// number is a Python number as a constant of the type of the other argument.
func number(x float64, other *autograd.Variable) *autograd.Variable {
	dt := tensor.Float64
	if other != nil {
		dt = other.DType()
	}
	t, err := tensor.Full(dt, x)
	if err != nil {
		return autograd.Failed(err)
	}
	return autograd.Constant(t)
}
