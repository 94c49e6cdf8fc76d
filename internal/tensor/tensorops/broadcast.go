// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"slices"

	"github.com/cohort-dist/cohort/tensor"
)

// BroadcastShape is the common shape of two operands. It corresponds to torch.broadcast_shapes.
func BroadcastShape(op string, a, b []int) ([]int, error) {
	n := max(len(a), len(b))
	out := make([]int, n)
	for i := range out {
		x, y := 1, 1
		if j := i - (n - len(a)); j >= 0 {
			x = a[j]
		}
		if j := i - (n - len(b)); j >= 0 {
			y = b[j]
		}
		switch {
		case x == y || y == 1:
			out[i] = x
		case x == 1:
			out[i] = y
		default:
			return nil, bad(op, "The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension %d", x, y, i)
		}
	}
	if elements(out) > maxElements {
		return nil, bad(op, "the result has shape %v: limit %d elements", out, maxElements)
	}
	return out, nil
}

// maxElements bounds results, whose shapes may come from a peer: two small operands can broadcast to a huge result.
const maxElements = 1 << (28 + 8*(^uint(0)>>63))

// elements is the number of elements of a shape, at most maxElements+1.
func elements(shape []int) int {
	if slices.Contains(shape, 0) {
		return 0
	}
	n := 1
	for _, d := range shape {
		if n > maxElements/d {
			return maxElements + 1
		}
		n *= d
	}
	return n
}

// rows walks the rows of a broadcast result: the longest trailing block over which each operand either runs along or
// stays where it is.
type rows struct {
	n              int // elements of a row
	sa, sb         int // 1 when the operand runs along the row, 0 when it stays
	shape          []int
	stepsA, stepsB []int
	index          []int
	a, b           int
}

// newRows takes dense operands of shapes a and b that broadcast to out.
func newRows(out, a, b []int) *rows {
	var shape, stepsA, stepsB []int
	stepA, stepB := 1, 1
	for i, size := range slices.Backward(out) {
		da, db := 1, 1
		if j := i - (len(out) - len(a)); j >= 0 {
			da = a[j]
		}
		if j := i - (len(out) - len(b)); j >= 0 {
			db = b[j]
		}
		if size != 1 {
			sa, sb := stepA, stepB
			if da == 1 {
				sa = 0
			}
			if db == 1 {
				sb = 0
			}
			// Merge with the dimension behind when both operands continue where it ended.
			if last := len(shape) - 1; last >= 0 && sa == stepsA[last]*shape[last] && sb == stepsB[last]*shape[last] {
				shape[last] *= size
			} else {
				shape, stepsA, stepsB = append(shape, size), append(stepsA, sa), append(stepsB, sb)
			}
		}
		stepA *= da
		stepB *= db
	}
	r := &rows{n: 1}
	if len(shape) > 0 {
		r.n, r.sa, r.sb = shape[0], stepsA[0], stepsB[0]
		r.shape, r.stepsA, r.stepsB = shape[1:], stepsA[1:], stepsB[1:]
	}
	r.index = make([]int, len(r.shape))
	return r
}

// next moves to the following row.
func (r *rows) next() {
	for d := range r.index {
		r.index[d]++
		r.a += r.stepsA[d]
		r.b += r.stepsB[d]
		if r.index[d] < r.shape[d] {
			return
		}
		r.a -= r.shape[d] * r.stepsA[d]
		r.b -= r.shape[d] * r.stepsB[d]
		r.index[d] = 0
	}
}

// Axis returns the dimension that dim names; negative ones count from the end.
func Axis(op string, dim, dims int) (int, error) {
	d := dim
	if d < 0 {
		d += max(dims, 1)
	}
	if d < 0 || d >= max(dims, 1) {
		return 0, bad(op, "Dimension out of range (expected to be in range of [%d, %d], but got %d)", -max(dims, 1), max(dims, 1)-1, dim)
	}
	return d, nil
}

// SumTo sums a broadcast gradient back to the shape of the operand that it belongs to. It returns t itself when the
// shape is the same.
func SumTo(t *tensor.Tensor, shape []int) (*tensor.Tensor, error) {
	have := t.Shape()
	if slices.Equal(have, shape) {
		return t, nil
	}
	lead := len(have) - len(shape)
	if lead < 0 {
		return nil, bad("sum to", "%v does not come from %v", have, shape)
	}
	var dims []int
	for i, d := range have {
		if i < lead || shape[i-lead] == 1 && d != 1 {
			dims = append(dims, i)
		}
	}
	if len(dims) > 0 {
		var err error
		if t, err = Sum(t, dims, true); err != nil {
			return nil, err
		}
	}
	return t.Reshape(shape...)
}
