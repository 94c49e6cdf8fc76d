// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

// Kernel computes a builtin operator: the arguments are the operator's whole stack, defaults filled in.
type Kernel func(stack []any) (any, error)

// HandleOperator serves a builtin operator, by its name and overload: "aten::add.Tensor". It replaces that of
// [WithOperators]. A second kernel for one name is [cohort.AlreadyExists].
func (r *Registry) HandleOperator(name string, k Kernel) error {
	if k == nil {
		return cohort.Newf("rpc: handle", cohort.InvalidArgument, "the kernel of %q is nil", name)
	}
	if !strings.Contains(name, "::") {
		return cohort.Newf("rpc: handle", cohort.InvalidArgument, "%q is not the name of an operator: want one such as aten::add.Tensor", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kernels[name] != nil {
		return cohort.Newf("rpc: handle", cohort.AlreadyExists, "%q has a kernel", name)
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
	c.registry.mu.RLock()
	k := c.registry.kernels[name]
	c.registry.mu.RUnlock()
	if k == nil {
		k = c.operators[name]
	}
	if k == nil {
		k = func([]any) (any, error) { return nil, cohort.New(operatorOp, cohort.NotSupported, noKernel) }
	}
	v, err := k(stack)
	if err == nil {
		return v, nil
	}
	e, ours := err.(*cohort.Error) //nolint:errorlint // of a kernel itself
	if !ours || e.Op != operatorOp {
		e = cohort.Wrap(operatorOp, cohort.InvalidArgument, err)
	}
	e.Key = name
	return nil, e
}
