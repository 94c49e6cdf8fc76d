// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/pygo"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Registry holds the functions, operators and classes that a worker serves. It may be shared by agents and extended
// while they run.
type Registry struct {
	mu      sync.RWMutex
	funcs   map[string]*handler
	kernels map[string]Kernel
	classes map[reflect.Type]*class
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{funcs: map[string]*handler{}, kernels: map[string]Kernel{}, classes: map[reflect.Type]*class{}}
}

// Request is a call as it arrived, for handlers that take it whole.
type Request struct {
	// From is the caller.
	From WorkerInfo
	// Func is the name that was called.
	Func   string
	Args   []any
	Kwargs *py.Dict
}

// handler runs a function with decoded arguments.
type handler struct {
	name   string
	in     []reflect.Type // without context
	fn     reflect.Value
	ctx    bool
	raw    func(ctx context.Context, r *Request) (any, error)
	plain  func(ctx context.Context, v any) (any, error) // of one untyped argument: nothing to convert
	args   reflect.Type                                  // of a single struct of arguments
	params []string                                      // names of plain parameters
	whole  bool                                          // takes the *Request
	result int                                           // index of the result, -1 for none
	err    int                                           // index of the error, -1 for none
	async  bool
	borrow bool // keeps nothing of its arguments
	doc    string
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

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
// A handler that returns a *[dist.Future] is answered when the future completes, without holding a place
// (rpc.functions.async_execution).
func (r *Registry) Handle(name string, fn any, opts ...HandleOption) error {
	if !strings.ContainsAny(name, ".:") {
		return dist.Newf("rpc: handle", dist.InvalidArgument, "%q is not a qualified name: want module.function", name)
	}
	h, err := newHandler(name, reflect.ValueOf(fn), opts)
	if err != nil {
		return err
	}
	name = py.Func(name).String()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.funcs[name]; taken {
		return dist.Newf("rpc: handle", dist.AlreadyExists, "%q has a handler", name)
	}
	r.funcs[name] = h
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
	return sortedNames(r.funcs)
}

func (r *Registry) lookup(name string) *handler {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.funcs[name]
}

func badHandler(name, format string, args ...any) error {
	e := dist.Newf("rpc: handle", dist.InvalidArgument, format, args...)
	e.Key = name
	return e
}

func newHandler(name string, fn reflect.Value, opts []HandleOption) (*handler, error) {
	if !fn.IsValid() || fn.Kind() != reflect.Func || fn.IsNil() {
		return nil, badHandler(name, "not a function")
	}
	if raw, ok := reflect.TypeAssert[func(context.Context, *Request) (any, error)](fn); ok {
		h := &handler{name: name, raw: raw}
		for _, o := range opts {
			o.apply(h)
		}
		return h, nil
	}
	t := fn.Type()
	h := &handler{name: name, fn: fn, result: -1, err: -1, plain: plainFunction(fn)}
	for _, o := range opts {
		o.apply(h)
	}
	params := h.params
	for i := range t.NumIn() {
		if i == 0 && t.In(0) == contextType {
			h.ctx = true
			continue
		}
		h.in = append(h.in, t.In(i))
	}
	if len(params) > 0 && len(params) != len(h.in) {
		return nil, badHandler(name, "%d parameter names for %d parameters", len(params), len(h.in))
	}
	for i, in := range h.in {
		if k := in.Kind(); k == reflect.Chan || k == reflect.Func || k == reflect.UnsafePointer {
			return nil, badHandler(name, "parameter %d is a %v, which no value fits", i+1, in)
		}
	}
	switch {
	case len(h.in) != 1:
	case h.in[0] == reflect.TypeFor[*Request]():
		h.whole = true
	case len(params) == 0 && isArgsStruct(h.in[0]):
		h.args = h.in[0]
	}
	switch n := t.NumOut(); {
	case n > 2:
		return nil, badHandler(name, "%d results: want at most a result and an error", n)
	case n == 2 && t.Out(1) != errorType:
		return nil, badHandler(name, "the second result must be an error, not %v", t.Out(1))
	case n >= 1 && t.Out(n-1) == errorType:
		h.err = n - 1
		h.result = n - 2
	default:
		h.result = n - 1
	}
	if h.result >= 0 {
		_, h.async = futureResult(t.Out(h.result))
	}
	return h, nil
}

// plainFunction returns a function of one untyped argument in its widest form, or nil.
func plainFunction(fn reflect.Value) func(context.Context, any) (any, error) {
	switch f := fn.Interface().(type) {
	case func(any) any:
		return func(_ context.Context, v any) (any, error) { return f(v), nil }
	case func(any) (any, error):
		return func(_ context.Context, v any) (any, error) { return f(v) }
	case func(context.Context, any) (any, error):
		return f
	}
	return nil
}

// isArgsStruct tells a struct of arguments from a single argument that is a struct by itself.
func isArgsStruct(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[py.Dict]() && t != reflect.TypeFor[py.Global]() && t != reflect.TypeFor[WorkerInfo]()
}

// futureResult returns the OnDone method of a *dist.Future.
func futureResult(t reflect.Type) (reflect.Method, bool) {
	if t.Kind() != reflect.Pointer || t.Elem().PkgPath() != reflect.TypeFor[dist.Code]().PkgPath() || !strings.HasPrefix(t.Elem().Name(), "Future[") {
		return reflect.Method{}, false
	}
	return t.MethodByName("OnDone")
}

// badArguments is the error of a call whose arguments do not fit; it keeps the code of the cause.
func badArguments(name string, err error) error {
	code := dist.CodeOf(err)
	if code == dist.Unknown {
		code = dist.InvalidArgument
	}
	e := dist.New("rpc: arguments", code, detailOf(err))
	e.Key = name
	return &RemoteError{Kind: "TypeError", Message: e.Error(), Code: e.Code}
}

// argumentError says which argument does not fit, keeping the code of the cause.
func argumentError(err error, format string, args ...any) error {
	return dist.New("rpc: arguments", dist.CodeOf(err), fmt.Sprintf(format, args...)+": "+detailOf(err))
}

// detailOf returns what an error says in plain words, for an error that says the rest itself.
func detailOf(err error) string {
	if e, ok := err.(*dist.Error); ok && e.Err == nil && e.Detail != "" { //nolint:errorlint // only the outermost
		return e.Detail
	}
	return err.Error()
}

// call runs the handler. done is called exactly once, for an async handler possibly later. It reports false when the
// arguments did not fit and the function was not run.
func (h *handler) call(ctx context.Context, req *Request, done func(any, error)) (ran bool) {
	if h.raw != nil {
		v, err := h.raw(ctx, req)
		finish(v, err, done)
		return true
	}
	if h.plain != nil && len(req.Args) == 1 && req.Kwargs.Len() == 0 {
		v, err := h.plain(ctx, req.Args[0])
		finish(v, err, done)
		return true
	}
	in := make([]reflect.Value, 0, len(h.in)+1)
	if h.ctx {
		in = append(in, reflect.ValueOf(ctx))
	}
	switch {
	case h.whole:
		in = append(in, reflect.ValueOf(req))
	case h.args != nil:
		p := reflect.New(h.args)
		if err := h.assignStruct(p.Interface(), req); err != nil {
			done(nil, badArguments(h.name, err))
			return false
		}
		in = append(in, p.Elem())
	default:
		var err error
		if in, err = h.bind(in, req); err != nil {
			done(nil, badArguments(h.name, err))
			return false
		}
	}
	var out []reflect.Value
	if h.fn.Type().IsVariadic() {
		out = h.fn.CallSlice(in)
	} else {
		out = h.fn.Call(in)
	}
	if h.err >= 0 && !out[h.err].IsNil() {
		done(nil, out[h.err].Interface().(error)) //nolint:errcheck,forcetypeassert // checked by newHandler
		return true
	}
	if h.result < 0 {
		done(nil, nil)
		return true
	}
	finish(out[h.result].Interface(), nil, done)
	return true
}

// assignStruct fills the single struct that a function takes: by fields, or from one dict that is the struct as a whole.
func (h *handler) assignStruct(dst any, req *Request) error {
	if len(req.Args) == 1 && req.Kwargs.Len() == 0 {
		if d, ok := req.Args[0].(*py.Dict); ok && pygo.Describes(d, h.args) {
			return pygo.Assign(dst, d)
		}
	}
	return pygo.AssignArgs(dst, req.Args, req.Kwargs)
}

// finish completes a call, when a future completes if that is the result.
func finish(v any, err error, done func(any, error)) {
	if err != nil {
		done(nil, err)
		return
	}
	r := reflect.ValueOf(v)
	if r.IsValid() && r.Kind() == reflect.Pointer {
		if m, ok := futureResult(r.Type()); ok {
			if r.IsNil() {
				done(nil, dist.New("rpc: handler", dist.Internal, "a nil future"))
				return
			}
			callback := reflect.MakeFunc(m.Type.In(1), func(args []reflect.Value) []reflect.Value {
				err, _ := reflect.TypeAssert[error](args[1])
				done(args[0].Interface(), err)
				return nil
			})
			r.MethodByName("OnDone").Call([]reflect.Value{callback})
			return
		}
	}
	done(v, nil)
}

// bind converts plain parameters.
func (h *handler) bind(in []reflect.Value, req *Request) ([]reflect.Value, error) {
	variadic := h.fn.Type().IsVariadic()
	fixed := len(h.in)
	if variadic {
		fixed--
	}
	if len(req.Args) > fixed && !variadic {
		return nil, dist.Newf("rpc: arguments", dist.InvalidArgument, "%d positional arguments, the function takes %d", len(req.Args), fixed)
	}
	values := make([]reflect.Value, len(h.in))
	given := make([]bool, len(h.in))
	for i := range values {
		values[i] = reflect.New(h.in[i]).Elem()
	}
	for i, arg := range req.Args[:min(fixed, len(req.Args))] {
		if err := pygo.Assign(values[i].Addr().Interface(), arg); err != nil {
			return nil, argumentError(err, "argument %s", h.paramName(i))
		}
		given[i] = true
	}
	if variadic {
		rest := []any{}
		if len(req.Args) > fixed {
			rest = req.Args[fixed:]
		}
		if err := pygo.Assign(values[fixed].Addr().Interface(), rest); err != nil {
			return nil, argumentError(err, "arguments from %d on", fixed+1)
		}
		given[fixed] = true
	}
	if req.Kwargs != nil {
		for _, p := range req.Kwargs.Pairs {
			name, _ := p.Key.(string)
			i := slices.Index(h.params, name)
			switch {
			case i < 0:
				return nil, dist.Newf("rpc: arguments", dist.InvalidArgument, "unexpected keyword argument %q; the function takes %s", name, h.takes())
			case given[i]:
				return nil, dist.Newf("rpc: arguments", dist.InvalidArgument, "argument %q is given twice", name)
			}
			if err := pygo.Assign(values[i].Addr().Interface(), p.Value); err != nil {
				return nil, argumentError(err, "argument %q", name)
			}
			given[i] = true
		}
	}
	if i := slices.Index(given, false); i >= 0 {
		return nil, dist.Newf("rpc: arguments", dist.InvalidArgument, "argument %s is missing; the function takes %s", h.paramName(i), h.takes())
	}
	return append(in, values...), nil
}

// paramName names a parameter in an error: by its name where that is known, else by its number.
func (h *handler) paramName(i int) string {
	if i < len(h.params) {
		return strconv.Quote(h.params[i])
	}
	return strconv.Itoa(i + 1)
}

func (h *handler) takes() string {
	if len(h.params) > 0 {
		return strings.Join(h.params, ", ")
	}
	types := make([]string, len(h.in))
	for i, t := range h.in {
		types[i] = t.String()
	}
	return "(" + strings.Join(types, ", ") + ") by position"
}
