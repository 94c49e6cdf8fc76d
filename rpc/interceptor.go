// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
)

// CallInfo describes a call to an [Interceptor].
type CallInfo struct {
	// Peer is the worker at the other side: the one that is called, or the one that calls.
	Peer string
	// Func is the name of the handler, the same on both sides: of a method of a reference the method, of an operator torch.ops.aten.add and
	// the like, of a TorchScript function its name without "__torch__.".
	Func string
	// Object is the id of the object whose method is called, "" for a function.
	Object string
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

// calledMethod returns the method that a call of PyTorch's proxy function is for, and the id of the object.
func calledMethod(fn string, args []any) (method, object string, ok bool) {
	if fn != localInvoke && fn != localInvokeAsync || len(args) < 2 {
		return "", "", false
	}
	core := coreOf(args[0])
	method, ok = args[1].(string)
	if core == nil || !ok {
		return "", "", false
	}
	return method, core.Text(), true
}

// shown is the name of a call in errors, events and interceptors. It is the same on both sides, the name of the handler, since that is
// all that a callee knows: an operator without its schema, a TorchScript function without the prefix that makes it one.
func shown(fn string, args []any) string { return parseTarget(fn).shown(fn, args) }

func (t target) shown(fn string, args []any) string {
	if method, _, ok := calledMethod(fn, args); ok {
		return method
	}
	if t.schema != "" {
		return t.script
	}
	return strings.TrimPrefix(fn, scriptPrefix)
}

// callInfo describes a call to interceptors.
func callInfo(peer, fn string, args []any, remote bool) CallInfo {
	c := CallInfo{Peer: peer, Func: shown(fn, args), Remote: remote}
	_, c.Object, _ = calledMethod(fn, args)
	return c
}

// intercept runs the interceptors and returns the context of the call and the function that reports its end.
func (c *config) intercept(ctx context.Context, list []Interceptor, call CallInfo) (context.Context, func(error), error) {
	var ends []func(error)
	end := func(err error) {
		for _, e := range slices.Backward(ends) {
			safecall.Call(c.panics, func() { e(err) }) // it may run in the goroutine that reads a connection
		}
	}
	for _, i := range list {
		next, err := safecall.Get(c.panics, "rpc: interceptor", func() (next context.Context, err error) {
			next, e, err := i(ctx, call)
			if e != nil && err == nil {
				ends = append(ends, e)
			}
			return next, err
		})
		if err != nil {
			end(err)
			return ctx, nil, err
		}
		if next != nil {
			ctx = next //nolint:fatcontext // that is what the list is for
		}
	}
	return ctx, end, nil
}
