// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"reflect"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

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
