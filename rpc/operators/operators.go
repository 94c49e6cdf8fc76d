// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package operators serves a few of torch's builtin operators on a Go worker, such as
//
//	rpc.rpc_sync("go0", torch.add, args=(x, y))
//
// in a Python program. A worker serves them only with this option:
//
//	agent, err := rpc.Join(ctx, st, "go0", operators.Serve())
//
// Within a distributed autograd context they have gradients. The kernels are small and simple. Since anyone who can reach
// the worker can call them, the memory that they allocate is bounded, see [WithBudget].
package operators

import (
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/rpc/aten"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// DefaultBudget is how many bytes the operators of a worker may use at once unless [WithBudget] says otherwise.
const DefaultBudget = aten.DefaultBudget

// Option configures [Serve].
type Option interface{ apply(*config) }

type config struct{ budget int64 }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// WithBudget bounds the memory of all operators that run at the same time, arguments not counted. A call that would need more
// fails with [cohort.Exhausted] before it allocates.
//
// [cohort.Exhausted]: https://pkg.go.dev/github.com/cohort-dist/cohort#Exhausted
func WithBudget(bytes int64) Option { return option(func(c *config) { c.budget = bytes }) }

// Serve makes a worker serve the operators of [Names]. [rpc.Registry.HandleOperator] adds others, or replaces some.
func Serve(opts ...Option) rpc.Option {
	c := config{budget: DefaultBudget}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	budget := aten.NewBudget(c.budget)
	kernels := map[string]rpc.Kernel{}
	for _, name := range aten.Names() {
		kernels[name] = func(stack []any) (any, error) {
			if v, has, err := sparse(budget, name, stack); has {
				return v, err
			}
			if v, has, err := differentiate(budget, name, stack); has {
				return v, err
			}
			v, _, err := budget.Run(name, stack)
			return v, err
		}
	}
	return rpc.WithOperators(kernels)
}

// Names returns the operators by name and overload, such as "aten::add.Tensor".
func Names() []string { return aten.Names() }

// onSparse are the operators that take sparse tensors. Their results and gradients are not larger than their arguments together.
var onSparse = map[string]func(x, y *autograd.Variable) *autograd.Variable{
	"aten::add":   (*autograd.Variable).Add,
	"aten::sub":   (*autograd.Variable).Sub,
	"aten::mul":   (*autograd.Variable).Mul,
	"aten::neg":   unary((*autograd.Variable).Neg),
	"aten::clone": func(x, _ *autograd.Variable) *autograd.Variable { return x.Scale(1) },
}

// isSparse reports whether an argument is a sparse tensor, or a variable of one.
func isSparse(arg any) bool {
	switch x := arg.(type) {
	case *tensor.Sparse:
		return true
	case *autograd.Variable:
		return x.Value().Sparse != nil
	}
	return false
}

// sparse runs an operator with sparse tensors among its arguments. It reports false when there are none.
func sparse(budget *aten.Budget, name string, stack []any) (any, bool, error) {
	if !slices.ContainsFunc(stack, isSparse) {
		return nil, false, nil
	}
	args, size := make([]*autograd.Variable, len(stack)), 0
	for i, arg := range stack {
		v, ok := arg.(*autograd.Variable)
		switch x := arg.(type) {
		case *tensor.Tensor:
			v, ok = autograd.Constant(x), true
		case *tensor.Sparse:
			v, ok = autograd.SparseConstant(x), true
		}
		if !ok {
			continue
		}
		args[i] = v
		if s := v.Value().Sparse; s != nil {
			size += s.Indices.NBytes() + s.Values.NBytes()
		} else if t := v.Data(); t != nil {
			size += t.NBytes()
		}
	}
	base, _, _ := strings.Cut(name, ".")
	formula := onSparse[base]
	if formula == nil {
		return nil, true, cohort.New("rpc: operator", cohort.NotSupported,
			"this Go worker has no such operator of sparse tensors: send the work to a PyTorch worker")
	}
	// The parts of a result are joined before they are added up.
	release, err := budget.Reserve(4 * int64(size))
	if err != nil {
		return nil, true, err
	}
	defer release()
	out := compute(name, formula, args, stack)
	if err := out.Err(); err != nil || out.RequiresGrad() {
		return out, true, err
	}
	if s := out.Value().Sparse; s != nil {
		return s, true, nil
	}
	return out.Data(), true, nil
}

// compute applies a formula to tensors and numbers.
func compute(name string, formula func(x, y *autograd.Variable) *autograd.Variable, args []*autograd.Variable,
	stack []any,
) *autograd.Variable {
	if len(stack) > 1 && stack[1] == nil { // an option, such as the memory format of a copy
		args = args[:1]
	}
	for i := range args[:min(2, len(args))] {
		if args[i] != nil {
			continue
		}
		if n, ok := toFloat(stack[i]); ok && i == 1 && strings.HasPrefix(name, "aten::mul") {
			return args[0].Scale(n)
		}
		return autograd.Failed(cohort.Newf("rpc: operator", cohort.NotSupported, "argument %d is a %T: want a tensor", i+1, stack[i]))
	}
	if len(args) == 1 {
		return formula(args[0], nil)
	}
	y := args[1]
	if alpha := (&recorded{name: name, stack: stack}).alpha(); alpha != 1 {
		y = y.Scale(alpha)
	}
	return formula(args[0], y)
}
