// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// Kernel computes a builtin operator: the arguments are the operator's whole stack, defaults filled in.
type Kernel func(stack []any) (any, error)

// HandleOperator serves a builtin operator, by its name and overload: "aten::add.Tensor". It takes the place of that of
// [WithOperators]. A second kernel for one name is [dist.AlreadyExists].
func (r *Registry) HandleOperator(name string, k Kernel) error {
	if k == nil {
		return dist.Newf("rpc: handle", dist.InvalidArgument, "the kernel of %q is nil", name)
	}
	if !strings.Contains(name, "::") {
		return dist.Newf("rpc: handle", dist.InvalidArgument, "%q is not the name of an operator: want one such as aten::add.Tensor", name)
	}
	r.mu.Lock() // no point: handlers are added before there are workers
	defer r.mu.Unlock()
	if r.kernels[name] != nil {
		return dist.Newf("rpc: handle", dist.AlreadyExists, "%q has a kernel", name)
	}
	put(&r.kernels, name, k)
	return nil
}

// WithOperators serves builtin operators by their names and overloads. Package rpc/operators has some. The default is none.
func WithOperators(kernels map[string]Kernel) Option {
	return option(func(c *config) error { c.operators = kernels; return nil })
}

const operatorOp, noKernel = "rpc: operator", "this Go worker has no kernel for this operator: start it with operators.Serve() of package rpc/operators, serve it with Registry.HandleOperator, or send the work to a PyTorch worker"

// runKernel runs a builtin operator.
func (c *config) runKernel(schema string, stack []any) (any, error) {
	name := rpcwire.ScriptUDF{Schema: schema}.Operator()
	c.registry.mu.RLock() // no point: it only looks
	k := c.registry.kernels[name]
	c.registry.mu.RUnlock()
	if k == nil {
		k = c.operators[name]
	}
	if k == nil {
		k = func([]any) (any, error) { return nil, dist.New(operatorOp, dist.NotSupported, noKernel) }
	}
	v, err := k(stack)
	if err == nil {
		return v, nil
	}
	e, ours := err.(*dist.Error) //nolint:errorlint // of a kernel itself
	if !ours || e.Op != operatorOp {
		e = dist.Wrap(operatorOp, dist.InvalidArgument, err)
	}
	e.Key = name
	return nil, e
}
