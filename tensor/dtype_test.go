// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
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

// TestFloat8 reads every code and writes its number again, and rounds as PyTorch does.
func TestFloat8(t *testing.T) {
	t.Parallel()
	for dt, f := range float8s {
		for code := range 256 {
			v := f.value(byte(code))
			if math.IsNaN(float64(v)) {
				continue
			}
			if back := f.round(float64(v)); back != byte(code) {
				t.Errorf("%v %#02x is %v, which becomes %#02x", dt, code, v, back)
			}
		}
	}
	inf := math.Inf(1)
	for _, c := range []struct {
		dt   DType
		in   float64
		want float64
	}{
		{Float8E4M3FN, 448, 448},
		{Float8E4M3FN, 464, 448}, // a tie, to even
		{Float8E4M3FN, 465, math.NaN()},
		{Float8E4M3FN, inf, math.NaN()},
		{Float8E4M3FN, 0.001953125, 0.001953125}, // the smallest
		{Float8E4M3FN, 0.0009765625, 0},          // half of it
		{Float8E4M3FN, 1.0625, 1},
		{Float8E4M3FN, 1.1875, 1.25},
		{Float8E5M2, 57344, 57344},
		{Float8E5M2, 61440, inf},
		{Float8E5M2, -inf, -inf},
		{Float8E5M2, 1.1, 1},
		{Float8E4M3FNUZ, 240, 240},
		{Float8E4M3FNUZ, 248, math.NaN()},
		{Float8E5M2FNUZ, 57344, 57344},
		{Float8E5M2FNUZ, -1e-9, 0},
		{Float8E5M2FNUZ, math.NaN(), math.NaN()},
	} {
		x := Must(Full(c.dt, c.in, 1))
		got, err := x.Item()
		v, _ := got.(float32)
		if err != nil || float64(v) != c.want && !(math.IsNaN(float64(v)) && math.IsNaN(c.want)) {
			t.Errorf("%v of %v: %v, %v, want %v", c.dt, c.in, got, err, c.want)
		}
	}
}

// TestLaterTypes keeps the values of the types that PyTorch 2 has added, and of complex halves.
func TestLaterTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		x    *Tensor
		text string
		last any
	}{
		{Must(Of([]uint16{1, 65535})), "tensor([    1, 65535], dtype=torch.uint16)", uint16(65535)},
		{Must(Of([][]uint32{{1 << 31}})), "tensor([[2147483648]], dtype=torch.uint32)", uint32(1 << 31)},
		{Must(From([]uint64{math.MaxUint64})), "tensor([18446744073709551615], dtype=torch.uint64)", uint64(math.MaxUint64)},
		{Must(Full(Float8E4M3FN, 1.5, 2)), "tensor([1.5000, 1.5000], dtype=torch.float8_e4m3fn)", float32(1.5)},
		{Must(Full(Complex32, 1-2i, 1)), "tensor([1.-2.j], dtype=torch.complex32)", complex64(1 - 2i)},
	} {
		shape := c.x.Shape()
		idx := make([]int, len(shape))
		for i := range idx {
			idx[i] = -1
		}
		if v, err := c.x.At(idx...); err != nil || v != c.last {
			t.Errorf("%v: the last element is %v, %v", c.x, v, err)
		}
		if c.x.String() != c.text {
			t.Errorf("printed %s, want %s", c.x, c.text)
		}
		y := Must(Must(c.x.Transpose(0, len(shape)-1)).Clone())
		if !Equal(Must(y.Transpose(0, len(shape)-1)), c.x) || !SameBits(y, Must(y.Clone())) {
			t.Errorf("%v: a copy differs", c.x)
		}
	}
	x := Must(New(Uint64, 1))
	if err := x.Set(uint64(math.MaxUint64), 0); err != nil {
		t.Error(err)
	}
	for _, bad := range []any{-1, -0.5, "a"} {
		if err := x.Set(bad, 0); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%v in a %v: %v", bad, x.DType(), err)
		}
	}
	if err := Must(New(Uint16, 1)).Set(65536, 0); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("65536 in a uint16: %v", err)
	}
	if err := Must(New(Int64, 1)).Set(uint64(math.MaxUint64), 0); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("the largest uint64 in an int64: %v", err)
	}
}
