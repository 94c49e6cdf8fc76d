// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"math"
	"math/big"
	"reflect"
)

func assignInt(dst reflect.Value, v any) error {
	switch n := v.(type) {
	case int64:
		if dst.OverflowInt(n) {
			return doesNotFit(n, dst.Type())
		}
		dst.SetInt(n)
		return nil
	case *big.Int:
		return doesNotFit(bigText(n), dst.Type())
	}
	return mismatch(dst.Type(), v)
}

func assignUint(dst reflect.Value, v any) error {
	var u uint64
	switch n := v.(type) {
	case int64:
		if n < 0 {
			return doesNotFit(n, dst.Type())
		}
		u = uint64(n)
	case *big.Int:
		if !n.IsUint64() {
			return doesNotFit(bigText(n), dst.Type())
		}
		u = n.Uint64()
	default:
		return mismatch(dst.Type(), v)
	}
	if dst.OverflowUint(u) {
		return doesNotFit(u, dst.Type())
	}
	dst.SetUint(u)
	return nil
}

func assignFloat(dst reflect.Value, v any) error {
	var f float64
	switch n := v.(type) {
	case float64:
		f = n
	case int64:
		f = float64(n)
	case *big.Int:
		if f, _ = new(big.Float).SetInt(n).Float64(); math.IsInf(f, 0) {
			return doesNotFit(bigText(n), dst.Type())
		}
	default:
		return mismatch(dst.Type(), v)
	}
	if !math.IsInf(f, 0) && dst.OverflowFloat(f) {
		return doesNotFit(f, dst.Type())
	}
	dst.SetFloat(f)
	return nil
}

func assignComplex(dst reflect.Value, v any) error {
	switch n := v.(type) {
	case complex128:
		dst.SetComplex(n)
	case float64:
		dst.SetComplex(complex(n, 0))
	case int64:
		dst.SetComplex(complex(float64(n), 0))
	default:
		return mismatch(dst.Type(), v)
	}
	return nil
}
