// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/tensor"
)

// Builtin operators have gradients: those of the same computation here.
func TestOperators(t *testing.T) {
	ws := newWorld(t, 2, basics())
	schema := map[string]string{
		"add": "(Tensor self, Tensor other, *, Scalar alpha=1)", "sub": "(Tensor self, Tensor other, *, Scalar alpha=1)",
		"mul": "(Tensor self, Tensor other)", "div": "(Tensor self, Tensor other)", "mm": "(Tensor self, Tensor mat2)",
		"matmul": "(Tensor self, Tensor other)", "sum": "(Tensor self, *, ScalarType? dtype=None)",
		"mean":  "(Tensor self, *, ScalarType? dtype=None)",
		"clone": "(Tensor self, *, MemoryFormat? memory_format=None)",
	}
	local := map[string]func(x, y *autograd.Variable) *autograd.Variable{
		"add": func(x, y *autograd.Variable) *autograd.Variable { return x.Add(y.Scale(3)) },
		"sub": func(x, y *autograd.Variable) *autograd.Variable { return x.Sub(y.Scale(3)) },
		"mul": (*autograd.Variable).Mul, "div": (*autograd.Variable).Div, "mm": (*autograd.Variable).MatMul,
		"matmul": (*autograd.Variable).MatMul,
		"sum":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Sum() },
		"mean":   func(x, _ *autograd.Variable) *autograd.Variable { return x.Mean() },
		"clone":  func(x, _ *autograd.Variable) *autograd.Variable { return x.Scale(1) },
		"neg":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Neg() },
		"t":      func(x, _ *autograd.Variable) *autograd.Variable { return x.Transpose(0, 1) },
		"relu":   func(x, _ *autograd.Variable) *autograd.Variable { return x.ReLU() },
		"abs":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Abs() },
		"exp":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Exp() },
		"log":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Log() },
		"sqrt":   func(x, _ *autograd.Variable) *autograd.Variable { return x.Sqrt() },
		"tanh":   func(x, _ *autograd.Variable) *autograd.Variable { return x.Tanh() },
		"sin":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Sin() },
		"cos":    func(x, _ *autograd.Variable) *autograd.Variable { return x.Cos() },
		"sigmoid": func(x, _ *autograd.Variable) *autograd.Variable {
			return x.Sigmoid()
		},
	}
	for _, full := range operators.Names() {
		name := strings.TrimPrefix(full, "aten::")
		base, overload, _ := strings.Cut(name, ".")
		if overload == "Scalar" || base == "zeros" || base == "ones" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f := local[base]
			if f == nil {
				t.Fatal("not tested")
			}
			args := schema[base]
			if args == "" {
				args = "(Tensor self)"
			}
			ctx, c := ws[0].open(t)
			matrix := func(v ...float64) *autograd.Variable { return autograd.Parameter(tensor.Must(tensor.From(v, 2, 2))) }
			x, y := matrix(1, 2, 3, 4), matrix(5, 6, 7, 8)
			stack := []any{x}
			two := strings.Contains(args, "Tensor other") || strings.Contains(args, "Tensor mat2")
			if two {
				stack = append(stack, y)
			}
			switch {
			case strings.Contains(args, "alpha"):
				stack = append(stack, 3)
			case strings.Contains(args, "="):
				stack = append(stack, nil)
			}
			z := call(ctx, t, ws[0], "w1", full+args+" -> Tensor", stack...)
			weight := matrix(0.5, -1, 2, 1)
			root := func(v *autograd.Variable) *autograd.Variable { return v.Mul(weight.Detach()).Sum() }
			backward(ctx, t, c, root(z))
			if err := root(f(x, y)).Backward(ctx); err != nil {
				t.Fatal(err)
			}
			if !closeTo(c.Gradient(x), x.Grad()) || two && !closeTo(c.Gradient(y), y.Grad()) {
				t.Errorf("gradients %v and %v, want %v and %v", c.Gradient(x), c.Gradient(y), x.Grad(), y.Grad())
			}
		})
	}
	ctx, c := ws[0].open(t)
	x := param(1, 2)
	z := call(ctx, t, ws[0], "w1", "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", x, 7)
	backward(ctx, t, c, z.Sum())
	wantGrad(t, c, x, 7, 7)
	if !slices.Contains(operators.Names(), "aten::mul.Scalar") {
		t.Error(operators.Names())
	}
}
