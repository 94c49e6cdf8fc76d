// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import "math"

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
