// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// field is one field of a struct that travels as a dict.
type field struct {
	name     string
	index    []int
	required bool
	goName   string
}

var fieldCache sync.Map // reflect.Type -> []field: a pure function of the type

// structFields returns the exported fields of a struct in order, with the names they have in Python: the tag
// `rpc:"name"`, else the field's name in snake case. `rpc:"-"` leaves a field out; `rpc:"name,required"` makes an
// argument that must be given. The fields of an embedded struct count as the struct's own, as in Go, unless a tag gives
// the embedded struct a name.
func structFields(t reflect.Type) ([]field, error) {
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
		return nil, badValue("a %v has no exported fields, so nothing of it could be sent", t)
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
				return nil, badValue("a %v embeds a pointer to %v: embed the struct itself, give the field a tag, or leave it out with rpc:\"-\"", t, f.Type.Elem())
			}
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = SnakeName(f.Name)
		}
		fields = append(fields, field{name, index, options == "required", f.Name})
	}
	return fields, nil
}

// visible leaves out what a field further outside hides, and refuses two fields of one name.
func visible(t reflect.Type, all []field) ([]field, error) {
	var fields []field
	for _, f := range all {
		hidden := false
		for _, other := range all {
			if other.name != f.name || slices.Equal(other.index, f.index) {
				continue
			}
			if other.goName != f.goName || len(other.index) == len(f.index) {
				return nil, badValue("two fields of %v are called %q", t, f.name)
			}
			hidden = hidden || len(other.index) < len(f.index)
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

// Field is a field of a struct as Python callers know it.
type Field struct {
	Name     string
	Type     reflect.Type
	Required bool
}

// Fields returns the fields of a struct of arguments in order.
func Fields(t reflect.Type) ([]Field, error) {
	fields, err := structFields(t)
	if err != nil {
		return nil, err
	}
	all := make([]Field, len(fields))
	for i, f := range fields {
		all[i] = Field{f.name, t.FieldByIndex(f.index).Type, f.required}
	}
	return all, nil
}
