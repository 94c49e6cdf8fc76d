// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pycall"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
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

// class is a Go type whose methods are served through references to its values.
type class struct {
	name    py.Global
	methods map[string]*handler
}

// Class serves the exported methods of sample's type through references: by their Go names and in snake case. name is the
// stub class that Python callers import, "module.Class"; its methods are what rref.rpc_sync() and its siblings offer.
//
// Methods have the form of handlers, see [Registry.Handle]. Those of another form are left out.
func (r *Registry) Class(name string, sample any) error {
	t := reflect.TypeOf(sample)
	if t == nil || t.NumMethod() == 0 {
		return badHandler(name, "%T has no exported methods", sample)
	}
	c := &class{name: py.Func(name), methods: map[string]*handler{}}
	for i := range t.NumMethod() {
		m := t.Method(i)
		// Only the signature is checked on a zero receiver; bound sets the real one.
		h, err := newHandler(name+"."+m.Name, reflect.Zero(t).Method(i), nil)
		if err != nil {
			continue
		}
		c.methods[m.Name] = h
		c.methods[pyconv.SnakeName(m.Name)] = h
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.classes[t]; taken {
		return cohort.Newf("rpc: handle", cohort.AlreadyExists, "%v has a class", t)
	}
	put(&r.classes, t, c)
	return nil
}

// MustClass is Class, which panics on an error. It returns r.
func (r *Registry) MustClass(name string, sample any) *Registry {
	if err := r.Class(name, sample); err != nil {
		panic(err)
	}
	return r
}

// bound returns the handler of a method of value.
func (h *handler) bound(value reflect.Value, method string) *handler {
	b := *h
	if h.fn != nil {
		b.fn = h.fn.Bound(value, method)
	} else if raw, ok := reflect.TypeAssert[func(context.Context, *Request) (any, error)](value.MethodByName(method)); ok {
		b.raw = raw
	}
	return &b
}

// method finds the handler of a method of value.
func (r *Registry) method(value any, name string) (*handler, error) {
	t := reflect.TypeOf(value)
	r.mu.RLock()
	c := r.classes[t]
	r.mu.RUnlock()
	if c == nil {
		return nil, &RemoteError{
			Kind: "TypeError", Code: cohort.NotSupported,
			Message: "methods of a " + typeText(t) + " are not served: register it with Registry.Class",
		}
	}
	h := c.methods[name]
	if h == nil {
		return nil, &RemoteError{
			Kind: "AttributeError", Code: cohort.NotFound,
			Message: "'" + c.name.Name + "' object has no attribute '" + name + "'",
		}
	}
	return h.bound(reflect.ValueOf(value), h.name[strings.LastIndexByte(h.name, '.')+1:]), nil
}

// classOf names the Python class of an object: the registered stub, or the builtin type of a plain value.
func (r *Registry) classOf(value any) (py.Global, error) {
	t := reflect.TypeOf(value)
	r.mu.RLock()
	c := r.classes[t]
	r.mu.RUnlock()
	if c != nil {
		return c.name, nil
	}
	builtin := func(name string) (py.Global, error) { return py.Global{Module: "builtins", Name: name}, nil }
	switch v := value.(type) {
	case *tensor.Tensor, *tensor.Sparse:
		return py.Global{Module: "torch", Name: "Tensor"}, nil
	case py.Tuple:
		return builtin("tuple")
	case py.Set:
		return builtin("set")
	case py.FrozenSet:
		return builtin("frozenset")
	case []byte:
		return builtin("bytes")
	case py.ByteArray:
		return builtin("bytearray")
	case *py.Object:
		if g, ok := v.Class.(py.Global); ok {
			return g, nil
		}
	}
	if t == nil {
		return builtin("object")
	}
	switch t.Kind() { //nolint:exhaustive // the others have no Python class
	case reflect.Bool:
		return builtin("bool")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64:
		return builtin("int")
	case reflect.Float32, reflect.Float64:
		return builtin("float")
	case reflect.Complex64, reflect.Complex128:
		return builtin("complex")
	case reflect.String:
		return builtin("str")
	case reflect.Slice, reflect.Array:
		return builtin("list")
	case reflect.Map, reflect.Struct:
		return builtin("dict")
	}
	return py.Global{}, &RemoteError{
		Kind: "TypeError", Code: cohort.NotSupported,
		Message: "a " + typeText(t) + " has no Python class: register it with Registry.Class",
	}
}

func typeText(t reflect.Type) string {
	if t == nil {
		return "nil"
	}
	return "Go " + t.String()
}
