// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pycall calls Go functions with Python's arguments: positional ones and those by keyword, as plain parameters or as
// the fields of one struct. It describes what a function takes and returns, for those who describe it to callers.
package pycall

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Shape is what is said about a function beside its type.
type Shape struct {
	// Params names the parameters, context left out. Empty: they have no names.
	Params []string
	// Whole is the type of a single parameter that stands for the whole call.
	Whole reflect.Type
	// Single are struct types that are one argument each, not a struct of arguments.
	Single []reflect.Type
	// References fills parameters that are references; nil where there are none.
	References pyconv.AssignReference
}

// Func is a function that can be called with Python's arguments.
type Func struct {
	Shape
	in     []reflect.Type // without context
	fn     reflect.Value
	ctx    bool
	plain  func(ctx context.Context, v any) (any, error) // of one untyped argument: nothing to convert
	args   reflect.Type                                  // of a single struct of arguments
	whole  bool                                          // takes the whole call
	result int                                           // index of the result, -1 for none
	err    int                                           // index of the error, -1 for none
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

func bad(format string, args ...any) error {
	return cohort.Newf("rpc: handle", cohort.InvalidArgument, format, args...)
}

// New looks at a function. One that is not of a form that can be called is an error.
func New(fn reflect.Value, shape Shape) (*Func, error) {
	if !fn.IsValid() || fn.Kind() != reflect.Func || fn.IsNil() {
		return nil, bad("not a function")
	}
	t := fn.Type()
	f := &Func{Shape: shape, fn: fn, result: -1, err: -1, plain: plainFunction(fn)}
	for i := range t.NumIn() {
		if i == 0 && t.In(0) == contextType {
			f.ctx = true
			continue
		}
		f.in = append(f.in, t.In(i))
	}
	if len(f.Params) > 0 && len(f.Params) != len(f.in) {
		return nil, bad("%d parameter names for %d parameters", len(f.Params), len(f.in))
	}
	for i, in := range f.in {
		if k := in.Kind(); k == reflect.Chan || k == reflect.Func || k == reflect.UnsafePointer {
			return nil, bad("parameter %d is a %v, which no value fits", i+1, in)
		}
	}
	switch {
	case len(f.in) != 1:
	case f.in[0] == f.Whole:
		f.whole = true
	case len(f.Params) == 0 && f.isArgsStruct(f.in[0]):
		f.args = f.in[0]
	}
	switch n := t.NumOut(); {
	case n > 2:
		return nil, bad("%d results: want at most a result and an error", n)
	case n == 2 && t.Out(1) != errorType:
		return nil, bad("the second result must be an error, not %v", t.Out(1))
	case n >= 1 && t.Out(n-1) == errorType:
		f.err = n - 1
		f.result = n - 2
	default:
		f.result = n - 1
	}
	return f, nil
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
func (f *Func) isArgsStruct(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[py.Dict]() && t != reflect.TypeFor[py.Global]() &&
		!slices.Contains(f.Single, t)
}

// futureResult returns the OnDone method of a *cohort.Future.
func futureResult(t reflect.Type) (reflect.Method, bool) {
	if t.Kind() != reflect.Pointer || t.Elem().PkgPath() != reflect.TypeFor[cohort.Code]().PkgPath() ||
		!strings.HasPrefix(t.Elem().Name(), "Future[") {
		return reflect.Method{}, false
	}
	return t.MethodByName("OnDone")
}

// Bound is the same function as a method of a value.
func (f *Func) Bound(value reflect.Value, method string) *Func {
	b := *f
	b.fn = value.MethodByName(method)
	b.plain = plainFunction(b.fn)
	return &b
}

// Param is a parameter as callers know it.
type Param struct {
	Name     string
	Type     reflect.Type
	Optional bool // it may be left out
	Rest     bool // all further positional arguments, of Type each
}

// Parameters returns what a function takes. It reports false for one that takes any arguments, or whose arguments cannot be
// told: calls of such a one are refused with the reason.
func (f *Func) Parameters() ([]Param, bool) {
	if f.whole {
		return nil, false
	}
	all := []Param{}
	if f.args != nil {
		fields, err := pyconv.Fields(f.args)
		if err != nil {
			return nil, false
		}
		for _, x := range fields {
			all = append(all, Param{Name: x.Name, Type: x.Type, Optional: !x.Required})
		}
		return all, true
	}
	for i, t := range f.in {
		x := Param{Name: "arg" + strconv.Itoa(i), Type: t}
		if i < len(f.Params) {
			x.Name = f.Params[i]
		}
		if f.fn.Type().IsVariadic() && i == len(f.in)-1 {
			x.Rest, x.Type = true, t.Elem()
		}
		all = append(all, x)
	}
	return all, true
}

// Result returns the type of the result, of a future that of its value, or nil for a function without one.
func (f *Func) Result() reflect.Type {
	if f.result < 0 {
		return nil
	}
	t := f.fn.Type().Out(f.result)
	if m, ok := futureResult(t); ok {
		return m.Type.In(1).In(0) // OnDone takes a function of the value
	}
	return t
}
