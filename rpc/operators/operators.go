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
	"github.com/cohort-dist/cohort/internal/rpc/aten"
	"github.com/cohort-dist/cohort/rpc"
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
