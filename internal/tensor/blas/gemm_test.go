// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import (
	"math"
	"math/rand/v2"
	"testing"
)

// layouts makes a rows by cols matrix of small integers in one of several layouts. Products and sums of them are exact
// in both types, so that every kernel must give the same bits.
func layouts[T Float](r *rand.Rand, rows, cols, layout int) Matrix[T] {
	m := Matrix[T]{Rows: rows, Cols: cols}
	gap := layout / 3
	switch layout % 3 {
	case 0:
		m.RowStride, m.ColStride = cols+gap, 1
	case 1:
		m.RowStride, m.ColStride = 1, rows+gap
	default:
		m.RowStride, m.ColStride = 2*(cols+gap), 2
	}
	m.Data = make([]T, 1+max(0, rows-1)*m.RowStride+max(0, cols-1)*m.ColStride)
	for i := range m.Data {
		m.Data[i] = T(r.IntN(9) - 4)
	}
	return m
}

func (m Matrix[T]) at(i, j int) T { return m.Data[i*m.RowStride+j*m.ColStride] }

func checkProduct[T Float](t *testing.T, kern kernel[T], r *rand.Rand, m, n, k, layout, workers int, add bool) {
	t.Helper()
	a, b := layouts[T](r, m, k, layout%6), layouts[T](r, k, n, layout/6%6)
	gap := layout % 3
	c := Matrix[T]{make([]T, m*(n+gap)), m, n, n + gap, 1}
	for i := range c.Data {
		c.Data[i] = T(i%7 - 3)
	}
	old := append([]T(nil), c.Data...)
	multiply(kern, c, a, b, add, workers)
	for i := range m {
		for j := range n + gap {
			at := i*(n+gap) + j
			want := old[at]
			if j < n {
				if !add {
					want = 0
				}
				for p := range k {
					want += a.at(i, p) * b.at(p, j)
				}
			}
			if c.Data[at] != want {
				t.Fatalf("%s %dx%dx%d layout %d workers %d add %v: element (%d, %d) is %v, want %v", kern.name, m, n, k, layout,
					workers, add, i, j, c.Data[at], want)
			}
		}
	}
}

func testKernel[T Float](t *testing.T, kern kernel[T]) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		checkProduct(t, kern, r, r.IntN(40), r.IntN(70), r.IntN(30), i, 1+i%5, i%2 == 0)
	}
	// Across the borders of the blocks.
	checkProduct(t, kern, r, blockM+7, 9, blockK+3, 1, 1, false)
	checkProduct(t, kern, r, 3, blockN+5, 5, 0, 3, true)
	checkProduct(t, kern, r, 41, 35, 2*blockK+1, 7, 4, true)
}

func TestProducts(t *testing.T) {
	t.Parallel()
	for _, kern := range kernels[float32]() {
		testKernel(t, kern)
	}
	for _, kern := range kernels[float64]() {
		testKernel(t, kern)
	}
}

// TestNaN: a zero does not hide what is not a number.
func TestNaN(t *testing.T) {
	t.Parallel()
	for _, kern := range kernels[float32]() {
		nan := float32(math.NaN())
		c := make([]float32, 4)
		multiply(kern, Dense(c, 2, 2), Dense([]float32{0, 0, 1, 0}, 2, 2), Dense([]float32{nan, 1, 1, float32(math.Inf(1))}, 2, 2),
			false, 1)
		if c[0] == c[0] || c[1] == c[1] || c[2] == c[2] {
			t.Errorf("%s: %v", kern.name, c)
		}
	}
}

func TestVectors(t *testing.T) {
	t.Parallel()
	testVectors[float32](t)
	testVectors[float64](t)
}

func testVectors[T Float](t *testing.T) {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 70 {
		x, y, sum, product := make([]T, n), make([]T, n+3), make([]T, n), make([]T, n)
		for i := range x {
			x[i], y[i] = T(r.NormFloat64()), T(r.NormFloat64())
		}
		before := append([]T(nil), y...)
		Add(sum, x, y)
		Mul2(product, x, y)
		AXPY(T(0.3), x, y)
		for i := range before {
			want := before[i]
			if i < n {
				if sum[i] != x[i]+want || product[i] != x[i]*want {
					t.Fatalf("element %d of %d: sum %v, product %v", i, n, sum[i], product[i])
				}
				step := T(0.3) * x[i]
				want += T(step) //nolint:unconvert // as in AXPY
			}
			if y[i] != want {
				t.Fatalf("element %d of %d: %v, want %v", i, n, y[i], want)
			}
		}
	}
}

// FuzzKernels compares every kernel with the plain loop, whatever the sizes and layouts.
func FuzzKernels(f *testing.F) {
	f.Add(uint64(1), uint8(8), uint8(32), uint8(9), uint8(0), false)
	f.Add(uint64(2), uint8(0), uint8(3), uint8(1), uint8(35), true)
	f.Add(uint64(3), uint8(17), uint8(65), uint8(0), uint8(14), true)
	f.Fuzz(func(t *testing.T, seed uint64, m, n, k, layout uint8, add bool) {
		for _, kern := range kernels[float32]() {
			checkProduct(t, kern, rand.New(rand.NewPCG(seed, 1)), int(m%64), int(n), int(k%64), int(layout), 1+int(layout)%4, add)
		}
		for _, kern := range kernels[float64]() {
			checkProduct(t, kern, rand.New(rand.NewPCG(seed, 1)), int(m%64), int(n), int(k%64), int(layout), 1+int(layout)%4, add)
		}
	})
}

func BenchmarkMul1024(b *testing.B) {
	const n = 1024
	x, y, z := make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)
	for i := range x {
		x[i], y[i] = float32(i%13), float32(i%7)
	}
	for _, kern := range kernels[float32]()[1:] {
		for _, workers := range []int{1, 2} {
			b.Run(kern.name+"/"+string(rune('0'+workers)), func(b *testing.B) {
				for b.Loop() {
					multiply(kern, Dense(z, n, n), Dense(x, n, n), Dense(y, n, n), false, workers)
				}
				b.ReportMetric(2*n*n*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOPS")
			})
		}
	}
}

// BenchmarkFewRows is a layer with a small batch: forward, and the gradients of its input and of its weights.
func BenchmarkFewRows(b *testing.B) {
	const batch, n = 16, 2048
	x, w, y := make([]float32, batch*n), make([]float32, n*n), make([]float32, batch*n)
	for i := range w {
		w[i] = float32(i % 7)
	}
	in, weights, out := Dense(x, batch, n), Dense(w, n, n), Dense(y, batch, n)
	for name, run := range map[string]func(){
		"forward": func() { Mul(out, in, weights.T(), false) },
		"input":   func() { Mul(out, in, weights, false) },
		"weights": func() { Mul(weights, out.T(), in, false) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				run()
			}
		})
	}
}
