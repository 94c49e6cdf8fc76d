// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import "unsafe"

// panels is one factor of a block of the product, in panels of so many rows: packed, or where it lies in memory.
type panels[T Float] struct {
	packed []T
	matrix Matrix[T]
	width  int
	place  int // rows whose panels are read where they lie
}

// take makes panels of width rows of m. Those that stay in place are whole ones; a kernel would read beyond the last one.
func (s *panels[T]) take(m Matrix[T], width int, inPlace bool) {
	s.matrix, s.width, s.place = m, width, 0
	if inPlace {
		s.place = m.Rows / width * width
	}
	if s.place < m.Rows {
		pack(s.packed[s.place*m.Cols:], m.part(s.place, 0, m.Rows-s.place, m.Cols), width)
	}
}

// at returns the panel of row i, how far its rows are apart, and the step along it.
func (s *panels[T]) at(i int) (panel unsafe.Pointer, row, step int) {
	if i < s.place {
		return unsafe.Pointer(&s.matrix.Data[i*s.matrix.RowStride]), s.matrix.RowStride, s.matrix.ColStride //nolint:gosec // checked
	}
	return unsafe.Pointer(&s.packed[i*s.matrix.Cols]), 1, s.width //nolint:gosec // packed
}

// forget releases the matrix; the memory for packing stays.
func (s *panels[T]) forget() { s.matrix = Matrix[T]{} }

// pack copies m into panels of width rows: element (i, p) of a panel goes to p*width+i. Rows that are missing in the
// last panel are zero.
func pack[T Float](dst []T, m Matrix[T], width int) {
	for i := 0; i < m.Rows; i += width {
		rows := min(width, m.Rows-i)
		panel := dst[i*m.Cols:][:width*m.Cols]
		src := m.Data[i*m.RowStride:]
		switch {
		case m.RowStride == 1:
			packColumns(panel, src, rows, m.Cols, m.ColStride, width)
		case m.ColStride == 1:
			packRows(panel, src, rows, m.Cols, m.RowStride, width)
		default:
			for r := range rows {
				for p := range m.Cols {
					panel[p*width+r] = src[r*m.RowStride+p*m.ColStride]
				}
			}
		}
		if rows < width {
			for p := range m.Cols {
				clear(panel[p*width+rows:][:width-rows])
			}
		}
	}
}

// packColumns packs rows that are neighbours in memory: each step of the panel is one copy.
func packColumns[T Float](panel, src []T, rows, cols, stride, width int) {
	for p := range cols {
		copy(panel[p*width:][:rows], src[p*stride:])
	}
}

// packRows packs rows that are contiguous along the panel, eight at a time.
func packRows[T Float](panel, src []T, rows, cols, stride, width int) {
	r := 0
	for ; r+8 <= rows; r += 8 {
		r0 := src[r*stride:][:cols]
		r1 := src[(r+1)*stride:][:cols]
		r2 := src[(r+2)*stride:][:cols]
		r3 := src[(r+3)*stride:][:cols]
		r4 := src[(r+4)*stride:][:cols]
		r5 := src[(r+5)*stride:][:cols]
		r6 := src[(r+6)*stride:][:cols]
		r7 := src[(r+7)*stride:][:cols]
		at := r
		for p, v := range r0 {
			to := panel[at : at+8 : at+8]
			to[0], to[1], to[2], to[3] = v, r1[p], r2[p], r3[p]
			to[4], to[5], to[6], to[7] = r4[p], r5[p], r6[p], r7[p]
			at += width
		}
	}
	for ; r < rows; r++ {
		for p, v := range src[r*stride:][:cols] {
			panel[p*width+r] = v
		}
	}
}

// portable is the kernel for every processor.
func portable[T Float]() kernel[T] {
	return kernel[T]{name: "portable", mr: 4, nr: 4, run: tile4x4[T]}
}

func tile4x4[T Float](k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool) {
	var s [4][4]T
	x, y := unsafe.Slice((*T)(a), (k-1)*stepA+3*rowA+1), unsafe.Slice((*T)(b), (k-1)*stepB+4) //nolint:gosec // panels of this length
	for p := range k {
		b0, b1, b2, b3 := y[p*stepB], y[p*stepB+1], y[p*stepB+2], y[p*stepB+3]
		for i := range 4 {
			v := x[p*stepA+i*rowA]
			s[i][0] += v * b0
			s[i][1] += v * b1
			s[i][2] += v * b2
			s[i][3] += v * b3
		}
	}
	out := unsafe.Slice((*T)(c), 3*rowC+4) //nolint:gosec // a tile of four rows
	for i := range 4 {
		for j := range 4 {
			if add {
				out[i*rowC+j] += s[i][j]
			} else {
				out[i*rowC+j] = s[i][j]
			}
		}
	}
}
