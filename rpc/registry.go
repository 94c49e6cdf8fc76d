// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pycall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
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

// Kernel computes a builtin operator: the arguments are the operator's whole stack, defaults filled in.
type Kernel func(stack []any) (any, error)

// HandleOperator serves a builtin operator, by its name and overload: "aten::add.Tensor". It replaces that of
// [WithOperators]. A second kernel for one name is [cohort.AlreadyExists].
func (r *Registry) HandleOperator(name string, k Kernel) error {
	if k == nil {
		return cohort.Newf("rpc: handle", cohort.InvalidArgument, "the kernel of %q is nil", name)
	}
	if !strings.Contains(name, "::") {
		return cohort.Newf("rpc: handle", cohort.InvalidArgument,
			"%q is not the name of an operator: want one such as aten::add.Tensor", name)
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

const operatorOp, noKernel = "rpc: operator", "this Go worker has no kernel for this operator: start it with operators.Serve() of " +
	"package rpc/operators, serve it with Registry.HandleOperator, or send the work to a PyTorch worker"

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

// String returns how many functions, classes and operators are served.
func (r *Registry) String() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return fmt.Sprintf("registry of %d functions, %d classes and %d operators", len(r.funcs), len(r.classes), len(r.kernels))
}
