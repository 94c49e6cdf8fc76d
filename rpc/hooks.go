// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
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

// Profile collects what calls took: how long the caller waited, and what ran where meanwhile. It is safe for concurrent use.
type Profile struct{ rec rpcwire.ProfileRecorder }

// ProfileEvent is something that has taken time. A call is named as by PyTorch's profiler, "rpc_sync#function(caller -> callee)",
// and what its callee reports is "<the call>#remote_op: <what ran>".
type ProfileEvent struct {
	Name     string
	Worker   cohort.Rank // the worker that it ran at
	Start    time.Time   // by that worker's clock
	Duration time.Duration
}

// WithProfile returns a context whose calls are profiled. Workers that they reach, PyTorch's too, profile the functions that
// they run, and the calls that Go handlers make with their context are part of the profile.
//
// It corresponds to torch.autograd.profiler_legacy.profile. PyTorch's newer profiler sees the caller's side only. A Go worker
// serves profiled calls of PyTorch as well: its handlers appear in the profile there.
func WithProfile(ctx context.Context) (context.Context, *Profile) {
	p := new(Profile)
	return rpcwire.WithProfile(ctx, &p.rec), p
}

// RecordFunction makes what happens until end is called an event of the profile in ctx. In a handler that is the profile of its
// caller. Without a profile it does nothing. It corresponds to torch.autograd.profiler.record_function.
//
//	defer rpc.RecordFunction(ctx, "load rows")()
func RecordFunction(ctx context.Context, name string) (end func()) {
	rec := rpcwire.ProfileFrom(ctx)
	if rec == nil {
		return func() {}
	}
	start, worker := time.Now(), cohort.NoRank
	if a := AgentFrom(ctx); a != nil {
		worker = a.ID()
	}
	return func() {
		rec.Add(rpcwire.Span{Name: name, Worker: worker, Start: start, Took: time.Since(start)})
	}
}

// Events returns what has ended so far, by start.
func (p *Profile) Events() []ProfileEvent {
	spans, _ := p.rec.Spans()
	events := make([]ProfileEvent, len(spans))
	for i, s := range spans {
		events[i] = ProfileEvent{Name: s.Name, Worker: s.Worker, Start: s.Start, Duration: s.Took}
	}
	slices.SortStableFunc(events, func(a, b ProfileEvent) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(b.Duration, a.Duration))
	})
	return events
}

// String is a table of the events.
func (p *Profile) String() string {
	var b strings.Builder
	for _, e := range p.Events() {
		fmt.Fprintf(&b, "%12v  worker %d  %s\n", e.Duration, e.Worker, e.Name)
	}
	if _, dropped := p.rec.Spans(); dropped > 0 {
		fmt.Fprintf(&b, "%d more events were not kept\n", dropped)
	}
	return b.String()
}
