// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// Kernel computes a builtin operator: the arguments are the operator's whole stack, defaults filled in.
type Kernel func(stack []any) (any, error)

// HandleOperator serves a builtin operator, by its name and overload: "aten::add.Tensor". It replaces the builtin kernel.
func (r *Registry) HandleOperator(name string, k Kernel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kernels[name] = k
}

const operatorOp = "rpc: operator"

// runKernel runs a builtin operator.
func (r *Registry) runKernel(s *rpcwire.ScriptUDF) (any, error) {
	name := s.Operator()
	r.mu.RLock()
	k := r.kernels[name]
	r.mu.RUnlock()
	if k == nil {
		k = builtinKernels[name]
	}
	if k == nil {
		e := dist.New(operatorOp, dist.NotSupported, "a Go worker has no kernel for this operator: send the work to a PyTorch worker or serve it with Registry.HandleOperator")
		e.Key = name
		return nil, e
	}
	v, err := k(s.Stack)
	if err != nil {
		e, ours := err.(*dist.Error) //nolint:errorlint // of badOperand
		if !ours || e.Op != operatorOp {
			e = dist.Wrap(operatorOp, dist.InvalidArgument, err)
		}
		e.Key = name
		return nil, e
	}
	return v, nil
}

// Kernels returns the names of the builtin operators that every Go worker serves.
func Kernels() []string { return sortedNames(builtinKernels) }

var builtinKernels = map[string]Kernel{}
