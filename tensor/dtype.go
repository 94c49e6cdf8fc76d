// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"strconv"
)

// DType is the element type of a tensor. It corresponds to torch.dtype.
type DType uint8

// The element types. Their numbers are PyTorch's ScalarType codes, which appear on its wires. PyTorch has had the last seven
// since 2.1 and 2.3; they, and Complex32, can be sent, read and written, but groups do not reduce them.
const (
	Uint8      DType = 0
	Int8       DType = 1
	Int16      DType = 2
	Int32      DType = 3
	Int64      DType = 4
	Float16    DType = 5
	Float32    DType = 6
	Float64    DType = 7
	Complex32  DType = 8 // two halves
	Complex64  DType = 9
	Complex128 DType = 10
	Bool       DType = 11
	BFloat16   DType = 15

	Float8E5M2     DType = 23
	Float8E4M3FN   DType = 24
	Float8E5M2FNUZ DType = 25
	Float8E4M3FNUZ DType = 26
	Uint16         DType = 27
	Uint32         DType = 28
	Uint64         DType = 29
)

// dtypeInfo has an entry for each number that a DType can be; those of invalid types are empty.
var dtypeInfo = [1 << 8]struct {
	name string
	size int
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8}, Complex64: {"complex64", 8},
	Complex32: {"complex32", 4}, Complex128: {"complex128", 16}, Bool: {"bool", 1}, BFloat16: {"bfloat16", 2},
	Float8E5M2: {"float8_e5m2", 1}, Float8E4M3FN: {"float8_e4m3fn", 1}, Float8E5M2FNUZ: {"float8_e5m2fnuz", 1},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 1}, Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
}

// Valid reports whether d is one of the element types above.
func (d DType) Valid() bool { return dtypeInfo[d].size > 0 }

// Size returns the bytes of one element, or 0 for an invalid type.
func (d DType) Size() int { return dtypeInfo[d].size }

// String returns PyTorch's name of the type, without "torch.".
func (d DType) String() string {
	if name := dtypeInfo[d].name; name != "" {
		return name
	}
	return "dtype(" + strconv.Itoa(int(d)) + ")"
}

// F16 is an IEEE 754 half-precision number, the Go type of a [Float16] element. It corresponds to torch.half.
type F16 uint16

// BF16 is a bfloat16 number, the upper half of a float32, the Go type of a [BFloat16] element. It corresponds to
// torch.bfloat16.
type BF16 uint16

// ToF16 rounds f to the nearest half, ties to even; what is too large becomes an infinity. A NaN keeps its sign and the
// upper bits of its payload and becomes quiet, as the processor's conversion does it.
func ToF16(f float32) F16 {
	x := math.Float32bits(f)
	sign := F16(x>>16) & 0x8000
	u := x & 0x7fffffff
	switch {
	case u > 0x7f800000: // NaN
		return sign | 0x7e00 | F16(u>>13)&0x03ff //nolint:gosec // at most 16 bits are left
	case u >= 0x477ff000: // rounds to 2^16 or more
		return sign | 0x7c00
	case u >= 0x38800000: // normal: rebias, then round on the lower 13 bits
		u -= 0x38000000
		return sign | F16((u+0xfff+(u>>13&1))>>13)
	case u <= 0x33000000: // at most half of the smallest denormal
		return sign
	}
	// Denormal: shift the mantissa with its implicit bit into place.
	shift := 126 - u>>23
	m := u&0x007fffff | 0x00800000
	return sign | F16((m+(1<<(shift-1))-1+(m>>shift&1))>>shift) //nolint:gosec // at most 16 bits are left
}

// Float32 returns the number as a float32, exactly; a signalling NaN becomes quiet.
func (h F16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	e, m := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case e == 0x1f:
		if m != 0 {
			m |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	case e != 0:
		return math.Float32frombits(sign | (e+112)<<23 | m<<13)
	}
	// Zero or denormal: m units of 2^-24, which float32 holds exactly.
	return math.Float32frombits(sign | math.Float32bits(float32(m)*0x1p-24))
}

// String returns the number in decimal.
func (h F16) String() string { return strconv.FormatFloat(float64(h.Float32()), 'g', -1, 32) }

// ToBF16 rounds f to the nearest bfloat16, ties to even. Every NaN becomes 0x7fc0, as in PyTorch.
func ToBF16(f float32) BF16 {
	if f != f {
		return 0x7fc0
	}
	x := math.Float32bits(f)
	return BF16((x + 0x7fff + (x >> 16 & 1)) >> 16)
}

// Float32 returns the number as a float32, exactly.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// String returns the number in decimal.
func (b BF16) String() string { return strconv.FormatFloat(float64(b.Float32()), 'g', -1, 32) }

// float8 is a format of eight bits: a sign, an exponent and a mantissa. Go has no types for them; their elements are read
// and written as float32.
type float8 struct {
	mantissa int  // bits
	bias     int  // of the exponent
	largest  byte // the largest finite number; the code behind it is what larger ones become
	nan      byte
	unsigned bool // without a negative zero: its code is NaN
}

var float8s = map[DType]float8{
	Float8E5M2:     {mantissa: 2, bias: 15, largest: 0x7b, nan: 0x7f},
	Float8E4M3FN:   {mantissa: 3, bias: 7, largest: 0x7e, nan: 0x7f},
	Float8E5M2FNUZ: {mantissa: 2, bias: 16, largest: 0x7f, nan: 0x80, unsigned: true},
	Float8E4M3FNUZ: {mantissa: 3, bias: 8, largest: 0x7f, nan: 0x80, unsigned: true},
}

// magnitude returns the number of a code without sign, as if there were no special ones.
func (f float8) magnitude(code int) float64 {
	exponent, fraction := code>>f.mantissa, code&(1<<f.mantissa-1)
	if exponent == 0 {
		return math.Ldexp(float64(fraction), 1-f.bias-f.mantissa)
	}
	return math.Ldexp(float64(fraction+1<<f.mantissa), exponent-f.bias-f.mantissa)
}

// value returns the number that b stands for.
func (f float8) value(b byte) float32 {
	code, sign := int(b&0x7f), 1.0
	if b&0x80 != 0 {
		sign = -1
	}
	switch {
	case f.unsigned && b == f.nan:
		return float32(math.NaN())
	case code <= int(f.largest):
		return float32(math.Copysign(f.magnitude(code), sign))
	case f.largest == 0x7b && code == 0x7c: // only e5m2 has infinities
		return float32(math.Inf(int(sign)))
	}
	return float32(math.NaN())
}

// round returns the code of the number nearest to x, ties to even, as PyTorch converts.
func (f float8) round(x float64) byte {
	var sign byte
	if math.Signbit(x) {
		sign = 0x80
	}
	if math.IsNaN(x) {
		if f.unsigned {
			return f.nan
		}
		return sign | f.nan
	}
	x = math.Abs(x)
	low, high := 0, int(f.largest)+1 // the codes are in the order of their numbers
	for high-low > 1 {
		if middle := (low + high) / 2; f.magnitude(middle) <= x {
			low = middle
		} else {
			high = middle
		}
	}
	below, above := x-f.magnitude(low), f.magnitude(high)-x
	if above < below || above == below && high%2 == 0 {
		low = high
	}
	switch {
	case low > int(f.largest):
		if f.unsigned {
			return f.nan
		}
		return sign | (f.largest + 1) // an infinity, or NaN where there is none
	case low == 0 && f.unsigned:
		return 0
	}
	return sign | byte(low)
}
