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

// TestTorchHalves: the NaNs of c10::Half, and everything else as before.
func TestTorchHalves(t *testing.T) {
	t.Parallel()
	const inf, one, nan, minusNaN, top = 0x7c00, 0x3c00, 0x7e01, 0xfe00, 0x7bff
	for _, c := range []struct {
		op         Op
		x, y, want uint16
	}{
		{Sum, one, one, 0x4000},
		{Product, 0x4000, 0x4000, 0x4400},
		{Sum, nan, one, 0x7e00},
		{Sum, one, minusNaN, 0xfe00},
		{Sum, minusNaN, nan, 0xfe00},
		{Sum, inf, inf | 0x8000, 0xfe00},
		{Product, inf, 0, 0xfe00},
		{Sum, top, top, inf},
		{Max, one, 0x7380, 0x7380},
		{Min, nan, one, nan},
		{Avg, one, one, 0x4000},
	} {
		dst, src := make([]byte, 3), make([]byte, 3)
		binary.LittleEndian.PutUint16(dst[1:], c.x) // not aligned
		binary.LittleEndian.PutUint16(src[1:], c.y)
		Torch(dst[1:], src[1:], tensor.Float16, c.op)
		if got := binary.LittleEndian.Uint16(dst[1:]); got != c.want {
			t.Errorf("%v of %#x and %#x: %#x, want %#x", c.op, c.x, c.y, got, c.want)
		}
	}
	// gloo's own arithmetic, up to PyTorch 2.7, differs in just these places.
	dst := []byte{0x00, 0x3c}
	Gloo(dst, []byte{0x80, 0x73}, tensor.Float16, Max)
	if binary.LittleEndian.Uint16(dst) != one {
		t.Errorf("gloo's maximum of 1 and 15360 is 1, not %#x", dst)
	}
}

// TestDivideComplex: times the reciprocal, with the signs of zero, infinity and NaN that follow from the terms of zero.
func TestDivideComplex(t *testing.T) {
	t.Parallel()
	inf, negativeZero := float32(math.Inf(1)), float32(math.Copysign(0, -1))
	for _, c := range [][4]float32{ // in, out
		{1, 2, 1 * (float32(1) / 3), 2 * (float32(1) / 3)},
		{negativeZero, 1, 0, float32(1) / 3},
		{5, -7, 5 * (float32(1) / 3), -7 * (float32(1) / 3)},
	} {
		var b []byte
		for _, v := range c[:2] {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		DivideComplex(b, tensor.Float32, 3)
		for i, want := range c[2:] {
			if got := binary.LittleEndian.Uint32(b[4*i:]); got != math.Float32bits(want) {
				t.Errorf("%v: part %d is %#x, want %#x", c, i, got, math.Float32bits(want))
			}
		}
	}
	var b []byte
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(inf))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1))
	DivideComplex(b, tensor.Float32, 3)
	if re, im := math.Float32frombits(binary.LittleEndian.Uint32(b)),
		math.Float32frombits(binary.LittleEndian.Uint32(b[4:])); re != inf || im == im {
		t.Errorf("of an infinity: %v %v", re, im)
	}
	wide := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, math.Float64bits(3)), math.Float64bits(-6))
	DivideComplex(wide, tensor.Float64, 4)
	if re, im := math.Float64frombits(binary.LittleEndian.Uint64(wide)),
		math.Float64frombits(binary.LittleEndian.Uint64(wide[8:])); re != 0.75 || im != -1.5 {
		t.Errorf("%v %v", re, im)
	}
}

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
