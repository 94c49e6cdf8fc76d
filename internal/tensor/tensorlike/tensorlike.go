// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensorlike lets values of another type stand for tensors in messages of package rpc, such as variables that gradients
// are recorded for. The type registers functions here, so that it needs no exported methods for this.
package tensorlike

import "reflect"

// kind is a registered type.
type kind struct {
	tensor func(v any) any
	assign func(v, t any) error
}

// kinds is written while packages are initialized, and only read afterwards.
var kinds = map[reflect.Type]kind{}

// Register makes the pointer type P stand for tensors. tensor returns the tensor of a value: a *tensor.Tensor, a
// *tensor.Sparse, or nil. assign makes the new value that dst points to stand for a received one. Call it when the package of
// P is initialized:
//
//	var _ = standin.Register((*Variable).sent, (*Variable).receive)
func Register[P any](tensor func(v P) any, assign func(dst P, t any) error) struct{} {
	kinds[reflect.TypeFor[P]()] = kind{
		tensor: func(v any) any { return tensor(v.(P)) },             //nolint:errcheck,forcetypeassert // its key says so
		assign: func(dst, t any) error { return assign(dst.(P), t) }, //nolint:errcheck,forcetypeassert // its key says so
	}
	return struct{}{}
}

// Is reports whether v is of a registered type.
func Is(v any) bool {
	_, is := kinds[reflect.TypeOf(v)]
	return is
}

// Tensor returns the tensor that v, of a registered type, stands for, or nil.
func Tensor(v any) any {
	if k, is := kinds[reflect.TypeOf(v)]; is {
		return k.tensor(v)
	}
	return nil
}

// Assign makes the value that dst points to stand for the tensor t. It reports false if that type is not registered.
func Assign(dst, t any) (bool, error) {
	k, is := kinds[reflect.TypeOf(dst)]
	if !is {
		return false, nil
	}
	return true, k.assign(dst, t)
}
