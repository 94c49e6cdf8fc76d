// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/python/pycall"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
)

// FunctionInfo describes a function, or a method of a class, to callers in Python.
type FunctionInfo struct {
	// Name is "module.function", or "module.Class.method" of a Method.
	Name   string      `json:"name"`
	Method bool        `json:"method,omitempty"`
	Doc    string      `json:"doc,omitempty"`
	Params []ParamInfo `json:"params"`
	// Result is the type of the result in Python's notation, "None" without one.
	Result string `json:"result"`
}

// ParamInfo describes one parameter.
type ParamInfo struct {
	Name string `json:"name"`
	// Type is the type in Python's notation: int, list[float], torch.Tensor, typing.Any.
	Type string `json:"type"`
	// Optional parameters may be left out.
	Optional bool `json:"optional,omitempty"`
	// Rest is "*" for all further positional arguments, "**" for all further ones by keyword.
	Rest string `json:"rest,omitempty"`
}

// Describe returns what the registry serves, functions first, then the methods of its classes by their Python names. Workers
// answer the function "cohort.rpc.describe" with it; `cohort rpc stubs` writes Python modules from it.
func (r *Registry) Describe() []FunctionInfo {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []FunctionInfo{}
	for name, h := range r.funcs {
		all = append(all, r.describe(name, h))
	}
	for _, c := range r.classes {
		for name, h := range c.methods {
			if name != pyconv.SnakeName(name) {
				continue // the Go name of a method that has a Python one too
			}
			info := r.describe(c.name.String()+"."+name, h)
			info.Method = true
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(x, y FunctionInfo) int {
		if x.Method != y.Method {
			if x.Method {
				return 1
			}
			return -1
		}
		return cmp.Compare(x.Name, y.Name)
	})
	return all
}

func (r *Registry) describe(name string, h *handler) FunctionInfo {
	info := FunctionInfo{Name: name, Doc: h.doc, Params: []ParamInfo{}, Result: "None"}
	params, known := []pycall.Param(nil), false
	if h.raw == nil {
		params, known = h.fn.Parameters()
	}
	for _, p := range params {
		x := ParamInfo{Name: p.Name, Type: r.python(p.Type), Optional: p.Optional}
		if p.Rest {
			x.Rest = "*"
		}
		info.Params = append(info.Params, x)
	}
	if !known {
		info.Params = []ParamInfo{{Name: "args", Type: "typing.Any", Rest: "*"}, {Name: "kwargs", Type: "typing.Any", Rest: "**"}}
	}
	if h.raw != nil {
		info.Result = "typing.Any"
	} else if t := h.fn.Result(); t != nil {
		info.Result = r.python(t)
	}
	return info
}

// python is the type hint of a Go type: the name of its class if it has one here.
func (r *Registry) python(t reflect.Type) string {
	return pyconv.Hint(t, func(t reflect.Type) string {
		switch c := r.classes[t]; {
		case c != nil:
			return c.name.String()
		case t.Kind() == reflect.Pointer && strings.HasPrefix(t.Elem().Name(), "Ref[") &&
			t.Elem().PkgPath() == reflect.TypeFor[Registry]().PkgPath():
			return "torch.distributed.rpc.RRef"
		}
		return ""
	})
}
