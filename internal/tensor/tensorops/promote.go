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
