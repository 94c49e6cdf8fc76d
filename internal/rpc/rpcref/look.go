// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"reflect"

	"github.com/cohort-dist/cohort/tensor"
)

// referencesIn finds the references that a value shows: it is one, or a slice or struct with some, in exported fields.
func (r *Refs) referencesIn(value any) []*Hold {
	switch value.(type) {
	case nil, *tensor.Tensor, string, []byte, int64, float64, bool:
		return nil
	}
	if r.cfg.Opaque(value) {
		return nil
	}
	var found []*Hold
	var walk func(v reflect.Value, depth int)
	walk = func(v reflect.Value, depth int) {
		if depth > 4 || !v.IsValid() || !v.CanInterface() || len(found) > 1000 {
			return
		}
		switch v.Kind() {
		case reflect.Pointer, reflect.Interface:
			if v.IsNil() {
				return
			}
			if core := r.cfg.Unwrap(v.Interface()); core != nil {
				found = append(found, core)
				return
			}
			walk(v.Elem(), depth+1)
		case reflect.Slice, reflect.Array:
			if plain(v.Type().Elem().Kind()) {
				return
			}
			for i := range min(v.Len(), 1000) {
				walk(v.Index(i), depth+1)
			}
		case reflect.Struct:
			for _, field := range v.Fields() {
				walk(field, depth+1)
			}
		default: // in maps nothing is looked for: see Holder
		}
	}
	walk(reflect.ValueOf(value), 0)
	return found
}

// plain reports whether values of a kind cannot hold anything.
func plain(k reflect.Kind) bool {
	return k >= reflect.Bool && k <= reflect.Complex128 || k == reflect.String
}

// tensorBytes adds up the tensors that a value shows on its surface.
func tensorBytes(v any, depth int) int {
	if depth > 4 {
		return 0
	}
	n := 0
	switch v := v.(type) {
	case *tensor.Tensor:
		n = v.NBytes()
	case []*tensor.Tensor:
		for _, t := range v {
			n += t.NBytes()
		}
	case map[string]*tensor.Tensor:
		for _, t := range v {
			n += t.NBytes()
		}
	case []any:
		for _, x := range v {
			n += tensorBytes(x, depth+1)
		}
	case []byte:
		n = len(v)
	}
	return n
}
