// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"strconv"
)

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
