// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import (
	"runtime"
	"sync"
	"unsafe"
)

// Float is the element type of a product.
type Float interface{ float32 | float64 }

// Matrix is a matrix in memory: element (i, j) is Data[i*RowStride+j*ColStride].
type Matrix[T Float] struct {
	Data                 []T
	Rows, Cols           int
	RowStride, ColStride int
}

// T returns the transposed matrix over the same memory.
func (m Matrix[T]) T() Matrix[T] {
	m.Rows, m.Cols, m.RowStride, m.ColStride = m.Cols, m.Rows, m.ColStride, m.RowStride
	return m
}

// Dense returns a row-major matrix.
func Dense[T Float](data []T, rows, cols int) Matrix[T] {
	return Matrix[T]{data, rows, cols, cols, 1}
}

func (m Matrix[T]) check() {
	if m.Rows < 0 || m.Cols < 0 || m.RowStride < 0 || m.ColStride < 0 {
		panic("blas: negative size or stride")
	}
	if m.Rows > 0 && m.Cols > 0 && (m.Rows-1)*m.RowStride+(m.Cols-1)*m.ColStride >= len(m.Data) {
		panic("blas: the matrix is larger than its memory")
	}
}

// kernel multiplies a panel of mr rows by a panel of nr columns, both k long, into a row-major tile of c. It adds to what is
// there, or overwrites it. Rows of a and c lie rowA and rowC elements apart, the nr elements of a row of b side by side; stepA and
// stepB lead along the panels.
type kernel[T Float] struct {
	name   string
	mr, nr int
	run    func(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)
}

// The blocks of the three loops. A panel of b of blockK rows stays in the first-level cache while a block of a of blockM
// rows is streamed from the second.
const (
	blockM = 240 // a multiple of 6 and 8, the rows of the kernels
	blockN = 3072
	blockK = 256
)

// worthSharing is the number of multiplications from which a second goroutine pays for itself.
const worthSharing = 1 << 19

// Mul sets c to a*b, or adds a*b to c. The rows of c must be contiguous (ColStride 1), and c must not overlap a or b. It
// panics when the sizes do not fit: callers check shapes, which come from users.
func Mul[T Float](c, a, b Matrix[T], add bool) {
	multiply(best[T](), c, a, b, add, runtime.GOMAXPROCS(0))
}

func multiply[T Float](kern kernel[T], c, a, b Matrix[T], add bool, workers int) {
	c.check()
	a.check()
	b.check()
	if a.Cols != b.Rows || a.Rows != c.Rows || b.Cols != c.Cols || (c.ColStride != 1 && c.Cols > 1) {
		panic("blas: the sizes of a product do not fit")
	}
	if c.Rows == 0 || c.Cols == 0 {
		return
	}
	if a.Cols == 0 {
		if !add {
			for i := range c.Rows {
				clear(c.Data[i*c.RowStride:][:c.Cols])
			}
		}
		return
	}
	most := max(1, int(float64(c.Rows)*float64(c.Cols)*float64(a.Cols)/worthSharing))
	stripes := divide(kern, c.Rows, c.Cols, min(workers, most))
	if len(stripes) == 1 {
		stripe(kern, c, a, b, add)
		return
	}
	var wg sync.WaitGroup
	for _, s := range stripes[1:] {
		wg.Go(func() {
			stripe(kern, c.part(s.i, s.j, s.m, s.n), a.part(s.i, 0, s.m, a.Cols), b.part(0, s.j, b.Rows, s.n), add)
		})
	}
	s := stripes[0]
	stripe(kern, c.part(s.i, s.j, s.m, s.n), a.part(s.i, 0, s.m, a.Cols), b.part(0, s.j, b.Rows, s.n), add)
	wg.Wait()
}

type area struct{ i, j, m, n int }

// divide cuts an m by n result into about the given number of areas whose borders lie on tiles. Each worker packs what
// it needs itself, so none waits for another; near-square areas keep what is packed twice small.
func divide[T Float](kern kernel[T], m, n, parts int) []area {
	rows, cols := (m+kern.mr-1)/kern.mr, (n+kern.nr-1)/kern.nr // in tiles
	pr, pc := 1, 1
	for r := 1; r <= parts; r++ {
		if parts%r != 0 || r > rows || parts/r > cols {
			continue
		}
		if pr*pc < parts || m/r+n*r/parts < m/pr+n*pr/parts {
			pr, pc = r, parts/r
		}
	}
	if pr*pc < parts { // no exact grid fits: the longer side alone
		pr, pc = min(parts, rows), 1
		if cols > rows {
			pr, pc = 1, min(parts, cols)
		}
	}
	var all []area
	for r := range pr {
		i0, i1 := rows*r/pr*kern.mr, min(m, rows*(r+1)/pr*kern.mr)
		for q := range pc {
			j0, j1 := cols*q/pc*kern.nr, min(n, cols*(q+1)/pc*kern.nr)
			if i1 > i0 && j1 > j0 {
				all = append(all, area{i0, j0, i1 - i0, j1 - j0})
			}
		}
	}
	return all
}

func (m Matrix[T]) part(i, j, rows, cols int) Matrix[T] {
	m.Data = m.Data[i*m.RowStride+j*m.ColStride:]
	m.Rows, m.Cols = rows, cols
	return m
}

// workspace is the memory of one worker for panels, for tiles at the border and for a transposed result.
type workspace[T Float] struct {
	a, b          panels[T]
	tile, flipped []T
}

func grow[T any](s *[]T, n int) []T {
	if len(*s) < n {
		*s = make([]T, n)
	}
	return (*s)[:n]
}

var (
	workspaces32 = sync.Pool{New: func() any { return new(workspace[float32]) }}
	workspaces64 = sync.Pool{New: func() any { return new(workspace[float64]) }}
)

func workspaces[T Float]() *sync.Pool {
	if unsafe.Sizeof(T(0)) == 4 {
		return &workspaces32
	}
	return &workspaces64
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// fewPanels is the number of panels of a up to which a panel of b has too few uses to be worth packing.
const fewPanels = 4

// rowsInPlace is how many rows of b are read side by side where it is not packed: few enough that the processor sees that each is
// read from its beginning to its end, and that the rows do not drive each other out of the first-level cache.
const rowsInPlace = 12

// stripe computes one area on the calling goroutine.
func stripe[T Float](kern kernel[T], c, a, b Matrix[T], add bool) {
	pool := workspaces[T]()
	w := pool.Get().(*workspace[T]) //nolint:errcheck // the pool holds nothing else
	defer pool.Put(w)
	if c.Rows > kern.nr || b.RowStride != 1 || b.ColStride == 1 || c.Cols <= kern.nr {
		w.multiply(kern, c, a, b, add)
		return
	}
	// A few rows times a transposed matrix, as in a layer with a small batch. The other way round the matrix can be read where it
	// lies, row by row.
	t := Dense(grow(&w.flipped, c.Cols*c.Rows), c.Cols, c.Rows)
	w.multiply(kern, t, b.T(), a.T(), false)
	for i := range c.Rows {
		row := c.Data[i*c.RowStride:][:c.Cols]
		for j := range row {
			if v := t.Data[j*c.Rows+i]; add {
				row[j] += v
			} else {
				row[j] = v
			}
		}
	}
}

func (w *workspace[T]) multiply(kern kernel[T], c, a, b Matrix[T], add bool) {
	placeA := a.ColStride == 1 && c.Cols <= kern.nr
	placeB := b.ColStride == 1 && c.Rows <= fewPanels*kern.mr
	deep := blockK
	if placeB {
		deep = rowsInPlace
	}
	k0 := min(deep, a.Cols)
	grow(&w.a.packed, roundUp(min(blockM, c.Rows), kern.mr)*k0)
	grow(&w.b.packed, roundUp(min(blockN, c.Cols), kern.nr)*k0)
	grow(&w.tile, kern.mr*kern.nr)
	for j := 0; j < c.Cols; j += blockN {
		n := min(blockN, c.Cols-j)
		for p := 0; p < a.Cols; p += deep {
			k := min(deep, a.Cols-p)
			w.b.take(b.part(p, j, k, n).T(), kern.nr, placeB) // its panels are columns
			for i := 0; i < c.Rows; i += blockM {
				m := min(blockM, c.Rows-i)
				w.a.take(a.part(i, p, m, k), kern.mr, placeA)
				w.block(kern, c.part(i, j, m, n), k, add || p > 0)
			}
		}
	}
	w.a.forget()
	w.b.forget()
}

// block multiplies panels into an area of c.
func (w *workspace[T]) block(kern kernel[T], c Matrix[T], k int, add bool) {
	for j := 0; j < c.Cols; j += kern.nr {
		n := min(kern.nr, c.Cols-j)
		b, _, stepB := w.b.at(j)
		for i := 0; i < c.Rows; i += kern.mr {
			m := min(kern.mr, c.Rows-i)
			a, rowA, stepA := w.a.at(i)
			if m == kern.mr && n == kern.nr {
				//nolint:gosec // lengths were checked
				kern.run(k, a, b, unsafe.Pointer(&c.Data[i*c.RowStride+j]), rowA, stepA, stepB, c.RowStride, add)
				continue
			}
			kern.run(k, a, b, unsafe.Pointer(&w.tile[0]), rowA, stepA, stepB, kern.nr, false) //nolint:gosec // lengths were checked
			for r := range m {
				dst, src := c.Data[(i+r)*c.RowStride+j:][:n], w.tile[r*kern.nr:][:n]
				if !add {
					copy(dst, src)
					continue
				}
				for x, v := range src {
					dst[x] += v
				}
			}
		}
	}
}

// floats32 returns the slice as float32 when it is one.
func floats32[T Float](x []T) ([]float32, bool) {
	if unsafe.Sizeof(T(0)) != 4 {
		return nil, false
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)), true //nolint:gosec // T is float32
}

// AXPY adds alpha*x to y, rounding the product before the addition as two separate operations would.
func AXPY[T Float](alpha T, x, y []T) {
	y = y[:len(x)]
	done := 0
	if x32, ok := floats32(x); ok {
		y32, _ := floats32(y)
		done = vectorAXPY(float32(alpha), x32, y32)
	}
	x, y = x[done:], y[done:]
	for i, v := range x {
		y[i] += T(alpha * v) //nolint:unconvert // the conversion keeps the compiler from fusing the two
	}
}

// Add sets dst to a+b. dst may be a or b.
func Add[T Float](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := vectors(vectorAdd, dst, a, b); i < len(dst); i++ {
		dst[i] = a[i] + b[i]
	}
}

// Mul2 sets dst to the element-wise product of a and b. dst may be a or b.
func Mul2[T Float](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := vectors(vectorMul, dst, a, b); i < len(dst); i++ {
		dst[i] = a[i] * b[i]
	}
}

// vectors runs a kernel where there is one for the type, and returns how many elements are done.
func vectors[T Float](kernel func(dst, a, b []float32) int, dst, a, b []T) int {
	d32, ok := floats32(dst)
	if !ok {
		return 0
	}
	a32, _ := floats32(a)
	b32, _ := floats32(b)
	return kernel(d32, a32, b32)
}
