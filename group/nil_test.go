// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"reflect"
	"testing"

	"github.com/cohort-dist/cohort"
)

// TestNilGroup: no method of a nil group panics, and every one that can return an error returns one that says what is wrong. A program gets
// such a group where it ignores the error of New.
func TestNilGroup(t *testing.T) {
	t.Parallel()
	var g *Group
	for m := range reflect.TypeFor[*Group]().Methods() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			args := []reflect.Value{reflect.ValueOf(g)}
			for at := 1; at < m.Type.NumIn(); at++ {
				if m.Type.IsVariadic() && at == m.Type.NumIn()-1 {
					break
				}
				if in := m.Type.In(at); in == reflect.TypeFor[context.Context]() {
					args = append(args, reflect.ValueOf(t.Context()))
				} else {
					args = append(args, reflect.Zero(in))
				}
			}
			for _, out := range m.Func.Call(args) {
				switch out := out.Interface().(type) {
				case *Work:
					isNilGroup(t, out.Wait(t.Context()))
				case []*Work:
					for _, w := range out {
						isNilGroup(t, w.Wait(t.Context()))
					}
				default:
				}
			}
			if last := m.Type.NumOut() - 1; last >= 0 && m.Type.Out(last) == reflect.TypeFor[error]() {
				err, _ := reflect.TypeAssert[error](m.Func.Call(args)[last])
				isNilGroup(t, err)
			}
		})
	}
}

func isNilGroup(t *testing.T, err error) {
	t.Helper()
	if e := asError(err); e == nil || e.Code != cohort.InvalidArgument {
		t.Errorf("%v", err)
	}
}
