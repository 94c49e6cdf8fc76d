// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"reflect"
	"slices"

	"github.com/cohort-dist/cohort/rpc/py"
)

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
