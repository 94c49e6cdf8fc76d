// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

func bytesOf[T any](v []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(zero)))
}

// run reduces two slices of one type.
func into[T tensor.Element](a, b []T, op Op) []T {
	a = slices.Clone(a)
	Into(bytesOf(a), bytesOf(b), tensor.TypeOf[T](), op)
	return a
}

func TestWhatIsSupported(t *testing.T) {
	t.Parallel()
	for _, dt := range allTypes {
		for _, op := range allOps {
			bits := op == And || op == Or || op == Xor
			order := op == Min || op == Max
			want := true
			if bits {
				want = !dt.Floating() && !dt.Complex()
			} else if order {
				want = !dt.Complex()
			}
			if Supported(dt, op) != want {
				t.Errorf("%v of %v: supported %v", op, dt, !want)
			}
		}
	}
	if Supported(tensor.DType(12), Sum) || Supported(tensor.Float32, Op(99)) || Supported(tensor.DType(200), Sum) {
		t.Error("unknown types and operators are not supported")
	}
}

// TestSemantics spells out the cases in which gloo differs from what one may expect.
func TestSemantics(t *testing.T) {
	t.Parallel()
	nan, zero := float32(math.NaN()), float32(0)
	minus := float32(math.Copysign(0, -1))
	a, b := []float32{nan, 1, zero, minus, 3}, []float32{1, nan, minus, zero, 2}
	same := func(x, y []float32) bool {
		return slices.EqualFunc(x, y, func(p, q float32) bool { return math.Float32bits(p) == math.Float32bits(q) })
	}
	if got := into(a, b, Min); !same(got, []float32{nan, 1, zero, minus, 2}) {
		t.Errorf("min keeps the first operand unless the second is less: %v", got)
	}
	if got := into(a, b, Max); !same(got, []float32{nan, 1, zero, minus, 3}) {
		t.Errorf("max keeps the first operand unless it is less: %v", got)
	}
	if got := into([]int8{100, -128}, []int8{100, -1}, Sum); !slices.Equal(got, []int8{-56, 127}) {
		t.Errorf("integers wrap: %v", got)
	}
	if got := into([]bool{true, true}, []bool{true, false}, And); !slices.Equal(got, []bool{true, false}) {
		t.Errorf("and of bools: %v", got)
	}
	if got := into([]complex64{1 + 2i}, []complex64{3 - 1i}, Product); got[0] != 5+5i {
		t.Errorf("product of complex numbers: %v", got)
	}
	if got := into([]tensor.F16{0x7e01}, []tensor.F16{0x3c00}, Sum); got[0] != 0x7fff {
		t.Errorf("gloo's NaN is 0x7fff: %#x", uint16(got[0]))
	}
	if got := into([]tensor.BF16{0xff81}, []tensor.BF16{0x3f80}, Sum); got[0] != 0x7fc0 {
		t.Errorf("PyTorch's NaN is 0x7fc0: %#x", uint16(got[0]))
	}
	one, large := []tensor.F16{0x3c00}, []tensor.F16{0x7380} // 1.0 and 15360.0
	if got := into(one, large, Max); got[0] != 0x7380 {
		t.Errorf("max(1, 15360) among Go ranks: %v", got)
	}
	Gloo(bytesOf(one), bytesOf(large), tensor.Float16, Max)
	if one[0] != 0x3c00 {
		t.Errorf("max(1, 15360) as gloo has it: %v", one)
	}
}

func TestMany(t *testing.T) {
	t.Parallel()
	const n = 5000
	var srcs [][]byte
	want := make([]int32, n)
	for i := range 5 {
		v := make([]int32, n)
		for j := range v {
			v[j] = int32(i*j + i)
			want[j] += v[j]
		}
		srcs = append(srcs, bytesOf(v))
	}
	got := make([]int32, n)
	Many(bytesOf(got), srcs, tensor.Int32, Sum)
	if !slices.Equal(got, want) {
		t.Error("sum of five")
	}
	Many(srcs[0], srcs, tensor.Int32, Sum) // in place
	if string(srcs[0]) != string(bytesOf(want)) {
		t.Error("sum of five in place")
	}
	Many(bytesOf(got), srcs[1:2], tensor.Int32, Sum)
	if string(bytesOf(got)) != string(srcs[1]) {
		t.Error("one operand is copied")
	}
}

func TestDivide(t *testing.T) {
	t.Parallel()
	f := []float32{3, -1, float32(math.Inf(1)), 0.3}
	Divide(bytesOf(f), tensor.Float32, 3)
	if f[0] != 1 || f[1] != float32(-1)/3 || !math.IsInf(float64(f[2]), 1) || f[3] != float32(0.3)/3 {
		t.Error(f)
	}
	many := make([]float32, 8*5+3) // whole blocks, and a rest
	for i := range many {
		many[i] = float32(i-20) * 1.1
	}
	many[0], many[1] = math.Float32frombits(3), float32(math.Inf(-1)) // a denormal
	quotients := slices.Clone(many)
	for i := range quotients {
		quotients[i] /= 7
	}
	if Divide(bytesOf(many), tensor.Float32, 7); !slices.Equal(many, quotients) {
		t.Errorf("%v, want %v", many, quotients)
	}
	i := []int32{7, -7, math.MinInt32}
	Divide(bytesOf(i), tensor.Int32, 2)
	if !slices.Equal(i, []int32{3, -3, math.MinInt32 / 2}) {
		t.Error(i)
	}
	u := []uint8{255, 3}
	Divide(u, tensor.Uint8, 2)
	if !slices.Equal(u, []uint8{127, 1}) {
		t.Error(u)
	}
	c := []complex128{2 + 4i}
	Divide(bytesOf(c), tensor.Complex128, 2)
	if c[0] != 1+2i {
		t.Error(c)
	}
	h, b := []tensor.F16{tensor.ToF16(1)}, []tensor.BF16{tensor.ToBF16(1)}
	Divide(bytesOf(h), tensor.Float16, 3)
	Divide(bytesOf(b), tensor.BFloat16, 3)
	if h[0] != tensor.ToF16(float32(1)/3) || b[0] != tensor.ToBF16(float32(1)/3) {
		t.Error(h, b)
	}
	// Every type at every alignment, with a divisor of one and with one that changes everything to zero.
	for _, dt := range allTypes {
		for shift := range 8 {
			raw := make([]byte, 3000*dt.Size()+shift)
			for i := range raw {
				raw[i] = byte(i * 7)
			}
			part := raw[shift:]
			before := slices.Clone(part)
			if Divide(part, dt, 1); string(part) != string(before) {
				t.Errorf("%v divided by one", dt)
			}
			aligned := slices.Clone(before)
			Divide(aligned, dt, 3)
			if Divide(part, dt, 3); string(part) != string(aligned) {
				t.Errorf("%v at alignment %d", dt, shift)
			}
		}
	}
}

func TestMistakesPanic(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"lengths":   func() { Into(make([]byte, 4), make([]byte, 8), tensor.Float32, Sum) },
		"element":   func() { Into(make([]byte, 6), make([]byte, 6), tensor.Float32, Sum) },
		"undefined": func() { Into(make([]byte, 4), make([]byte, 4), tensor.Float32, Xor) },
		"operands":  func() { Many(make([]byte, 4), nil, tensor.Float32, Sum) },
		"divisor":   func() { Divide(make([]byte, 4), tensor.Float32, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestNoAllocation(t *testing.T) {
	a, b := make([]byte, 4096), make([]byte, 4096)
	srcs := [][]byte{a, b, b}
	if n := testing.AllocsPerRun(100, func() {
		Into(a, b, tensor.Float32, Sum)
		Gloo(a, b, tensor.Float16, Max)
		Many(a, srcs, tensor.Int64, Min)
		Divide(a, tensor.BFloat16, 3)
		Divide(a[1:4095], tensor.Float16, 3)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkInto(b *testing.B) {
	for _, dt := range allTypes {
		for _, op := range []Op{Sum, Product, Max} {
			if !Supported(dt, op) {
				continue
			}
			for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
				dst, src := make([]byte, size), make([]byte, size)
				b.Run(fmt.Sprintf("%v/%v/%dKiB", dt, op, size>>10), func(b *testing.B) {
					b.SetBytes(int64(size))
					for b.Loop() {
						Into(dst, src, dt, op)
					}
				})
			}
		}
	}
}

func BenchmarkPortable(b *testing.B) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16, tensor.Int64} {
		const size = 64 << 10
		dst, src := make([]uint64, size/8), make([]uint64, size/8)
		b.Run(fmt.Sprintf("%v/sum/64KiB", dt), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				portable[dt][Sum](unsafe.Pointer(&dst[0]), unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), size/dt.Size())
			}
		})
	}
}

func BenchmarkMany(b *testing.B) {
	for _, n := range []int{2, 4, 8} {
		const size = 64 << 10
		srcs := make([][]byte, n)
		for i := range srcs {
			srcs[i] = make([]byte, size)
		}
		dst := make([]byte, size)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				Many(dst, srcs, tensor.Float32, Sum)
			}
		})
	}
}
