// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"reflect"

	"github.com/cohort-dist/cohort/rpc/py"
)

// Describes reports whether a dict is a struct of type t as a whole: it has entries, and each is named like one of the
// fields.
func Describes(d *py.Dict, t reflect.Type) bool {
	if d.Len() == 0 || t.Kind() != reflect.Struct {
		return false
	}
	fields, err := structFields(t)
	if err != nil {
		return false
	}
	for _, p := range d.Pairs {
		name, ok := p.Key.(string)
		if !ok || fieldIndex(fields, name) < 0 {
			return false
		}
	}
	return true
}
