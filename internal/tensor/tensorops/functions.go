// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"math"
	"math/cmplx"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/tensor"
)

// The functions of one value. Each corresponds to the torch function of its name.
var (
	Neg = UnaryOp{
		Name: "neg", Ints: func(x int64) int64 { return -x }, Floats: func(x float64) float64 { return -x },
		Complexes: func(x complex128) complex128 { return -x },
	}
	Abs = UnaryOp{Name: "abs", Ints: func(x int64) int64 {
		if x < 0 {
			return -x
		}
		return x
	}, Floats: math.Abs}
	Exp     = UnaryOp{Name: "exp", Floats: math.Exp, Complexes: cmplx.Exp}
	Log     = UnaryOp{Name: "log", Floats: math.Log, Complexes: cmplx.Log}
	Sqrt    = UnaryOp{Name: "sqrt", Floats: math.Sqrt, Complexes: cmplx.Sqrt}
	Sin     = UnaryOp{Name: "sin", Floats: math.Sin, Complexes: cmplx.Sin}
	Cos     = UnaryOp{Name: "cos", Floats: math.Cos, Complexes: cmplx.Cos}
	Tanh    = UnaryOp{Name: "tanh", Floats: math.Tanh, Complexes: cmplx.Tanh}
	Sigmoid = UnaryOp{Name: "sigmoid", Floats: sigmoid, Complexes: func(x complex128) complex128 { return 1 / (1 + cmplx.Exp(-x)) }}
	// GELU is torch.nn.functional.gelu; GELUTanh the same with approximate="tanh".
	GELU     = UnaryOp{Name: "gelu", Floats: func(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }, RealOnly: true}
	GELUTanh = UnaryOp{Name: "gelu", Floats: func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(geluInner(x))) }, RealOnly: true}
)

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func geluInner(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x) }

// GELUSlope is the derivative of GELU, or of GELUTanh.
func GELUSlope(x float64, tanh bool) float64 {
	if tanh {
		t := math.Tanh(geluInner(x))
		return 0.5*(1+t) + 0.5*x*(1-t*t)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
	}
	return 0.5*(1+math.Erf(x/math.Sqrt2)) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}

// ReLU is torch.relu: NaN stays NaN, and -0 stays -0.
func ReLU(t *tensor.Tensor) (*tensor.Tensor, error) {
	switch t.DType() {
	case tensor.Float32:
		return relu[float32](t)
	case tensor.Float64:
		return relu[float64](t)
	default:
		return Unary(UnaryOp{Name: "relu", Ints: func(x int64) int64 { return max(x, 0) }, Floats: func(x float64) float64 {
			if x < 0 {
				return 0
			}
			return x
		}}, t)
	}
}

func relu[T blas.Float](t *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := floats[T]("relu", t)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(x))
	for i, v := range x {
		if !(v < 0) { //nolint:staticcheck // NaN goes through
			out[i] = v
		}
	}
	return finishFloats("relu", out, t.Shape(), t.DType())
}

// ReLUGrad passes on the gradient where the result of ReLU was not zero.
func ReLUGrad(grad, result *tensor.Tensor) (*tensor.Tensor, error) {
	switch {
	case !grad.SameShape(result) || grad.DType() != result.DType():
	case grad.DType() == tensor.Float32:
		return reluGrad[float32](grad, result)
	case grad.DType() == tensor.Float64:
		return reluGrad[float64](grad, result)
	}
	return Map2("relu", grad, result, func(g, y float64) float64 {
		if y <= 0 {
			return 0
		}
		return g
	})
}

func reluGrad[T blas.Float](grad, result *tensor.Tensor) (*tensor.Tensor, error) {
	g, err := floats[T]("relu", grad)
	if err != nil {
		return nil, err
	}
	y, err := floats[T]("relu", result)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(g))
	for i, v := range y {
		if !(v <= 0) { //nolint:staticcheck // as PyTorch does it for NaN
			out[i] = g[i]
		}
	}
	return finishFloats("relu", out, grad.Shape(), grad.DType())
}

// MaskedFill puts a value where mask is true. It corresponds to torch.masked_fill.
func MaskedFill(t, mask *tensor.Tensor, value float64) (*tensor.Tensor, error) {
	const op = "masked fill"
	if mask == nil || mask.DType() != tensor.Bool {
		return nil, bad(op, "masked_fill_ only supports boolean masks")
	}
	shape, err := BroadcastShape(op, t.Shape(), mask.Shape())
	if err != nil {
		return nil, err
	}
	for _, x := range []**tensor.Tensor{&t, &mask} {
		if *x, err = (*x).Expand(shape...); err != nil {
			return nil, err
		}
	}
	hide, err := dense[bool](mask)
	if err != nil {
		return nil, err
	}
	i := -1
	return Unary(UnaryOp{Name: op, RealOnly: true, Floats: func(x float64) float64 {
		i++
		if hide[i] {
			return value
		}
		return x
	}}, t)
}
