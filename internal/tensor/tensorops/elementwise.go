// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"math"
	"math/cmplx"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/tensor"
)

// Op is an operator of two values.
type Op uint8

// The operators of two values.
const (
	Add Op = iota
	Sub
	Mul
	Div
	Pow
	maximum
	minimum
)

var opNames = [...]string{"add", "sub", "mul", "div", "pow", "maximum", "minimum"}

func (o Op) String() string { return opNames[o] }

// ResultType is the type of the result: division makes floats of integers.
func (o Op) ResultType(a, b Operand) tensor.DType {
	dt := ResultType(a, b)
	if o == Div && KindOf(dt) < Real {
		return tensor.Float32 // torch's default type
	}
	return dt
}

// Binary combines two operands element by element, broadcast against each other, in the type that they promote to. It
// corresponds to torch.add, sub, mul, div (true division), pow, maximum and minimum.
func Binary(op Op, a, b Operand) (*tensor.Tensor, error) {
	name := op.String()
	var sa, sb []int
	for _, o := range []struct {
		Operand
		shape *[]int
	}{{a, &sa}, {b, &sb}} {
		if o.t == nil {
			continue
		}
		if !Computes(o.t.DType()) {
			return nil, unsupported(name, o.t.DType(), anyType)
		}
		*o.shape = o.t.Shape()
	}
	if err := refuseBools(op, a, b); err != nil {
		return nil, err
	}
	dt := op.ResultType(a, b)
	switch {
	case !Computes(dt): // a half and a complex number promote to a type that does not
		return nil, bad(name, "the operands promote to %v, which is not implemented: convert them to complex64 first", dt)
	case KindOf(dt) < Real && op == Pow:
		return nil, unsupported(name, dt, realComplex)
	case KindOf(dt) == Complex && (op == maximum || op == minimum):
		return nil, unsupported(name, dt, notComplex)
	}
	shape, err := BroadcastShape(name, sa, sb)
	if err != nil {
		return nil, err
	}
	power := math.Pow
	if b.t == nil {
		power = Power
	}
	switch ComputeType(dt) {
	case tensor.Float32:
		return binary(op, a, b, sa, sb, shape, dt, floatRow[float32],
			func(x, y float32) float32 { return float32(power(float64(x), float64(y))) })
	case tensor.Float64:
		return binary(op, a, b, sa, sb, shape, dt, floatRow[float64], power)
	case tensor.Complex128:
		return binary(op, a, b, sa, sb, shape, dt, plainRow[complex128], cmplx.Pow)
	default:
		return binary(op, a, b, sa, sb, shape, dt, plainRow[int64], func(x, _ int64) int64 { return x })
	}
}

// Scaled is [Add] or [Sub] with the second operand times alpha, which is a bool, int64, float64 or complex128. It
// corresponds to torch.add and torch.sub with alpha.
func Scaled(op Op, a, b Operand, alpha any) (*tensor.Tensor, error) {
	if err := refuseBools(op, a, b); err != nil {
		return nil, err
	}
	dt := ResultType(a, b)
	if err := checkAlpha(op.String(), alpha, dt); err != nil {
		return nil, err
	}
	t := b.t
	if t == nil {
		var err error
		if t, err = tensor.Of(b.number); err != nil {
			return nil, err
		}
	}
	t, err := Convert(t, dt)
	if err != nil {
		return nil, err
	}
	if t, err = Binary(Mul, Of(t), Num(alpha)); err != nil {
		return nil, err
	}
	if t, err = Convert(t, dt); err != nil { // of bools, which an integer makes integers
		return nil, err
	}
	return Binary(op, a, Of(t))
}

func refuseBools(op Op, a, b Operand) error {
	if op == Sub && (a.isBool() || b.isBool()) {
		return bad(op.String(),
			"Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the `~` or "+
				"`logical_not()` operator instead.")
	}
	return nil
}

// checkAlpha refuses what torch refuses.
func checkAlpha(op string, alpha any, dt tensor.DType) error {
	switch kind, of := KindOf(numberType(alpha)), KindOf(dt); {
	case kind == boolean && of != boolean:
		return bad(op, "Boolean alpha only supported for Boolean results.")
	case kind == Real && of < Real:
		return bad(op, "For integral input tensors, argument alpha must not be a floating point number.")
	case kind == Complex && of != Complex:
		return bad(op, "For non-complex input tensors, argument alpha must not be a complex number.")
	case kind == integer && of == integer:
		n, _ := alpha.(int64)
		top := int64(1)<<(8*dt.Size()-1) - 1
		low := -top - 1
		if dt == tensor.Uint8 {
			top, low = math.MaxUint8, -math.MaxUint8 // negative ones wrap
		}
		if n > top || n < low {
			return bad(op, "alpha is %d: value cannot be converted to type %v without overflow", n, dt)
		}
	}
	return nil
}

func binary[T number](op Op, a, b Operand, sa, sb, shape []int, dt tensor.DType, row func(op Op, out, x, y []T) bool,
	pow func(x, y T) T,
) (*tensor.Tensor, error) {
	load := func(o Operand) ([]T, error) {
		if o.t == nil {
			return []T{fromNumber[T](o.number)}, nil
		}
		return numbers[T](op.String(), o.t)
	}
	x, err := load(a)
	if err != nil {
		return nil, err
	}
	y, err := load(b)
	if err != nil {
		return nil, err
	}
	out := make([]T, elements(shape))
	scalar := scalarOp(op, pow)
	for at, r := 0, newRows(shape, sa, sb); at < len(out); at += r.n {
		dst := out[at:][:r.n]
		switch {
		case r.sa == 1 && r.sb == 1:
			u, v := x[r.a:][:r.n], y[r.b:][:r.n]
			if !row(op, dst, u, v) {
				for i := range dst {
					dst[i] = scalar(u[i], v[i])
				}
			}
		case r.sa == 1:
			v := y[r.b]
			for i, u := range x[r.a:][:r.n] {
				dst[i] = scalar(u, v)
			}
		case r.sb == 1:
			u := x[r.a]
			for i, v := range y[r.b:][:r.n] {
				dst[i] = scalar(u, v)
			}
		default: // one element against one
			v := scalar(x[r.a], y[r.b])
			for i := range dst {
				dst[i] = v
			}
		}
		r.next()
	}
	return finish(op.String(), out, shape, dt)
}

// floatRow does the operators that have a separate loop.
func floatRow[T blas.Float](op Op, out, x, y []T) bool {
	switch op {
	case Add:
		blas.Add(out, x, y)
	case Mul:
		blas.Mul2(out, x, y)
	case Sub:
		for i := range out {
			out[i] = x[i] - y[i]
		}
	case Div:
		for i := range out {
			out[i] = x[i] / y[i]
		}
	default:
		return false
	}
	return true
}

// Power returns x to the power of a number. Powers of 0.5 and -0.5 are those of the square root, as in PyTorch, which differ from
// math.Pow for -Inf and for zero with a sign. PyTorch does not do so where the exponent is a tensor.
func Power(x, y float64) float64 {
	switch y {
	case 0.5:
		return math.Sqrt(x)
	case -0.5:
		return 1 / math.Sqrt(x)
	}
	return math.Pow(x, y)
}

func plainRow[T number](Op, []T, []T, []T) bool { return false }

func scalarOp[T number](op Op, pow func(x, y T) T) func(x, y T) T {
	switch op {
	case Add:
		return func(x, y T) T { return x + y }
	case Sub:
		return func(x, y T) T { return x - y }
	case Mul:
		return func(x, y T) T { return x * y }
	case Div:
		return func(x, y T) T { return x / y }
	case Pow:
		return pow
	case maximum:
		return func(x, y T) T {
			if isNaN(x) || greater(x, y) {
				return x
			}
			return y // also when it is NaN
		}
	default:
		return func(x, y T) T {
			if isNaN(x) || greater(y, x) {
				return x
			}
			return y
		}
	}
}

func isNaN[T number](x T) bool { return x != x } //nolint:gocritic // that is what NaN is

func greater[T number](x, y T) bool {
	switch u := any(x).(type) {
	case float32:
		return u > any(y).(float32) //nolint:errcheck // the same type
	case float64:
		return u > any(y).(float64) //nolint:errcheck // the same type
	case int64:
		return u > any(y).(int64) //nolint:errcheck // the same type
	}
	return false
}

// UnaryOp is a function of one value.
type UnaryOp struct {
	Name      string
	Ints      func(int64) int64           // nil: integers become float32, if Floats takes them
	Floats    func(float64) float64       // float32 is computed in float64 and rounded once
	Complexes func(complex128) complex128 // nil: complex numbers are refused
	RealOnly  bool                        // integers are refused instead
}

// takes reports which types the function knows.
func (op UnaryOp) takes() string {
	switch {
	case op.RealOnly:
		return realOnly
	case op.Ints != nil && op.Complexes != nil:
		return notBool
	case op.Ints != nil:
		return "integer and real types"
	case op.Complexes == nil:
		return notComplex
	}
	return anyType
}

// Unary applies a function to every element.
func Unary(op UnaryOp, t *tensor.Tensor) (*tensor.Tensor, error) {
	dt := t.DType()
	switch {
	case !Computes(dt), KindOf(dt) == Complex && op.Complexes == nil, KindOf(dt) < Real && op.RealOnly, dt == tensor.Bool && op.Ints != nil:
		return nil, unsupported(op.Name, dt, op.takes())
	case KindOf(dt) < Real && op.Ints == nil:
		dt = tensor.Float32
	}
	switch ComputeType(dt) {
	case tensor.Float32:
		return unary(op.Name, t, dt, func(x float32) float32 { return float32(op.Floats(float64(x))) })
	case tensor.Float64:
		return unary(op.Name, t, dt, op.Floats)
	case tensor.Complex128:
		return unary(op.Name, t, dt, op.Complexes)
	default:
		return unary(op.Name, t, dt, op.Ints)
	}
}

func unary[T number](name string, t *tensor.Tensor, dt tensor.DType, f func(T) T) (*tensor.Tensor, error) {
	x, err := numbers[T](name, t)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(x))
	for i, v := range x {
		out[i] = f(v)
	}
	return finish(name, out, t.Shape(), dt)
}

// Map2 computes f of the elements of two floating tensors of one shape and type: what derivatives are made of.
func Map2(name string, a, b *tensor.Tensor, f func(x, y float64) float64) (*tensor.Tensor, error) {
	if a.DType() != b.DType() || !a.SameShape(b) || KindOf(a.DType()) != Real {
		return nil, bad(name, "want two real tensors of one shape and type, got %v%v and %v%v", a.DType(), a.Shape(), b.DType(), b.Shape())
	}
	if ComputeType(a.DType()) == tensor.Float64 {
		return map2[float64](name, a, b, f)
	}
	return map2[float32](name, a, b, f)
}

func map2[T blas.Float](name string, a, b *tensor.Tensor, f func(x, y float64) float64) (*tensor.Tensor, error) {
	x, err := floats[T](name, a)
	if err != nil {
		return nil, err
	}
	y, err := floats[T](name, b)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(x))
	for i, v := range x {
		out[i] = T(f(float64(v), float64(y[i])))
	}
	return finishFloats(name, out, a.Shape(), a.DType())
}

// floats and finishFloats are numbers and finish for code that is generic over the two float types only.
func floats[T blas.Float](op string, t *tensor.Tensor) ([]T, error) {
	var out []T
	var err error
	switch p := any(&out).(type) {
	case *[]float32:
		*p, err = numbers[float32](op, t)
	case *[]float64:
		*p, err = numbers[float64](op, t)
	}
	return out, err
}

func finishFloats[T blas.Float](op string, data []T, shape []int, dt tensor.DType) (*tensor.Tensor, error) {
	switch d := any(data).(type) {
	case []float32:
		return finish(op, d, shape, dt)
	case []float64:
		return finish(op, d, shape, dt)
	}
	return nil, unsupported(op, dt, realOnly)
}
