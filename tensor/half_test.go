// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryHalfSurvivesFloat32(t *testing.T) {
	t.Parallel()
	for i := range 1 << 16 {
		h := F16(i)
		f := h.Float32()
		if f != f {
			if got := ToF16(f); got != h|0x200 {
				t.Fatalf("%#04x: NaN came back as %#04x", i, got)
			}
		} else if got := ToF16(f); got != h {
			t.Fatalf("%#04x -> %v -> %#04x", i, f, got)
		}
		b := BF16(i)
		if f := b.Float32(); f == f && ToBF16(f) != b {
			t.Fatalf("bfloat16 %#04x -> %v -> %#04x", i, f, ToBF16(f))
		}
	}
}

// nearest checks the definition of rounding: no neighbour is closer, and a tie goes to the even one.
func nearest(t *rapid.T, f float32, bits uint16, value func(uint16) float64, top float64) {
	x := math.Abs(float64(f))
	if x >= top {
		if !math.IsInf(value(bits), 0) {
			t.Fatalf("%v became %v, not infinite", f, value(bits))
		}
		return
	}
	mag := bits & 0x7fff
	err := math.Abs(value(mag) - x)
	for _, other := range []int{int(mag) - 1, int(mag) + 1} {
		if other < 0 || math.IsInf(value(uint16(other)), 0) {
			continue
		}
		d := math.Abs(value(uint16(other)) - x)
		if d < err || d == err && mag&1 == 1 {
			t.Fatalf("%v became %#04x (%v), %#04x (%v) is nearer or even", f, bits, value(bits), other, value(uint16(other)))
		}
	}
	if (bits>>15 == 1) != math.Signbit(float64(f)) {
		t.Fatalf("%v lost its sign: %#04x", f, bits)
	}
}

func TestHalvesRoundToNearestEven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		if rapid.Bool().Draw(t, "in range") {
			h := rapid.Uint32Range(0, 0x7bff).Draw(t, "half")
			f = math.Float32frombits(math.Float32bits(F16(h).Float32()) + rapid.Uint32Range(0, 0x2000).Draw(t, "above"))
		}
		if f != f {
			return
		}
		nearest(t, f, uint16(ToF16(f)), func(b uint16) float64 { return float64(F16(b).Float32()) }, 65520)
		nearest(t, f, uint16(ToBF16(f)), func(b uint16) float64 { return float64(BF16(b).Float32()) }, 0x1.ffp127)
	})
}
