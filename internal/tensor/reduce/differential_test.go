// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/tensor"
)

var allTypes = []tensor.DType{
	tensor.Uint8, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Float16, tensor.Float32, tensor.Float64,
	tensor.Complex64, tensor.Complex128, tensor.Bool, tensor.BFloat16,
}

var allOps = []Op{Sum, Product, Min, Max, And, Or, Xor, Avg}

// special returns the bit patterns of one scalar of the type that arithmetic treats differently from the rest.
func special(dt tensor.DType) []uint64 {
	switch dt {
	case tensor.Float16:
		return []uint64{
			0, 0x8000, 1, 0x8001, 0x3ff, 0x83ff, 0x400, 0x3c00, 0xbc00, 0x7380, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00,
			0xfe00, 0x7fff, 0xffff, 0xfd55, 0x3555, 0x6400, 0x0200, 0x1800,
		}
	case tensor.BFloat16:
		return []uint64{
			0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc0, 0x7fff,
			0xffff, 0x3eab, 0x0100, 0x4380,
		}
	case tensor.Float32, tensor.Complex64:
		return []uint64{
			0, 0x80000000, 1, 0x80000001, 0x7fffff, 0x800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000,
			0xff800000, 0x7f800001, 0xff800123, 0x7fc00000, 0xffc00000, 0x7fc12345, 0x3eaaaaab, 0x4b800000, 0x33000000, 0x33000001,
		}
	case tensor.Float64, tensor.Complex128:
		return []uint64{
			0, 1 << 63, 1, 1<<63 | 1, 1<<52 - 1, 1 << 52, 0x3ff0000000000000, 0xbff0000000000000, 0x7fefffffffffffff,
			0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0x7ff8000000000000, 0xfff8000000000123, 0x3fd5555555555555,
		}
	default:
		return []uint64{
			0, 1, 2, 3, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1<<63 - 1,
			1 << 63, 1<<64 - 1, 0x5555555555555555,
		}
	}
}

// scalarSize is the size of the parts of an element.
func scalarSize(dt tensor.DType) int {
	if dt.Complex() {
		return dt.Size() / 2
	}
	return dt.Size()
}

// fill writes elements, half of them special, half random bits.
func fill(b []byte, dt tensor.DType, random func() uint64) {
	sp, size := special(dt), scalarSize(dt)
	var w [8]byte
	for i := 0; i+size <= len(b); i += size {
		v := random()
		if v&1 == 0 {
			v = sp[(v>>1)%uint64(len(sp))]
		} else {
			v = random()
		}
		binary.LittleEndian.PutUint64(w[:], v)
		copy(b[i:i+size], w[:])
	}
}

// reference runs the portable kernel on aligned copies.
func reference(a, b []byte, dt tensor.DType, op Op, gloo bool) []byte {
	x, y := make([]uint64, len(a)/8+2), make([]uint64, len(b)/8+2)
	xs := unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*8)
	ys := unsafe.Slice((*byte)(unsafe.Pointer(&y[0])), len(y)*8)
	copy(xs, a)
	copy(ys, b)
	k := portable[dt][kernelOf(op)]
	if gloo && dt == tensor.Float16 {
		k = glooF16Kernels[kernelOf(op)]
	}
	k(unsafe.Pointer(&x[0]), unsafe.Pointer(&x[0]), unsafe.Pointer(&y[0]), len(a)/dt.Size())
	return xs[:len(a)]
}

// compareAll checks every entry point against the portable kernel, with guard bytes around the results.
func compareAll(t interface{ Fatalf(string, ...any) }, a, b []byte, dt tensor.DType, op Op, shift int) {
	const guard = 64
	room := func(content []byte, at int) (whole, part []byte) {
		whole = bytes.Repeat([]byte{0xa5}, guard+at+len(content)+guard)
		part = whole[guard+at : guard+at+len(content)]
		copy(part, content)
		return whole, part
	}
	check := func(what string, whole, got, want []byte) {
		if !bytes.Equal(got, want) {
			size := scalarSize(dt)
			for i := 0; i < len(got); i += size {
				if !bytes.Equal(got[i:i+size], want[i:i+size]) {
					t.Fatalf("%s %v of %v: element %d of %d: %x op %x = %x, want %x", what, op, dt, i/size, len(got)/size,
						a[i:i+size], b[i:i+size], got[i:i+size], want[i:i+size])
				}
			}
		}
		at := len(whole) - len(got) - guard
		for i, v := range whole {
			if (i < at || i >= at+len(got)) && v != 0xa5 {
				t.Fatalf("%s %v of %v wrote outside its room at %d", what, op, dt, i-at)
			}
		}
	}
	want := reference(a, b, dt, op, false)
	_, pa := room(a, shift%7)
	_, pb := room(b, shift%5)
	wd, pd := room(a, shift%11)
	Into(pd, pb, dt, op)
	check("into", wd, pd, want)
	wd, pd = room(make([]byte, len(a)), shift%13)
	Combine(pd, pa, pb, dt, op)
	check("combine", wd, pd, want)
	wd, pd = room(b, shift%3)
	Combine(pd, pa, pd, dt, op)
	check("combine into b", wd, pd, want)
	wd, pd = room(a, shift%9)
	Gloo(pd, pb, dt, op)
	check("gloo", wd, pd, reference(a, b, dt, op, true))
	// What other processors run.
	wd, pd = room(a, shift%7)
	if len(a) > 0 {
		p := unsafe.Pointer(&pd[0])
		runPortable(portable[dt][kernelOf(op)], p, p, unsafe.Pointer(&pb[0]), len(a)/dt.Size(), uintptr(dt.Size()))
	}
	check("portable", wd, pd, want)
}

func TestVectorAgreesWithPortable(t *testing.T) {
	t.Parallel()
	for _, dt := range allTypes {
		for _, op := range allOps {
			if !Supported(dt, op) {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", dt, op), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(uint64(dt), uint64(op)))
				for n := range 150 {
					a, b := make([]byte, n*dt.Size()), make([]byte, n*dt.Size())
					fill(a, dt, r.Uint64)
					fill(b, dt, r.Uint64)
					compareAll(t, a, b, dt, op, r.IntN(1000))
				}
			})
		}
	}
}

// TestSpecialPairs puts every special value against every other.
func TestSpecialPairs(t *testing.T) {
	t.Parallel()
	for _, dt := range allTypes {
		sp, size := special(dt), scalarSize(dt)
		var a, b []byte
		for _, x := range sp {
			for _, y := range sp {
				a, b = binary.LittleEndian.AppendUint64(a, x), binary.LittleEndian.AppendUint64(b, y)
				a, b = a[:len(a)-8+size], b[:len(b)-8+size]
			}
		}
		whole := len(a) - len(a)%dt.Size()
		for _, op := range allOps {
			if Supported(dt, op) {
				compareAll(t, a[:whole], b[:whole], dt, op, 0)
			}
		}
	}
}

// TestAllHalves runs every half against a few partners.
func TestAllHalves(t *testing.T) {
	t.Parallel()
	for _, dt := range []tensor.DType{tensor.Float16, tensor.BFloat16} {
		a, b := make([]byte, 2<<16), make([]byte, 2<<16)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(a[2*i:], uint16(i))
		}
		for n, partner := range special(dt)[6:12] {
			for i := range 1 << 16 {
				binary.LittleEndian.PutUint16(b[2*i:], uint16(partner))
			}
			op := []Op{Sum, Product, Min, Max, Sum, Max}[n]
			compareAll(t, a, b, dt, op, 0)
		}
	}
}

func TestRandomBuffers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dt := rapid.SampledFrom(allTypes).Draw(t, "dtype")
		op := rapid.SampledFrom(allOps).Draw(t, "op")
		if !Supported(dt, op) {
			t.Skip("undefined")
		}
		n := rapid.IntRange(0, 700).Draw(t, "n")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		a, b := make([]byte, n*dt.Size()), make([]byte, n*dt.Size())
		fill(a, dt, r.Uint64)
		fill(b, dt, r.Uint64)
		compareAll(t, a, b, dt, op, rapid.IntRange(0, 1000).Draw(t, "shift"))
	})
}

func FuzzVectorAgreesWithPortable(f *testing.F) {
	for _, dt := range allTypes {
		sp := special(dt)
		var seed []byte
		for _, v := range sp {
			seed = binary.LittleEndian.AppendUint64(seed, v)
		}
		f.Add(uint8(dt), uint8(Sum), uint8(3), append(seed, seed...))
	}
	f.Fuzz(func(t *testing.T, d, o, shift uint8, data []byte) {
		dt, op := tensor.DType(d%16), Op(o%uint8(numOps))
		if !Supported(dt, op) || len(data) > 1<<14 {
			return
		}
		n := len(data) / 2 / dt.Size() * dt.Size()
		compareAll(t, data[:n], data[n:2*n], dt, op, int(shift))
	})
}
