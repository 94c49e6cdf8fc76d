// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package aten

import (
	"math"
	"slices"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/tensor"
)

// operator computes one operator within a call.
type operator func(c *call, stack []any) (any, error)

// operators are all of them, by name and overload.
var operators = table()

func table() map[string]operator {
	all := map[string]operator{
		"aten::neg": one(unaryOp{
			ints: func(x int64) int64 { return -x }, floats: func(x float64) float64 { return -x }, complexes: func(x complex128) complex128 { return -x },
		}),
		"aten::relu": one(unaryOp{
			ints: func(x int64) int64 { return max(x, 0) },
			floats: func(x float64) float64 {
				if x < 0 {
					return 0
				}
				return x
			},
		}),
		"aten::abs": one(unaryOp{
			ints: func(x int64) int64 {
				if x < 0 {
					return -x
				}
				return x
			}, floats: math.Abs,
		}),
		"aten::zeros":  filled(0),
		"aten::ones":   filled(1),
		"aten::sum":    reduceAll(false),
		"aten::mean":   reduceAll(true),
		"aten::mm":     func(c *call, s []any) (any, error) { return matmulArgs(c, s, false) },
		"aten::matmul": func(c *call, s []any) (any, error) { return matmulArgs(c, s, true) },
		"aten::clone":  clone,
		"aten::t":      transpose,
	}
	add := binaryOp{ints: func(a, b int64) int64 { return a + b }, floats: func(a, b float64) float64 { return a + b }, complexes: func(a, b complex128) complex128 { return a + b }}
	sub := binaryOp{ints: func(a, b int64) int64 { return a - b }, floats: func(a, b float64) float64 { return a - b }, complexes: func(a, b complex128) complex128 { return a - b }}
	div := binaryOp{floats: func(a, b float64) float64 { return a / b }, complexes: func(a, b complex128) complex128 { return a / b }, float: true}
	for _, overload := range []string{"Tensor", "Scalar"} {
		all["aten::add."+overload] = scaled(add)
		all["aten::sub."+overload] = scaled(sub)
		all["aten::mul."+overload] = two(mul)
		all["aten::div."+overload] = two(div)
	}
	for name, f := range map[string]func(float64) float64{
		"exp": math.Exp, "log": math.Log, "sqrt": math.Sqrt, "tanh": math.Tanh, "sin": math.Sin, "cos": math.Cos,
		"sigmoid": func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	} {
		all["aten::"+name] = one(unaryOp{floats: f, float: true})
	}
	return all
}

func clone(c *call, s []any) (any, error) {
	t, err := argTensor(s, 0)
	if err != nil {
		return nil, err
	}
	if err := c.tensor(t.DType(), t.Shape()); err != nil {
		return nil, err
	}
	return t.Clone()
}

func transpose(_ *call, s []any) (any, error) {
	t, err := argTensor(s, 0)
	if err != nil || t.Dims() < 2 {
		return t, err
	}
	if t.Dims() > 2 {
		return nil, badOperand("t() expects a tensor with <= 2 dimensions, but self is %dD", t.Dims())
	}
	return t.Transpose(0, 1)
}

func badOperand(format string, args ...any) error {
	return dist.Newf(Op, dist.InvalidArgument, format, args...)
}

func argTensor(stack []any, i int) (*tensor.Tensor, error) {
	if i >= len(stack) {
		return nil, badOperand("argument %d is missing", i+1)
	}
	t, ok := stack[i].(*tensor.Tensor)
	if !ok {
		return nil, badOperand("argument %d is a %T, not a dense tensor", i+1, stack[i])
	}
	return t, nil
}

// argNumbers is argTensor for a kernel that computes.
func argNumbers(stack []any, i int) (*tensor.Tensor, error) {
	t, err := argTensor(stack, i)
	if err == nil && !slices.Contains(widths, t.DType()) {
		return nil, badOperand("argument %d is of %v, which the kernels of a Go worker do not compute with", i+1, t.DType())
	}
	return t, err
}

// operand is a tensor or a number with what torch's type promotion looks at.
type operand struct {
	t      *tensor.Tensor
	number any
}

func argOperand(stack []any, i int) (operand, error) {
	if i >= len(stack) {
		return operand{}, badOperand("argument %d is missing", i+1)
	}
	switch v := stack[i].(type) {
	case *tensor.Tensor:
		t, err := argNumbers(stack, i)
		return operand{t: t}, err
	case bool, int64, float64, complex128:
		return operand{number: v}, nil
	}
	return operand{}, badOperand("argument %d is a %T, neither tensor nor number", i+1, stack[i])
}

// category orders kinds of numbers: bool, integer, real, complex.
func category(dt tensor.DType) int {
	switch {
	case dt == tensor.Bool:
		return 0
	case dt.Complex():
		return 3
	case dt.Floating():
		return 2
	}
	return 1
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

// promote follows torch.result_type: dimensioned tensors decide, then tensors without dimensions, then numbers, unless
// the lower rank has a higher category.
func promote(operands ...operand) tensor.DType {
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
		if !have[level] {
			ranks[level], have[level] = dt, true
		} else {
			ranks[level] = wider(ranks[level], dt)
		}
	}
	result, found := tensor.DType(0), false
	for level := range ranks {
		if !have[level] {
			continue
		}
		switch {
		case !found:
			result, found = ranks[level], true
		case category(ranks[level]) > category(result):
			result = combine(result, ranks[level])
		}
	}
	return result
}

// combine raises the category of a result: a number 2.5 makes an integer tensor float32, and a complex one of half or
// double keeps its precision.
func combine(low, high tensor.DType) tensor.DType {
	if high == tensor.Complex64 && low == tensor.Float64 {
		return tensor.Complex128
	}
	return high
}

var widths = []tensor.DType{tensor.Bool, tensor.Uint8, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Complex128}

// wider is torch.promote_types.
func wider(a, b tensor.DType) tensor.DType {
	if a == b {
		return a
	}
	if pair(a, b, tensor.Uint8, tensor.Int8) {
		return tensor.Int16
	}
	if pair(a, b, tensor.Float16, tensor.BFloat16) {
		return tensor.Float32
	}
	if pair(a, b, tensor.Float64, tensor.Complex64) {
		return tensor.Complex128
	}
	if slices.Index(widths, a) > slices.Index(widths, b) {
		return a
	}
	return b
}

func pair(a, b, x, y tensor.DType) bool { return a == x && b == y || a == y && b == x }

// binaryOp is an operator of two values, in the kinds of numbers that it knows.
type binaryOp struct {
	ints      func(a, b int64) int64
	floats    func(a, b float64) float64
	complexes func(a, b complex128) complex128
	float     bool // integers become float32
}

type unaryOp struct {
	ints      func(int64) int64
	floats    func(float64) float64
	complexes func(complex128) complex128
	float     bool
}

var mul = binaryOp{
	ints: func(a, b int64) int64 { return a * b }, floats: func(a, b float64) float64 { return a * b },
	complexes: func(a, b complex128) complex128 { return a * b },
}

func two(f binaryOp) operator {
	return func(c *call, stack []any) (any, error) {
		a, b, err := argPair(stack)
		if err != nil {
			return nil, err
		}
		return elementwise(c, f, a, b)
	}
}

func argPair(stack []any) (a, b operand, err error) {
	if a, err = argOperand(stack, 0); err == nil {
		b, err = argOperand(stack, 1)
	}
	return a, b, err
}

// scaled is add and sub, whose third argument scales the second.
func scaled(f binaryOp) operator {
	return func(c *call, stack []any) (any, error) {
		a, b, err := argPair(stack)
		if err != nil {
			return nil, err
		}
		if len(stack) < 3 || stack[2] == any(int64(1)) {
			return elementwise(c, f, a, b)
		}
		alpha, err := argOperand(stack, 2)
		if err != nil {
			return nil, err
		}
		dt := promote(a, b)
		if category(numberType(alpha.number)) > category(dt) {
			return nil, badOperand("For integral input tensors, argument alpha must not be a floating point number.")
		}
		if b.t == nil {
			if b.t, err = tensor.Full(dt, b.number); err != nil {
				return nil, err
			}
		}
		product, err := elementwise(c, mul, b, alpha)
		if err != nil {
			return nil, err
		}
		return elementwise(c, f, a, operand{t: product})
	}
}

func one(f unaryOp) operator {
	return func(c *call, stack []any) (any, error) {
		t, err := argNumbers(stack, 0)
		if err != nil {
			return nil, err
		}
		dt := t.DType()
		if f.float && category(dt) < 2 {
			dt = tensor.Float32
		}
		switch cat := category(dt); {
		case cat == 3 && f.complexes != nil:
			return mapped(c, t, dt, toComplex, f.complexes)
		case cat == 2:
			return mapped(c, t, dt, toFloat, f.floats)
		case cat == 1 && f.ints != nil:
			return mapped(c, t, dt, toInteger, f.ints)
		}
		return nil, badOperand("not implemented for %v", t.DType())
	}
}

// filled is zeros and ones: sizes, dtype, layout, device, pin_memory.
func filled(value int64) operator {
	return func(c *call, stack []any) (any, error) {
		if len(stack) < 1 {
			return nil, badOperand("sizes are missing")
		}
		list, ok := stack[0].([]any)
		if !ok {
			return nil, badOperand("sizes are a %T", stack[0])
		}
		shape := make([]int, len(list))
		for i, v := range list {
			n, ok := v.(int64)
			if !ok || n < 0 || n > math.MaxInt32 {
				return nil, badOperand("size %v", v)
			}
			shape[i] = int(n)
		}
		dt := tensor.Float32
		if len(stack) > 1 && stack[1] != nil {
			n, ok := stack[1].(int64)
			dt = tensor.DType(n) //nolint:gosec // checked by Valid
			if !ok || n < 0 || n > math.MaxUint8 || !dt.Valid() {
				return nil, badOperand("dtype %v", stack[1])
			}
		}
		if len(stack) > 3 && stack[3] != nil && stack[3] != any(rpcwire.Device("cpu")) {
			return nil, badOperand("device %v: a Go worker has only the CPU", stack[3])
		}
		if err := c.tensor(dt, shape); err != nil {
			return nil, err
		}
		return tensor.Full(dt, fit(dt, value), shape...)
	}
}

func reduceAll(mean bool) operator {
	return func(c *call, stack []any) (any, error) {
		t, argErr := argNumbers(stack, 0)
		if argErr != nil {
			return nil, argErr
		}
		shape := t.Shape()
		switch cat := category(t.DType()); {
		case cat == 3:
			x, err := values(c, operand{t: t}, shape, toComplex)
			if err != nil {
				return nil, err
			}
			sum := complex128(0)
			for _, v := range x {
				sum += v
			}
			if mean {
				sum /= complex(float64(len(x)), 0)
			}
			return storeValues(c, t.DType(), nil, []complex128{sum})
		case cat == 2:
			x, err := values(c, operand{t: t}, shape, toFloat)
			if err != nil {
				return nil, err
			}
			sum := 0.0
			for _, v := range x {
				sum += v
			}
			if mean {
				sum /= float64(len(x))
			}
			return storeValues(c, t.DType(), nil, []float64{sum})
		case mean:
			return nil, badOperand("mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: %v", t.DType())
		}
		x, err := values(c, operand{t: t}, shape, toInteger)
		if err != nil {
			return nil, err
		}
		sum := int64(0)
		for _, v := range x {
			sum += v
		}
		return storeValues(c, tensor.Int64, nil, []int64{sum})
	}
}

// matmulArgs multiplies matrices; vector takes vectors too.
func matmulArgs(c *call, stack []any, vector bool) (any, error) {
	a, err := argNumbers(stack, 0)
	if err != nil {
		return nil, err
	}
	b, err := argNumbers(stack, 1)
	if err != nil {
		return nil, err
	}
	if a.DType() != b.DType() {
		return nil, badOperand("expected m1 and m2 to have the same dtype, but got: %v != %v", a.DType(), b.DType())
	}
	as, bs := a.Shape(), b.Shape()
	left, right := len(as) == 1 && vector, len(bs) == 1 && vector
	if left {
		as = []int{1, as[0]}
	}
	if right {
		bs = []int{bs[0], 1}
	}
	if len(as) != 2 || len(bs) != 2 || as[1] != bs[0] {
		return nil, badOperand("mat1 and mat2 shapes cannot be multiplied (%v and %v)", a.Shape(), b.Shape())
	}
	n, k, m := as[0], as[1], bs[1]
	shape := []int{n, m}
	switch {
	case left && right:
		shape = nil
	case left:
		shape = []int{m}
	case right:
		shape = []int{n}
	}
	switch category(a.DType()) {
	case 3:
		return multiply(c, a, b, n, k, m, shape, toComplex)
	case 2:
		return multiply(c, a, b, n, k, m, shape, toFloat)
	}
	return multiply(c, a, b, n, k, m, shape, toInteger)
}

func multiply[N int64 | float64 | complex128](c *call, a, b *tensor.Tensor, n, k, m int, shape []int, from func(any) N) (any, error) {
	x, err := values(c, operand{t: a}, a.Shape(), from)
	if err != nil {
		return nil, err
	}
	y, err := values(c, operand{t: b}, b.Shape(), from)
	if err != nil {
		return nil, err
	}
	if err = c.work(n, k, m); err != nil {
		return nil, err
	}
	if err = reserve[N](c, []int{n, m}); err != nil {
		return nil, err
	}
	out := make([]N, n*m)
	for i := range n {
		for l := range k {
			v := x[i*k+l]
			for j := range m {
				out[i*m+j] += v * y[l*m+j]
			}
		}
	}
	return storeValues(c, a.DType(), shape, out)
}
