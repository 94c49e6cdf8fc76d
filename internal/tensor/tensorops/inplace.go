// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"math"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/tensor"
)

// inPlaceSum adds in place where both are dense floats, else returns the sum.
func inPlaceSum(dst, src *tensor.Tensor) (*tensor.Tensor, error) {
	switch dst.DType() {
	case tensor.Float32:
		if x, err := tensor.Data[float32](dst); err == nil {
			y, err := dense[float32](src)
			if err == nil {
				blas.Add(x, x, y)
			}
			return nil, err
		}
	case tensor.Float64:
		if x, err := tensor.Data[float64](dst); err == nil {
			y, err := dense[float64](src)
			if err == nil {
				blas.Add(x, x, y)
			}
			return nil, err
		}
	default:
	}
	return Binary(Add, Of(dst), Of(src))
}

// AXPY adds alpha*x to y in place; both are dense float32 or float64 tensors with the same number of elements.
func AXPY(alpha float64, x, y *tensor.Tensor) error {
	if x.DType() != y.DType() || x.Numel() != y.Numel() {
		return bad("axpy", "%v%v and %v%v", x.DType(), x.Shape(), y.DType(), y.Shape())
	}
	if y.DType() == tensor.Float64 {
		return axpy[float64](alpha, x, y)
	}
	return axpy[float32](alpha, x, y)
}

func axpy[T float32 | float64](alpha float64, x, y *tensor.Tensor) error {
	u, err := dense[T](x)
	if err != nil {
		return err
	}
	v, err := tensor.Data[T](y)
	if err != nil {
		return err
	}
	blas.AXPY(T(alpha), u, v)
	return nil
}

// Scale multiplies a dense float32 or float64 tensor by a number in place.
func Scale(t *tensor.Tensor, by float64) error {
	if t.DType() == tensor.Float64 {
		return scale[float64](t, by)
	}
	return scale[float32](t, by)
}

func scale[T float32 | float64](t *tensor.Tensor, by float64) error {
	x, err := tensor.Data[T](t)
	if err != nil {
		return err
	}
	f := T(by)
	for i := range x {
		x[i] *= f
	}
	return nil
}

// Norm is the p-norm of all elements; p may be infinite.
func Norm(t *tensor.Tensor, p float64) (float64, error) {
	x, err := numbers[float64]("norm", t)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, v := range x {
		v = math.Abs(v)
		switch {
		case math.IsInf(p, 1):
			if v > total || v != v {
				total = v
			}
		case p == 2:
			total += v * v
		default:
			total += math.Pow(v, p)
		}
	}
	if ComputeType(t.DType()) == tensor.Float32 {
		total = overflow32(total)
	}
	switch {
	case math.IsInf(p, 1):
		return total, nil
	case p == 2:
		return math.Sqrt(total), nil
	}
	return math.Pow(total, 1/p), nil
}

// ScaleInto sets dst, a dense tensor, to src times a number; shapes and types are the same.
func ScaleInto(dst, src *tensor.Tensor, by float64) error {
	if dst.DType() != src.DType() || !dst.SameShape(src) {
		return bad("scale", "%v%v into %v%v", src.DType(), src.Shape(), dst.DType(), dst.Shape())
	}
	switch dst.DType() { //nolint:exhaustive // the others have no loop of their own
	case tensor.Float32:
		return scaleInto[float32](dst, src, by)
	case tensor.Float64:
		return scaleInto[float64](dst, src, by)
	}
	product, err := Binary(Mul, Of(src), Num(by))
	if err != nil {
		return err
	}
	return dst.CopyFrom(product)
}

func scaleInto[T float32 | float64](dst, src *tensor.Tensor, by float64) error {
	x, err := tensor.Data[T](dst)
	if err != nil {
		return err
	}
	y, err := dense[T](src)
	if err != nil {
		return err
	}
	f := T(by)
	for i, v := range y {
		x[i] = v * f
	}
	return nil
}

// AddBias adds a vector to every row of out, in place where out is dense and of the same floating type; no other goroutine may
// hold out.
func AddBias(out, bias *tensor.Tensor) (*tensor.Tensor, error) {
	if out.DType() == bias.DType() && out.IsContiguous() {
		switch out.DType() {
		case tensor.Float32:
			return out, addBias[float32](out, bias)
		case tensor.Float64:
			return out, addBias[float64](out, bias)
		default:
		}
	}
	return Binary(Add, Of(out), Of(bias))
}

func addBias[T float32 | float64](out, bias *tensor.Tensor) error {
	x, err := tensor.Data[T](out)
	if err != nil {
		return err
	}
	b, err := dense[T](bias)
	if err != nil {
		return err
	}
	for len(x) > 0 && len(b) > 0 {
		blas.Add(x[:len(b)], x[:len(b)], b)
		x = x[len(b):]
	}
	return nil
}
