// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pycall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Registry holds the functions, operators and classes that a worker serves. It may be shared by agents and extended
// while they run. The zero value is an empty registry.
type Registry struct {
	mu      sync.RWMutex
	funcs   map[string]*handler
	kernels map[string]Kernel
	classes map[reflect.Type]*class
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return new(Registry) }

// put adds an entry to one of a registry's maps.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// Request is a call as it arrived, for handlers that take it whole.
type Request struct {
	// From is the caller.
	From WorkerInfo
	// Func is the name that was called.
	Func   string
	Args   []any
	Kwargs *py.Dict

	conn *rpcsession.Conn // on which it came
}

// handler runs a function with decoded arguments.
type handler struct {
	name   string
	raw    func(ctx context.Context, r *Request) (any, error) // takes the call as it arrived
	fn     *pycall.Func                                       // otherwise
	params []string                                           // names of plain parameters
	borrow bool                                               // keeps nothing of its arguments
	doc    string
}

// Handle serves fn under a qualified name, "module.function": what Python callers write as a stub function of that
// module. It corresponds to a function that is importable at a PyTorch worker.
//
// fn is one of
//
//	func(ctx, Args) (Result, error)     Args is a struct: its fields are the positional arguments in order, and the keyword
//	                                    arguments by tag or snake-case name; a field that was not given keeps its zero value.
//	                                    One dict, or Go struct, whose names are all among the fields is the whole struct
//	func(ctx, a A, b B, ...) (R, error) plain parameters; [Params] gives their names for keyword arguments
//	func(ctx, *Request) (any, error)    the call as it arrived
//
// ctx and error may be left out, and so may the result. A function may keep what it is given, unless it has [Borrowed] it.
// A handler that returns a *[cohort.Future] is answered when the future completes, without holding a slot
// (rpc.functions.async_execution).
func (r *Registry) Handle(name string, fn any, opts ...HandleOption) error {
	if !strings.ContainsAny(name, ".:") {
		return cohort.Newf("rpc: handle", cohort.InvalidArgument, "%q is not a qualified name: want module.function", name)
	}
	h, err := newHandler(name, reflect.ValueOf(fn), opts)
	if err != nil {
		return err
	}
	name = py.Func(name).String()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.funcs[name]; taken {
		return cohort.Newf("rpc: handle", cohort.AlreadyExists, "%q has a handler", name)
	}
	put(&r.funcs, name, h)
	return nil
}

// MustHandle is Handle for handlers that are constants of the program: it panics on an error. It returns r.
func (r *Registry) MustHandle(name string, fn any, opts ...HandleOption) *Registry {
	if err := r.Handle(name, fn, opts...); err != nil {
		panic(err)
	}
	return r
}

// Names returns the names of all handlers in order.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := slices.AppendSeq([]string{}, maps.Keys(r.funcs)) // a list also if there are none
	slices.Sort(names)
	return names
}

func (r *Registry) lookup(name string) *handler {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.funcs[name]
}

func badHandler(name, format string, args ...any) error {
	e := cohort.Newf("rpc: handle", cohort.InvalidArgument, format, args...)
	e.Key = name
	return e
}

// badArguments is the error of a call whose arguments do not fit; it keeps the code of the cause.
func badArguments(name string, err error) error {
	code := cohort.CodeOf(err)
	if code == cohort.Unknown {
		code = cohort.InvalidArgument
	}
	e := cohort.New("rpc: arguments", code, pycall.Detail(err))
	e.Key = name
	return &RemoteError{Kind: "TypeError", Message: e.Error(), Code: e.Code}
}

func newHandler(name string, fn reflect.Value, opts []HandleOption) (*handler, error) {
	h := &handler{name: name}
	for _, o := range opts {
		if o != nil {
			o.apply(h)
		}
	}
	if fn.IsValid() && fn.Kind() == reflect.Func && !fn.IsNil() {
		if raw, ok := reflect.TypeAssert[func(context.Context, *Request) (any, error)](fn); ok {
			h.raw = raw
			return h, nil
		}
	}
	var err error
	h.fn, err = pycall.New(fn, pycall.Shape{
		Params: h.params, Whole: reflect.TypeFor[*Request](), Single: []reflect.Type{reflect.TypeFor[WorkerInfo]()},
		References: assignReference,
	})
	if err != nil {
		return nil, badHandler(name, "%s", pycall.Detail(err))
	}
	return h, nil
}

// call runs the handler. done is called exactly once, for an async handler possibly later. It reports false when the
// arguments did not fit and the function was not run.
func (h *handler) call(ctx context.Context, req *Request, done func(any, error)) (ran bool) {
	if h.raw != nil {
		v, err := h.raw(ctx, req)
		pycall.Finish(v, err, done)
		return true
	}
	if h.fn.Plain(ctx, req.Args, req.Kwargs, done) {
		return true
	}
	in, err := h.fn.Bind(ctx, req.Args, req.Kwargs, req)
	if err != nil {
		done(nil, badArguments(h.name, err))
		return false
	}
	h.fn.Run(in, done)
	return true
}
