// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
)

// CallInfo is what an [Interceptor] is told of a call.
type CallInfo struct {
	// Peer is the worker at the other side: the one that is called, or the one that calls.
	Peer string
	// Func is the function, as the caller names it.
	Func string
	// Remote says that the result stays at the callee: see [Remote].
	Remote bool
}

// Interceptor takes part in every call. It may return another context for the rest of the call, to give it a deadline, a
// value or a trace (observe.WithTrace), and a function that is called once with the outcome; nil of either leaves things as
// they are. An error refuses the call.
type Interceptor func(ctx context.Context, call CallInfo) (context.Context, func(error), error)

// WithCallInterceptors adds interceptors around the calls that this worker makes: [Call], [Async], [Remote] and methods of
// references. The outcome of a Remote is that of its sending. The first one is the outermost.
func WithCallInterceptors(list ...Interceptor) Option {
	return option(func(c *config) error { c.calling = append(c.calling, list...); return nil })
}

// WithServeInterceptors adds interceptors around the handlers that this worker runs. The context they return is the
// handler's. An outcome is what the handler returned, of a future what it completed with.
func WithServeInterceptors(list ...Interceptor) Option {
	return option(func(c *config) error { c.serving = append(c.serving, list...); return nil })
}

// intercept runs the interceptors and returns the context of the call and how to tell its end.
func intercept(ctx context.Context, list []Interceptor, call CallInfo) (context.Context, func(error), error) {
	var ends []func(error)
	end := func(err error) {
		for _, e := range slices.Backward(ends) {
			e(err)
		}
	}
	for _, i := range list {
		next, e, err := i(ctx, call)
		if err != nil {
			end(err)
			return ctx, nil, err
		}
		if next != nil {
			ctx = next //nolint:fatcontext // that is what the list is for
		}
		if e != nil {
			ends = append(ends, e)
		}
	}
	return ctx, end, nil
}
