// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// field is one field of a struct that travels as a dict, as Python callers know it.
type field struct {
	Name     string
	Type     reflect.Type
	Index    []int // for reflect.Value.FieldByIndex
	Required bool
	goName   string
}

var fieldCache sync.Map // reflect.Type -> []Field: a pure function of the type

// Fields returns the exported fields of a struct in order, with the names they have in Python: the tag
// `rpc:"name"`, else the field's name in snake case. `rpc:"-"` leaves a field out; `rpc:"name,required"` makes an
// argument that must be given. The fields of an embedded struct count as the struct's own, as in Go, unless a tag gives
// the embedded struct a name.
func Fields(t reflect.Type) ([]field, error) {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.([]field), nil //nolint:errcheck,forcetypeassert // only this function stores
	}
	fields, err := collectFields(t, nil)
	if err != nil {
		return nil, err
	}
	if fields, err = visible(t, fields); err != nil {
		return nil, err
	}
	if len(fields) == 0 && t.NumField() > 0 {
		return nil, badType("a %v has no exported fields, so nothing of it could be sent", t)
	}
	fieldCache.Store(t, fields)
	return fields, nil
}

// collectFields lists the fields of a struct and, in their place, those of the structs that it embeds.
func collectFields(t reflect.Type, at []int) (fields []field, err error) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("rpc"), ",")
		if name == "-" {
			continue
		}
		index := append(slices.Clone(at), i)
		if f.Anonymous && name == "" {
			if f.Type.Kind() == reflect.Struct {
				inner, err := collectFields(f.Type, index)
				if err != nil {
					return nil, err
				}
				fields = append(fields, inner...)
				continue
			}
			if f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct {
				return nil,
					badType(
						"a %v embeds a pointer to %v: embed the struct itself, give the field a tag, or leave it out with "+
							"rpc:\"-\"", t, f.Type.Elem())
			}
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = SnakeName(f.Name)
		}
		fields = append(fields, field{name, f.Type, index, options == "required", f.Name})
	}
	return fields, nil
}

// visible leaves out what a field further outside hides, and refuses two fields of one name.
func visible(t reflect.Type, all []field) ([]field, error) {
	var fields []field
	for _, f := range all {
		hidden := false
		for _, other := range all {
			if other.Name != f.Name || slices.Equal(other.Index, f.Index) {
				continue
			}
			if other.goName != f.goName || len(other.Index) == len(f.Index) {
				return nil, badType("two fields of %v are called %q", t, f.Name)
			}
			hidden = hidden || len(other.Index) < len(f.Index)
		}
		if !hidden {
			fields = append(fields, f)
		}
	}
	return fields, nil
}

// SnakeName turns a Go name into a Python one: LearningRate is learning_rate, HTTPPort is http_port.
func SnakeName(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, c := range runes {
		if unicode.IsUpper(c) {
			if i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
				b.WriteByte('_')
			}
			c = unicode.ToLower(c)
		}
		b.WriteRune(c)
	}
	return b.String()
}

func badType(format string, args ...any) error {
	return cohort.Newf("rpc: encode value", cohort.InvalidArgument, format, args...)
}

func fieldIndex(fields []field, name string) int {
	return slices.IndexFunc(fields, func(f field) bool { return f.Name == name })
}

func fieldNames(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}

// Describes reports whether a dict that is the only argument of a function is the struct of type t which the function takes, and not
// the value of its first field: it has entries, and each is named like one of the fields. Where the first field could not be a dict,
// one name is enough, and Assign ignores the others.
func Describes(d *py.Dict, t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	fields, err := Fields(t)
	if err != nil || len(fields) == 0 {
		return false
	}
	known := 0
	for _, p := range Pairs(d) {
		name, ok := p.Key.(string)
		if !ok {
			return false
		}
		if fieldIndex(fields, name) >= 0 {
			known++
		}
	}
	return known > 0 && (known == d.Len() || !takesDict(t.FieldByIndex(fields[0].Index).Type))
}

// takesDict reports whether a dict fits a type, or might.
func takesDict(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return slices.Contains([]reflect.Kind{reflect.Map, reflect.Struct, reflect.Interface}, t.Kind())
}

// Hint names a type as Python knows its values. Structs are dicts, unless known has another name for the type.
func Hint(t reflect.Type, known func(reflect.Type) string) string {
	if name := known(t); name != "" {
		return name
	}
	switch t {
	case reflect.TypeFor[*tensor.Tensor](), reflect.TypeFor[*tensor.Sparse]():
		return "torch.Tensor"
	case reflect.TypeFor[py.Tuple]():
		return "tuple"
	case reflect.TypeFor[py.Set]():
		return "set"
	case reflect.TypeFor[[]byte]():
		return "bytes"
	case reflect.TypeFor[*py.Dict]():
		return "dict"
	}
	switch t.Kind() { //nolint:exhaustive // the rest may be anything
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "int"
	case reflect.Float32, reflect.Float64:
		return "float"
	case reflect.Complex64, reflect.Complex128:
		return "complex"
	case reflect.String:
		return "str"
	case reflect.Slice, reflect.Array:
		return "list[" + Hint(t.Elem(), known) + "]"
	case reflect.Map:
		return "dict[" + Hint(t.Key(), known) + ", " + Hint(t.Elem(), known) + "]"
	case reflect.Struct:
		return "dict"
	case reflect.Pointer:
		if t.Elem().Kind() == reflect.Struct {
			return "dict"
		}
	}
	return "typing.Any"
}
