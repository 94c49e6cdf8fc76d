// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"fmt"
	"math/big"
	"reflect"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// Assign stores a decoded value in the Go variable that dst points to, converting as Python programmers expect: an int
// fits a float, a tuple or set fits a slice, a dict fits a map or a struct (by the names of its fields, see [Fields]),
// None fits pointers, slices, maps, interfaces and struct{}. A key that a struct has no field for is ignored, as in encoding/json:
// the sender may be newer. A number that does not fit is an error, never a wrong number.
// references may be nil when there are none.
func Assign(dst, v any, references AssignReference) error {
	p := reflect.ValueOf(dst)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return cohort.Newf("rpc: assign", cohort.InvalidArgument, "%T is not a pointer to a variable", dst)
	}
	return publicError((&assigner{references: references}).assign(p.Elem(), v, 0), "")
}

// AssignArgs stores the arguments of a call in a struct: positional ones by the order of its fields, keyword ones by
// name. An argument that the struct does not have, or that is given twice, is an error; a field without argument keeps
// its value, which is the default, unless its tag ends in ",required".
func AssignArgs(dst any, args []any, kwargs *py.Dict, references AssignReference) error {
	p := reflect.ValueOf(dst)
	if p.Kind() != reflect.Pointer || p.IsNil() || p.Elem().Kind() != reflect.Struct {
		return cohort.Newf("rpc: arguments", cohort.InvalidArgument, "%T is not a pointer to a struct", dst)
	}
	fields, err := Fields(p.Elem().Type())
	if err != nil {
		return err
	}
	if len(args) > len(fields) {
		return cohort.Newf("rpc: arguments", cohort.InvalidArgument, "%d positional arguments, the function takes %d", len(args),
			len(fields))
	}
	given := make([]bool, len(fields))
	a := &assigner{references: references}
	for i, arg := range args {
		if err := a.assign(p.Elem().FieldByIndex(fields[i].Index), arg, 0); err != nil {
			return publicError(err, fmt.Sprintf("argument %q: ", fields[i].Name))
		}
		given[i] = true
	}
	for _, pair := range Pairs(kwargs) {
		name, ok := pair.Key.(string)
		if !ok {
			return cohort.New("rpc: arguments", cohort.InvalidArgument, "a keyword argument that is not a string")
		}
		i := fieldIndex(fields, name)
		if i < 0 {
			return cohort.Newf("rpc: arguments", cohort.InvalidArgument, "unexpected keyword argument %q; the function takes %s",
				name, fieldNames(fields))
		}
		if given[i] {
			return cohort.Newf("rpc: arguments", cohort.InvalidArgument, "argument %q is given twice", name)
		}
		given[i] = true
		if err := a.assign(p.Elem().FieldByIndex(fields[i].Index), pair.Value, 0); err != nil {
			return publicError(err, fmt.Sprintf("argument %q: ", name))
		}
	}
	for i, f := range fields {
		if f.Required && !given[i] {
			return cohort.Newf("rpc: arguments", cohort.InvalidArgument, "argument %q is missing", f.Name)
		}
	}
	return nil
}

// Pairs returns the entries of a dict, none of a nil one.
func Pairs(d *py.Dict) []py.Pair {
	if d == nil {
		return nil
	}
	return d.Pairs
}

// misfit describes where inside a value something does not fit, and what.
type misfit struct{ path, text string }

func (m *misfit) Error() string {
	if m.path == "" {
		return m.text
	}
	return "at " + strings.TrimPrefix(m.path, ".") + ": " + m.text
}

func misfitf(format string, args ...any) error { return &misfit{text: fmt.Sprintf(format, args...)} }

// within adds a step to the path of a misfit on its way up. Paths are made only for errors: most values fit.
func within(err error, format string, args ...any) error {
	if m, ok := err.(*misfit); ok { //nolint:errorlint // made here, never wrapped
		m.path = fmt.Sprintf(format, args...) + m.path
	}
	return err
}

// publicError gives a misfit the form of every other error. what is the argument it is about, or empty.
func publicError(err error, what string) error {
	if m, ok := err.(*misfit); ok { //nolint:errorlint // made here, never wrapped
		return cohort.New("rpc: assign", cohort.InvalidArgument, what+m.Error())
	}
	return err
}

func doesNotFit(what any, want reflect.Type) error {
	return misfitf("%v does not fit a Go %v", what, want)
}

// bigText writes an integer, or its size where the digits would fill a page: they take a time that grows with the square of
// their number.
func bigText(n *big.Int) string {
	if n.BitLen() > 512 {
		return fmt.Sprintf("an integer of %d bits", n.BitLen())
	}
	return n.String()
}

func mismatch(want reflect.Type, v any) error { return doesNotFit("a "+TypeName(v), want) }

// TypeName names the type of a decoded value as its sender knows it.
func TypeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "Python None"
	case []any:
		return "Python list"
	case py.Tuple:
		return "Python tuple"
	case *py.Dict:
		return "Python dict"
	case py.Set:
		return "Python set"
	case py.FrozenSet:
		return "Python frozenset"
	case []byte:
		return "Python bytes"
	case py.ByteArray:
		return "Python bytearray"
	case bool:
		return "Python bool"
	case string:
		return "Python str"
	case float64:
		return "Python float"
	case complex128:
		return "Python complex"
	case int64, *big.Int:
		return "Python int"
	case *tensor.Tensor:
		return "tensor"
	case *tensor.Sparse:
		return "sparse tensor"
	case Reference:
		return "reference"
	case *py.Object:
		return "Python object of class " + py.Repr(v.Class)
	default: // of this process: the value of a reference at its owner
		return fmt.Sprintf("Go %T", v)
	}
}

// assigner fills one variable. A slice, map or pointer that is made of a value which occurs again is made once, as it is in
// Python: a short message could otherwise fill the memory.
type assigner struct {
	references AssignReference
	made       Met[[]made]
}

// made is a Go value of one type that a source was turned into.
type made struct {
	kind  reflect.Type
	value reflect.Value
}

// again sets dst to what the same source was turned into before, if it was.
func (a *assigner) again(dst reflect.Value, v any) (id identity, shareable, done bool) {
	if id, shareable = Identify(v); !shareable {
		return id, false, false
	}
	before, _ := a.made.Get(id)
	for _, m := range before {
		if m.kind == dst.Type() {
			dst.Set(m.value)
			return id, true, true
		}
	}
	return id, true, false
}

func (a *assigner) assign(dst reflect.Value, v any, depth int) error {
	if v == nil {
		return a.convert(dst, v, depth)
	}
	switch dst.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
	default:
		return a.convert(dst, v, depth)
	}
	if reflect.TypeOf(v) == dst.Type() {
		return a.convert(dst, v, depth) // nothing is made
	}
	id, shareable, done := a.again(dst, v)
	if done {
		return nil
	}
	err := a.convert(dst, v, depth)
	if err == nil && shareable {
		before, _ := a.made.Get(id)
		a.made.Set(id, append(before, made{dst.Type(), dst}))
	}
	return err
}

// convert sets dst to v in the form that its type asks for.
func (a *assigner) convert(dst reflect.Value, v any, depth int) error {
	if depth > MaxDepth {
		return misfitf("nested deeper than %d", MaxDepth)
	}
	if v == nil {
		return assignNone(dst)
	}
	if src := reflect.ValueOf(v); src.Type().AssignableTo(dst.Type()) {
		dst.Set(src)
		return nil
	}
	if tensorlike.Is(v) {
		return a.convert(dst, tensorlike.Tensor(v), depth+1)
	}
	if done, err := a.special(dst, v); done || err != nil {
		return err
	}
	return a.byKind(dst, v, depth)
}

// assignNone sets dst to what stands for Python's None, where its type has that.
func assignNone(dst reflect.Value) error {
	t := dst.Type()
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		dst.SetZero()
		return nil
	case reflect.Struct:
		if t.NumField() == 0 { // the type of no result
			return nil
		}
	default:
	}
	return mismatch(t, nil)
}

// special sets variables of types that take tensors or references in their own way.
func (a *assigner) special(dst reflect.Value, v any) (done bool, err error) {
	if !dst.CanAddr() {
		return false, nil
	}
	switch v := v.(type) {
	case *tensor.Tensor, *tensor.Sparse:
		return tensorlike.Assign(dst.Addr().Interface(), v)
	case Reference:
		if a.references != nil {
			return a.references(dst.Addr().Interface(), v)
		}
	}
	return false, nil
}

func (a *assigner) byKind(dst reflect.Value, v any, depth int) error {
	switch dst.Kind() {
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			dst.SetBool(b)
			return nil
		}
	case reflect.String:
		if s, ok := v.(string); ok {
			dst.SetString(s)
			return nil
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return assignInt(dst, v)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return assignUint(dst, v)
	case reflect.Float32, reflect.Float64:
		return assignFloat(dst, v)
	case reflect.Complex64, reflect.Complex128:
		return assignComplex(dst, v)
	case reflect.Pointer:
		fresh := reflect.New(dst.Type().Elem())
		if err := a.assign(fresh.Elem(), v, depth+1); err != nil {
			return err
		}
		dst.Set(fresh)
		return nil
	case reflect.Slice, reflect.Array:
		return a.slice(dst, v, depth)
	case reflect.Map:
		return a.mapping(dst, v, depth)
	case reflect.Struct:
		return a.fields(dst, v, depth)
	default: // channels and functions have no Python form; an interface was assignable or is not
	}
	return mismatch(dst.Type(), v)
}

// sequence returns the items of whatever Python iterates.
func sequence(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case py.Tuple:
		return v, true
	case py.Set:
		return v, true
	case py.FrozenSet:
		return v, true
	}
	return nil, false
}

func (a *assigner) slice(dst reflect.Value, v any, depth int) error {
	t := dst.Type()
	if t.Elem().Kind() == reflect.Uint8 {
		var b []byte
		switch data := v.(type) {
		case []byte:
			b = data
		case py.ByteArray:
			b = data
		}
		if b != nil {
			if t.Kind() == reflect.Slice {
				dst.SetBytes(b)
				return nil
			}
			if len(b) == dst.Len() {
				reflect.Copy(dst, reflect.ValueOf(b))
				return nil
			}
		}
	}
	items, ok := sequence(v)
	if !ok || t.Kind() == reflect.Array && len(items) != t.Len() {
		return mismatch(t, v)
	}
	if t.Kind() == reflect.Slice {
		dst.Set(reflect.MakeSlice(t, len(items), len(items)))
	}
	for i, item := range items {
		if err := a.assign(dst.Index(i), item, depth+1); err != nil {
			return within(err, "[%d]", i)
		}
	}
	return nil
}

func (a *assigner) mapping(dst reflect.Value, v any, depth int) error {
	t := dst.Type()
	d, ok := v.(*py.Dict)
	if !ok {
		if items, isSet := sequence(v); isSet && t.Elem().Kind() == reflect.Struct && t.Elem().NumField() == 0 {
			d, ok = &py.Dict{}, true // a set as map[T]struct{}
			for _, item := range items {
				d.Pairs = append(d.Pairs, py.Pair{Key: item, Value: &py.Dict{}})
			}
		}
	}
	if !ok || d == nil {
		return mismatch(t, v)
	}
	out := reflect.MakeMapWithSize(t, len(d.Pairs))
	for _, p := range d.Pairs {
		key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		if err := a.assign(key, p.Key, depth+1); err != nil {
			return within(err, "[key %s]", py.Repr(p.Key))
		}
		if !key.Comparable() {
			return within(mismatch(t.Key(), p.Key), "[key %s]", py.Repr(p.Key))
		}
		if err := a.assign(value, p.Value, depth+1); err != nil {
			return within(err, "[%s]", py.Repr(p.Key))
		}
		out.SetMapIndex(key, value)
	}
	dst.Set(out)
	return nil
}

func (a *assigner) fields(dst reflect.Value, v any, depth int) error {
	d, ok := v.(*py.Dict)
	if !ok || d == nil {
		return mismatch(dst.Type(), v)
	}
	fields, err := Fields(dst.Type())
	if err != nil {
		return err
	}
	for _, p := range d.Pairs {
		name, ok := p.Key.(string)
		if !ok {
			return within(mismatch(reflect.TypeFor[string](), p.Key), "[key %s]", py.Repr(p.Key))
		}
		i := fieldIndex(fields, name)
		if i < 0 {
			continue
		}
		if err := a.assign(dst.FieldByIndex(fields[i].Index), p.Value, depth+1); err != nil {
			return within(err, ".%s", name)
		}
	}
	for _, f := range fields {
		if _, there := d.Get(f.Name); f.Required && !there {
			return misfitf("%q is missing", f.Name)
		}
	}
	return nil
}
