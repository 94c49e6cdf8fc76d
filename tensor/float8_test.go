// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"errors"
	"math"
	"testing"

	"github.com/cohort-dist/cohort"
)

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
