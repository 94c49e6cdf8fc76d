// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pycall

import (
	"reflect"
	"strconv"

	"github.com/cohort-dist/cohort/internal/python/pyconv"
)

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
