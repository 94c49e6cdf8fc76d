// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package aten

import (
	"math"
	"slices"

	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// operator computes one operator within a call.
type operator func(c *call, stack []any) (any, error)

// operators are all of them, by name and overload.
var operators = table()

func table() map[string]operator {
	all := map[string]operator{
		"aten::relu":   one(tensorops.ReLU),
		"aten::zeros":  filled(false),
		"aten::ones":   filled(true),
		"aten::sum":    reduceAll(tensorops.Sum),
		"aten::mean":   reduceAll(tensorops.Mean),
		"aten::mm":     multiply(true),
		"aten::matmul": multiply(false),
		"aten::clone":  clone,
		"aten::t":      transpose,
	}
	for _, overload := range []string{"Tensor", "Scalar"} {
		all["aten::add."+overload] = scaled(tensorops.Add)
		all["aten::sub."+overload] = scaled(tensorops.Sub)
		all["aten::mul."+overload] = two(tensorops.Mul)
		all["aten::div."+overload] = two(tensorops.Div)
	}
	for _, op := range []tensorops.UnaryOp{
		tensorops.Neg, tensorops.Abs, tensorops.Exp, tensorops.Log, tensorops.Sqrt, tensorops.Tanh, tensorops.Sin, tensorops.Cos,
		tensorops.Sigmoid,
	} {
		all["aten::"+op.Name] = one(func(t *tensor.Tensor) (*tensor.Tensor, error) { return tensorops.Unary(op, t) })
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

// argOperand is a tensor or a number, and the shape that it has.
func argOperand(stack []any, i int) (tensorops.Operand, *tensor.Tensor, error) {
	if i < len(stack) {
		switch v := stack[i].(type) {
		case bool, int64, float64, complex128:
			return tensorops.Num(v), nil, nil
		}
	}
	t, err := argTensor(stack, i)
	return tensorops.Of(t), t, err
}

// argPair takes two operands and reserves what an operator of both needs.
func (c *call) argPair(op tensorops.Op, stack []any) (a, b tensorops.Operand, err error) {
	a, x, err := argOperand(stack, 0)
	if err != nil {
		return a, b, err
	}
	b, y, err := argOperand(stack, 1)
	if err != nil {
		return a, b, err
	}
	var shapes [2][]int
	dt := op.ResultType(a, b)
	for i, t := range []*tensor.Tensor{x, y} {
		if t == nil {
			continue
		}
		shapes[i] = t.Shape()
		if err = c.input(t, dt, t.Shape()); err != nil {
			return a, b, err
		}
	}
	shape, err := tensorops.BroadcastShape("broadcast", shapes[0], shapes[1])
	if err != nil {
		return a, b, err
	}
	return a, b, c.output(dt, shape)
}

func two(op tensorops.Op) operator {
	return func(c *call, stack []any) (any, error) {
		a, b, err := c.argPair(op, stack)
		if err != nil {
			return nil, err
		}
		return tensorops.Binary(op, a, b)
	}
}

// scaled is add and sub, whose third argument scales the second.
func scaled(op tensorops.Op) operator {
	plain := two(op)
	return func(c *call, stack []any) (any, error) {
		if len(stack) < 3 || stack[2] == any(int64(1)) {
			return plain(c, stack)
		}
		alpha := stack[2]
		switch alpha.(type) {
		case bool, int64, float64, complex128:
		default:
			return nil, badOperand("alpha is a %T, not a number", alpha)
		}
		a, b, err := c.argPair(op, stack)
		if err != nil {
			return nil, err
		}
		if t, ok := stack[1].(*tensor.Tensor); ok { // converted, then multiplied
			dt := op.ResultType(a, b)
			if err := c.output(dt, t.Shape()); err != nil {
				return nil, err
			}
			if err := c.output(dt, t.Shape()); err != nil {
				return nil, err
			}
		}
		return tensorops.Scaled(op, a, b, alpha)
	}
}

func one(f func(*tensor.Tensor) (*tensor.Tensor, error)) operator {
	return func(c *call, stack []any) (any, error) {
		t, err := argTensor(stack, 0)
		if err != nil {
			return nil, err
		}
		if err := c.input(t, t.DType(), t.Shape()); err != nil {
			return nil, err
		}
		if err := c.output(t.DType(), t.Shape()); err != nil {
			return nil, err
		}
		return f(t)
	}
}

// filled is zeros and ones: sizes, dtype, layout, device, pin_memory.
func filled(ones bool) operator {
	return func(c *call, stack []any) (any, error) {
		if len(stack) < 1 {
			return nil, badOperand("sizes are missing")
		}
		list, ok := stack[0].([]any)
		if !ok {
			return nil, badOperand("sizes are a %T, not a list of integers", stack[0])
		}
		shape := make([]int, len(list))
		for i, v := range list {
			n, ok := v.(int64)
			if !ok || n < 0 || n > math.MaxInt32 {
				return nil, badOperand("size %v of dimension %d is not an integer from 0 to %d", v, i, math.MaxInt32)
			}
			shape[i] = int(n)
		}
		dt, err := argType(stack, tensor.Float32)
		if err != nil {
			return nil, err
		}
		if len(stack) > 3 && stack[3] != nil && stack[3] != any(py.Device("cpu")) {
			return nil, badOperand("device %v: a Go worker has only the CPU", stack[3])
		}
		if err := c.tensor(dt, shape); err != nil {
			return nil, err
		}
		if !ones {
			return tensor.New(dt, shape...)
		}
		return tensor.Full(dt, true, shape...)
	}
}

// argType is the second argument, where it is a type and not None.
func argType(stack []any, otherwise tensor.DType) (tensor.DType, error) {
	if len(stack) < 2 || stack[1] == nil {
		return otherwise, nil
	}
	n, ok := stack[1].(int64)
	dt := tensor.DType(n) //nolint:gosec // checked by Valid
	if !ok || n < 0 || n > math.MaxUint8 || !dt.Valid() {
		return 0, badOperand("dtype %v is not one of torch's", stack[1])
	}
	return dt, nil
}

// reduceAll is sum and mean of all elements: the tensor, then the type to compute in.
func reduceAll(f func(t *tensor.Tensor, dims []int, keepdim bool) (*tensor.Tensor, error)) operator {
	return func(c *call, stack []any) (any, error) {
		t, err := argTensor(stack, 0)
		if err != nil {
			return nil, err
		}
		dt, err := argType(stack, t.DType())
		if err != nil {
			return nil, err
		}
		if dt != t.DType() {
			if err = c.input(t, t.DType(), t.Shape()); err != nil {
				return nil, err
			}
			if err = c.output(dt, t.Shape()); err != nil {
				return nil, err
			}
			if t, err = tensorops.Convert(t, dt); err != nil {
				return nil, err
			}
		}
		if err = c.input(t, dt, t.Shape()); err != nil {
			return nil, err
		}
		out, err := f(t, nil, false)
		if err != nil {
			return nil, err
		}
		if len(stack) > 1 && stack[1] != nil { // the sum of integers is int64 unless the caller says otherwise
			return tensorops.Convert(out, dt)
		}
		return out, nil
	}
}

// multiply is matmul, or mm, which takes matrices only.
func multiply(matrices bool) operator {
	return func(c *call, stack []any) (any, error) {
		a, err := argTensor(stack, 0)
		if err != nil {
			return nil, err
		}
		b, err := argTensor(stack, 1)
		if err != nil {
			return nil, err
		}
		switch {
		case matrices && a.Dims() != 2:
			return nil, badOperand("self must be a matrix")
		case matrices && b.Dims() != 2:
			return nil, badOperand("mat2 must be a matrix")
		}
		if err := c.product(a, b); err != nil {
			return nil, err
		}
		return tensorops.MatMul(a, b)
	}
}

// product reserves what the product of two tensors needs. It lets operands pass that do not fit: the product says so.
func (c *call) product(a, b *tensor.Tensor) error {
	x, y := a.Shape(), b.Shape()
	if len(x) == 0 || len(y) == 0 {
		return nil
	}
	if len(x) == 1 {
		x = []int{1, x[0]}
	}
	if len(y) == 1 {
		y = []int{y[0], 1}
	}
	batch, err := tensorops.BroadcastShape("matmul", x[:len(x)-2], y[:len(y)-2])
	if err != nil {
		return err
	}
	x, y = x[len(x)-2:], y[len(y)-2:]
	if err := c.work(batch, x[0], x[1], y[1]); err != nil {
		return err
	}
	for _, in := range []struct {
		t      *tensor.Tensor
		matrix []int
	}{{a, x}, {b, y}} {
		shape := in.t.Shape()
		if tensorops.KindOf(in.t.DType()) != tensorops.Real { // repeated along the batch; matrices of floats are not
			shape = slices.Concat(batch, in.matrix)
		}
		if err := c.input(in.t, in.t.DType(), shape); err != nil {
			return err
		}
	}
	return c.output(a.DType(), slices.Concat(batch, []int{x[0], y[1]}))
}
