// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import "context"

// HandleOption changes how a function is served; see [Registry.Handle].
type HandleOption interface{ apply(h *handler) }

type handleOption func(h *handler)

func (o handleOption) apply(h *handler) { o(h) }

// Params names the parameters of a function, context left out, so that callers can give them by keyword.
func Params(names ...string) HandleOption {
	return handleOption(func(h *handler) { h.params = names })
}

// Doc describes a function to its callers. `cohort rpc stubs` makes it the docstring of the Python stub.
func Doc(text string) HandleOption { return handleOption(func(h *handler) { h.doc = text }) }

// Borrowed says that a function does not use the tensors it is given, or their memory, after its result has been sent.
// They, or views of them, may be part of the result. Their memory is then reused for the next tensors at once, without
// waiting for the garbage collector, which matters where large tensors arrive quickly.
func Borrowed() HandleOption { return handleOption(func(h *handler) { h.borrow = true }) }

// Handle is [Registry.Handle] for a function of one argument, whose form the compiler checks. A is what one caller sends: a
// struct of arguments, or a single value.
func Handle[A, R any](r *Registry, name string, fn func(ctx context.Context, arg A) (R, error), opts ...HandleOption) error {
	return r.Handle(name, fn, opts...)
}
