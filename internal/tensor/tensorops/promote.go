// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

func bad(op, format string, args ...any) error {
	return cohort.Newf("tensor: "+op, cohort.InvalidArgument, format, args...)
}

// unsupported refuses a type; takes reports which ones the operation computes with.
func unsupported(op string, dt tensor.DType, takes string) error {
	if !Computes(dt) {
		return bad(op, "%v has no arithmetic and can only be stored and sent: copy the elements into a float32 tensor first", dt)
	}
	return bad(op, "not implemented for %v: convert the tensor first, the operation takes %s", dt, takes)
}

// What operations take.
const (
	anyType     = "bool, integer, real and complex types"
	notBool     = "integer, real and complex types"
	notComplex  = "bool, integer and real types"
	realOnly    = "real types"
	realComplex = "real and complex types"
)

// Operand is a tensor or a number with what torch's type promotion looks at.
type Operand struct {
	t      *tensor.Tensor
	number any // bool, int64, float64 or complex128
}

// Of is a tensor as an operand.
func Of(t *tensor.Tensor) Operand { return Operand{t: t} }

// Num is a number as an operand: a bool, int64, float64 or complex128. A number has no element type of its own; it only
// raises the kind of the result.
func Num(v any) Operand { return Operand{number: v} }

func (o Operand) isBool() bool {
	if o.t != nil {
		return o.t.DType() == tensor.Bool
	}
	return numberType(o.number) == tensor.Bool
}

// Kind is a kind of numbers. A higher one holds the lower ones.
type Kind uint8

// The kinds of numbers.
const (
	boolean Kind = iota
	integer
	Real
	Complex
)

// KindOf is the kind of a type.
func KindOf(dt tensor.DType) Kind {
	switch {
	case dt == tensor.Bool:
		return boolean
	case dt.Complex():
		return Complex
	case dt.Floating():
		return Real
	}
	return integer
}

func numberType(v any) tensor.DType {
	switch v.(type) {
	case bool:
		return tensor.Bool
	case int64:
		return tensor.Int64
	case complex128:
		return tensor.Complex64
	}
	return tensor.Float32
}

// ResultType is torch.result_type: tensors with dimensions decide, then tensors without, then numbers, unless the lower
// rank has a higher kind.
func ResultType(operands ...Operand) tensor.DType {
	var ranks [3]tensor.DType
	var have [3]bool
	for _, o := range operands {
		level := 2
		var dt tensor.DType
		switch {
		case o.t == nil:
			dt = numberType(o.number)
		case o.t.Dims() > 0:
			level, dt = 0, o.t.DType()
		default:
			level, dt = 1, o.t.DType()
		}
		if have[level] {
			dt = PromoteTypes(ranks[level], dt)
		}
		ranks[level], have[level] = dt, true
	}
	result, found := tensor.DType(0), false
	for level := range ranks {
		switch {
		case !have[level]:
		case !found:
			result, found = ranks[level], true
		case KindOf(ranks[level]) > KindOf(result):
			// A number 2.5 makes an integer tensor float32; a complex one leaves a real tensor its precision.
			if KindOf(ranks[level]) == Complex && KindOf(result) == Real {
				result = complexOf(result)
			} else {
				result = ranks[level]
			}
		}
	}
	return result
}

// complexOf is the complex type with the precision of a real one.
func complexOf(dt tensor.DType) tensor.DType {
	switch dt { //nolint:exhaustive // the others are real types of single precision here
	case tensor.Float64:
		return tensor.Complex128
	case tensor.Float16:
		return tensor.Complex32
	}
	return tensor.Complex64
}

// widths lists the types that compute, narrow first.
var widths = []tensor.DType{
	tensor.Bool, tensor.Uint8, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Float16, tensor.BFloat16,
	tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Complex128,
}

// Computes reports whether tensors of a type can be computed with.
func Computes(dt tensor.DType) bool { return slices.Contains(widths, dt) }

// PromoteTypes is torch.promote_types for the types that compute.
func PromoteTypes(a, b tensor.DType) tensor.DType {
	is := func(x, y tensor.DType) bool { return a == x && b == y || a == y && b == x }
	switch {
	case a == b:
		return a
	case is(tensor.Uint8, tensor.Int8):
		return tensor.Int16
	case is(tensor.Float16, tensor.BFloat16):
		return tensor.Float32
	case is(tensor.Float64, tensor.Complex64):
		return tensor.Complex128
	case slices.Index(widths, a) > slices.Index(widths, b):
		return a
	}
	return b
}

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
