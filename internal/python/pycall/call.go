// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pycall

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Plain runs a function of one untyped argument, for which nothing is converted. It reports false when this is none, or the
// arguments are of another form.
func (f *Func) Plain(ctx context.Context, args []any, kwargs *py.Dict, done func(any, error)) bool {
	if f.plain == nil || len(args) != 1 || kwargs.Len() != 0 {
		return false
	}
	v, err := f.plain(ctx, args[0])
	Finish(v, err, done)
	return true
}

// Bind converts the arguments of a call. whole stands for the call in a function that takes it as it is.
func (f *Func) Bind(ctx context.Context, args []any, kwargs *py.Dict, whole any) ([]reflect.Value, error) {
	in := make([]reflect.Value, 0, len(f.in)+1)
	if f.ctx {
		in = append(in, reflect.ValueOf(ctx))
	}
	switch {
	case f.whole:
		return append(in, reflect.ValueOf(whole)), nil
	case f.args != nil:
		p := reflect.New(f.args)
		if err := f.assignStruct(p.Interface(), args, kwargs); err != nil {
			return nil, err
		}
		return append(in, p.Elem()), nil
	default:
		return f.bind(in, args, kwargs)
	}
}

// Run calls the function with what [Func.Bind] has made. done is called exactly once, for a function that returns a future
// possibly later.
func (f *Func) Run(in []reflect.Value, done func(any, error)) {
	var out []reflect.Value
	if f.fn.Type().IsVariadic() {
		out = f.fn.CallSlice(in)
	} else {
		out = f.fn.Call(in)
	}
	switch {
	case f.err >= 0 && !out[f.err].IsNil():
		done(nil, out[f.err].Interface().(error)) //nolint:errcheck,forcetypeassert // checked by New
	case f.result < 0:
		done(nil, nil)
	default:
		Finish(out[f.result].Interface(), nil, done)
	}
}

// assignStruct fills the single struct that a function takes: by fields, or from one dict that is the struct as a whole.
func (f *Func) assignStruct(dst any, args []any, kwargs *py.Dict) error {
	if len(args) == 1 && kwargs.Len() == 0 {
		if d, ok := args[0].(*py.Dict); ok && pyconv.Describes(d, f.args) {
			return pyconv.Assign(dst, d, f.References)
		}
	}
	return pyconv.AssignArgs(dst, args, kwargs, f.References)
}

// Finish completes a call, when a future completes if that is the result.
func Finish(v any, err error, done func(any, error)) {
	if err != nil {
		done(nil, err)
		return
	}
	r := reflect.ValueOf(v)
	if r.IsValid() && r.Kind() == reflect.Pointer {
		if m, ok := futureResult(r.Type()); ok {
			if r.IsNil() {
				done(nil, cohort.New("rpc: handler", cohort.Internal, "a nil future"))
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
func (f *Func) bind(in []reflect.Value, args []any, kwargs *py.Dict) ([]reflect.Value, error) {
	variadic := f.fn.Type().IsVariadic()
	fixed := len(f.in)
	if variadic {
		fixed--
	}
	if len(args) > fixed && !variadic {
		return nil, cohort.Newf("rpc: arguments", cohort.InvalidArgument, "%d positional arguments, the function takes %d",
			len(args), fixed)
	}
	values := make([]reflect.Value, len(f.in))
	given := make([]bool, len(f.in))
	for i := range values {
		values[i] = reflect.New(f.in[i]).Elem()
	}
	for i, arg := range args[:min(fixed, len(args))] {
		if err := pyconv.Assign(values[i].Addr().Interface(), arg, f.References); err != nil {
			return nil, argumentError(err, "argument %s", f.paramName(i))
		}
		given[i] = true
	}
	if variadic {
		rest := []any{}
		if len(args) > fixed {
			rest = args[fixed:]
		}
		if err := pyconv.Assign(values[fixed].Addr().Interface(), rest, f.References); err != nil {
			return nil, argumentError(err, "arguments from %d on", fixed+1)
		}
		given[fixed] = true
	}
	if kwargs != nil {
		for _, p := range kwargs.Pairs {
			name, _ := p.Key.(string)
			i := slices.Index(f.Params, name)
			switch {
			case i < 0:
				return nil, cohort.Newf("rpc: arguments", cohort.InvalidArgument,
					"unexpected keyword argument %q; the function takes %s", name, f.signature())
			case given[i]:
				return nil, cohort.Newf("rpc: arguments", cohort.InvalidArgument, "argument %q is given twice", name)
			}
			if err := pyconv.Assign(values[i].Addr().Interface(), p.Value, f.References); err != nil {
				return nil, argumentError(err, "argument %q", name)
			}
			given[i] = true
		}
	}
	if i := slices.Index(given, false); i >= 0 {
		return nil, cohort.Newf("rpc: arguments", cohort.InvalidArgument, "argument %s is missing; the function takes %s",
			f.paramName(i), f.signature())
	}
	return append(in, values...), nil
}

// paramName names a parameter in an error: by its name where that is known, else by its number.
func (f *Func) paramName(i int) string {
	if i < len(f.Params) {
		return strconv.Quote(f.Params[i])
	}
	return strconv.Itoa(i + 1)
}

func (f *Func) signature() string {
	if len(f.Params) > 0 {
		return strings.Join(f.Params, ", ")
	}
	types := make([]string, len(f.in))
	for i, t := range f.in {
		types[i] = t.String()
	}
	return "(" + strings.Join(types, ", ") + ") by position"
}

// argumentError reports which argument does not fit, keeping the code of the cause.
func argumentError(err error, format string, args ...any) error {
	return cohort.New("rpc: arguments", cohort.CodeOf(err), fmt.Sprintf(format, args...)+": "+Detail(err))
}

// Detail returns what an error says in plain words, for an error that says the rest itself.
func Detail(err error) string {
	if e, ok := err.(*cohort.Error); ok && e.Err == nil && e.Detail != "" { //nolint:errorlint // only the outermost
		return e.Detail
	}
	return err.Error()
}
