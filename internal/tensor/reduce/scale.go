// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"encoding/binary"
	"math"

	"github.com/cohort-dist/cohort/tensor"
)

// Scales reports whether [Scale] is defined for dt: floating-point and complex numbers.
func Scales(dt tensor.DType) bool {
	switch dt {
	case tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Complex128:
		return true
	default:
		return false
	}
}

// Scale multiplies every element of buf by factor in place, the factor rounded to the element type first, as torch does with a
// factor and a tensor; halves are multiplied in float32. The buffer may have any alignment.
func Scale(buf []byte, dt tensor.DType, factor float64) {
	le := binary.LittleEndian
	switch dt {
	case tensor.Float32, tensor.Complex64:
		f := float32(factor)
		for i := 0; i+4 <= len(buf); i += 4 {
			le.PutUint32(buf[i:], math.Float32bits(math.Float32frombits(le.Uint32(buf[i:]))*f))
		}
	case tensor.Float64, tensor.Complex128:
		for i := 0; i+8 <= len(buf); i += 8 {
			le.PutUint64(buf[i:], math.Float64bits(math.Float64frombits(le.Uint64(buf[i:]))*factor))
		}
	case tensor.Float16:
		f := float32(factor)
		for i := 0; i+2 <= len(buf); i += 2 {
			le.PutUint16(buf[i:], uint16(tensor.ToF16(tensor.F16(le.Uint16(buf[i:])).Float32()*f)))
		}
	case tensor.BFloat16:
		f := float32(factor)
		for i := 0; i+2 <= len(buf); i += 2 {
			le.PutUint16(buf[i:], uint16(tensor.ToBF16(tensor.BF16(le.Uint16(buf[i:])).Float32()*f)))
		}
	default:
		panic("reduce: scale " + dt.String())
	}
}
