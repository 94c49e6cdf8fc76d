// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensor checks that Go tensors print as PyTorch's do and that halves convert to the same bits.
package tensor

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// script rebuilds tensors from their bits and prints their reprs as JSON strings.
const script = `
import sys, json, torch
for line in sys.stdin:
    dtype, shape, strides, offset, bits = line.rstrip("\n").split(" ")
    numbers = lambda s: [int(x) for x in s.split(",") if x]
    data = bytearray.fromhex(bits)
    t = torch.frombuffer(data, dtype=getattr(torch, dtype)) if data else torch.empty(0, dtype=getattr(torch, dtype))
    print(json.dumps(repr(torch.as_strided(t, numbers(shape), numbers(strides), int(offset)))), flush=True)
`

func numbers(v []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]") }

func samples(t *testing.T) []*tensor.Tensor {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	inf, nan := math.Inf(1), math.NaN()
	values := []any{
		float32(1.5), int64(-3), true, uint8(7), complex64(1 - 2i),
		[]float32{},
		[]int64{},
		[][]float64{},
		[]float32{1, 2, 3},
		[]float64{1, 2.5},
		[]float32{1e-5, 1},
		[]float32{1e9, 1},
		[]float32{100000, 1},
		[]float32{0.001, 0.5},
		[]float64{inf, -inf, nan, 1},
		[]float64{nan},
		[]float64{inf, 0.25},
		[]float64{0, 0},
		[]float32{-0.5, 123.456},
		[]bool{true, false},
		[][]int32{{1, -200}, {3, 4}},
		[]int8{-128, 127},
		[]int16{1, 2},
		[]complex64{1 + 2i, -0.5 - 1e-7i},
		[]complex128{complex(inf, -1), complex(1, nan)},
		[]tensor.F16{tensor.ToF16(0.1), tensor.ToF16(65504)},
		[]tensor.BF16{tensor.ToBF16(0.1), tensor.ToBF16(3e38)},
		[][][]float32{{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}},
		[]float64{123456789, 2},
		[]float64{1e-3, 2.5},
	}
	var out []*tensor.Tensor
	for _, v := range values {
		x, err := tensor.Of(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
	for _, shape := range [][]int{
		{30},
		{7, 13},
		{2, 3, 4},
		{1001},
		{40, 40},
		{8, 7, 20},
		{3, 2, 2, 100},
		{0, 3},
		{1, 1, 1},
		{1500, 2},
		{5, 300},
	} {
		data := make([]float32, product(shape))
		ints := make([]int64, len(data))
		for i := range data {
			data[i], ints[i] = float32(r.NormFloat64()), r.Int64N(2000)-1000
		}
		out = append(out, tensor.Must(tensor.From(data, shape...)), tensor.Must(tensor.From(ints, shape...)))
		if len(shape) > 1 {
			out = append(out, tensor.Must(out[len(out)-1].Transpose(0, 1)))
		}
	}
	return out
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func TestPrintsAsPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		p := torch.Start(t, torchtest.Script{Source: script})
		for _, x := range samples(t) {
			bits, err := x.Storage().Bytes()
			if err != nil {
				t.Fatal(err)
			}
			p.Send(t, fmt.Sprintf("%v %s %s %d %s", x.DType(), numbers(x.Shape()), numbers(x.Strides()), x.Offset(),
				hex.EncodeToString(bits)))
			var want string
			if err := json.Unmarshal([]byte(p.Line(t)), &want); err != nil {
				t.Fatal(err)
			}
			if got := x.String(); got != want {
				t.Errorf("shape %v of %v:\n%s\nPyTorch:\n%s", x.Shape(), x.DType(), got, want)
			}
		}
	})
}

// halves prints checksums of the halves made from every float32 with given lower bits. NaN is left out: which one comes
// out differs between PyTorch's own scalar and vector code.
const halves = `
import torch, sys
upper = torch.arange(0, 1 << 16, dtype=torch.int64) << 16
for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001, 0xffff]:
    bits = upper | low
    f = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        h = f.nan_to_num(nan=0.0, posinf=float('inf'), neginf=float('-inf')).to(dtype).view(torch.int16).to(torch.int64) & 0xffff
        print(int((h * (torch.arange(0, 1 << 16) % 8191 + 1)).sum().item()), flush=True)
`

func TestHalvesConvertAsInPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		p := torch.Start(t, torchtest.Script{Source: halves})
		for _, low := range []uint32{0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001, 0xffff} {
			var f16, bf16 int64
			for u := range int64(1 << 16) {
				f := math.Float32frombits(uint32(u)<<16 | low)
				if f != f {
					continue
				}
				f16 += int64(tensor.ToF16(f)) * (u%8191 + 1)
				bf16 += int64(tensor.ToBF16(f)) * (u%8191 + 1)
			}
			for _, want := range []struct {
				name string
				sum  int64
			}{{"float16", f16}, {"bfloat16", bf16}} {
				if got := p.Line(t); got != strconv.FormatInt(want.sum, 10) {
					t.Errorf("%s with low bits %#x: checksum %d, PyTorch %s", want.name, low, want.sum, got)
				}
			}
		}
	})
}
