// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/tensor"
)

// TestScale multiplies 1.5 by 2 in every type, at an address that is not aligned.
func TestScale(t *testing.T) {
	le := binary.LittleEndian
	three := func(dt tensor.DType, x float64) []byte {
		b := []byte{}
		for range 3 {
			switch dt {
			case tensor.Float16:
				b = le.AppendUint16(b, uint16(tensor.ToF16(float32(x))))
			case tensor.BFloat16:
				b = le.AppendUint16(b, uint16(tensor.ToBF16(float32(x))))
			case tensor.Float32:
				b = le.AppendUint32(b, math.Float32bits(float32(x)))
			case tensor.Complex64:
				b = le.AppendUint32(le.AppendUint32(b, math.Float32bits(float32(x))), math.Float32bits(float32(x)))
			case tensor.Float64:
				b = le.AppendUint64(b, math.Float64bits(x))
			case tensor.Complex128:
				b = le.AppendUint64(le.AppendUint64(b, math.Float64bits(x)), math.Float64bits(x))
			default:
				t.Fatalf("%v has no factor", dt)
			}
		}
		return b
	}
	types := 0
	for dt := range tensor.DType(16) {
		if !Scales(dt) {
			continue
		}
		types++
		odd := append([]byte{0}, three(dt, 1.5)...)
		Scale(odd[1:], dt, 2)
		if want := three(dt, 3); !slices.Equal(odd[1:], want) {
			t.Errorf("%v: % x, want % x", dt, odd[1:], want)
		}
	}
	if types != 6 {
		t.Errorf("%d types have a factor, want 6", types)
	}
}
