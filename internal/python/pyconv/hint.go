// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"reflect"

	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

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
