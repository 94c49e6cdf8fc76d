// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"math/big"
	"reflect"
	"slices"
	"unsafe"

	"github.com/cohort-dist/cohort/rpc/py"
)

// ShortText is the length up to which a string is written again: a reference to it would not be much shorter.
const ShortText = 32

// identity reports whether two Go values are the same memory. It keeps that memory alive, so that no other value can have it.
type identity struct {
	kind reflect.Type
	at   unsafe.Pointer
	n    int
}

var (
	anyList   = reflect.TypeFor[[]any]()
	anyTuple  = reflect.TypeFor[py.Tuple]()
	anySet    = reflect.TypeFor[py.Set]()
	anyFrozen = reflect.TypeFor[py.FrozenSet]()
	anyArray  = reflect.TypeFor[py.ByteArray]()
	anyBytes  = reflect.TypeFor[[]byte]()
	anyDict   = reflect.TypeFor[*py.Dict]()
	anyObject = reflect.TypeFor[*py.Object]()
	anyText   = reflect.TypeFor[string]()
	anyBig    = reflect.TypeFor[*big.Int]()
)

// Identify returns the Identity of a container or a long string. A value without one, such as an empty slice or a struct,
// reports false.
//
//nolint:gosec // addresses are compared, never followed
func Identify(v any) (id identity, ok bool) {
	switch v := v.(type) {
	case []any:
		return identity{anyList, unsafe.Pointer(unsafe.SliceData(v)), len(v)}, len(v) > 0
	case py.Tuple:
		return identity{anyTuple, unsafe.Pointer(unsafe.SliceData(v)), len(v)}, len(v) > 0
	case py.Set:
		return identity{anySet, unsafe.Pointer(unsafe.SliceData(v)), len(v)}, len(v) > 0
	case py.FrozenSet:
		return identity{anyFrozen, unsafe.Pointer(unsafe.SliceData(v)), len(v)}, len(v) > 0
	case py.ByteArray:
		return identity{anyArray, unsafe.Pointer(unsafe.SliceData(v)), len(v)}, len(v) > 0
	case []byte:
		return identity{anyBytes, unsafe.Pointer(unsafe.SliceData(v)), len(v)}, len(v) > ShortText
	case string:
		return identity{anyText, unsafe.Pointer(unsafe.StringData(v)), len(v)}, len(v) > ShortText
	case *py.Dict:
		return identity{anyDict, unsafe.Pointer(v), 0}, v != nil
	case *py.Object:
		return identity{anyObject, unsafe.Pointer(v), 0}, v != nil
	case *big.Int:
		return identity{anyBig, unsafe.Pointer(v), 0}, v != nil && v.BitLen() > 8*ShortText
	}
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Slice:
		return identity{r.Type(), r.UnsafePointer(), r.Len()}, r.Len() > 0 && r.Type().Elem().Size() > 0
	case reflect.Map:
		return identity{r.Type(), r.UnsafePointer(), 0}, r.Len() > 0
	case reflect.Pointer:
		return identity{r.Type(), r.UnsafePointer(), 0}, !r.IsNil() && r.Type().Elem().Size() > 0
	default:
		return identity{}, false
	}
}

// Met is what became of the values that were met so far. A table is only made when there are many.
type Met[V any] struct {
	few  []entry[V]
	many map[identity]V
}

type entry[V any] struct {
	id identity
	v  V
}

// Get returns what became of a value, if it was met.
func (m *Met[V]) Get(id identity) (v V, ok bool) {
	if m.many != nil {
		v, ok = m.many[id]
		return v, ok
	}
	for i := range m.few {
		if m.few[i].id == id {
			return m.few[i].v, true
		}
	}
	return v, false
}

// Set notes what became of a value.
func (m *Met[V]) Set(id identity, v V) {
	if m.many != nil {
		m.many[id] = v
		return
	}
	for i := range m.few {
		if m.few[i].id == id {
			m.few[i].v = v
			return
		}
	}
	if m.few = append(m.few, entry[V]{id, v}); len(m.few) > 16 {
		m.many = make(map[identity]V, 4*len(m.few))
		for _, e := range m.few {
			m.many[e.id] = e.v
		}
		m.few = nil
	}
}

// Contains reports whether a pointer is somewhere inside a value. Parts that occur several times are looked at once.
func Contains(v, pointer any) bool {
	if t := reflect.TypeOf(pointer); t == nil || t.Kind() != reflect.Pointer {
		return false // others may not be comparable
	}
	return search{pointer, map[any]bool{}}.value(v)
}

// search is a walk through a value. seen has the containers that were entered.
type search struct {
	pointer any
	seen    map[any]bool
}

// enter reports whether a container is looked at for the first time.
func (s search) enter(container any) bool {
	first := !s.seen[container]
	s.seen[container] = true
	return first
}

func (s search) list(items []any) bool {
	return len(items) > 0 && s.enter(&items[0]) && slices.ContainsFunc(items, s.value)
}

func (s search) pairs(ps []py.Pair) bool {
	return slices.ContainsFunc(ps, func(p py.Pair) bool { return s.value(p.Key) || s.value(p.Value) })
}

func (s search) value(v any) bool {
	switch v := v.(type) {
	case []any:
		return s.list(v)
	case py.Tuple:
		return s.list(v)
	case py.Set:
		return s.list(v)
	case py.FrozenSet:
		return s.list(v)
	case *py.Dict:
		return v != nil && s.enter(v) && s.pairs(v.Pairs)
	case *py.Object:
		return v != nil && s.enter(v) && (s.list(v.Args) || s.value(v.KwArgs) || s.list(v.States) || s.list(v.Items) || s.pairs(v.Pairs))
	}
	return v == s.pointer
}
