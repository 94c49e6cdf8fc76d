// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/rpc/aten"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// argument is a value of an operator's stack as both sides take it.
type argument struct{ json, value any }

func plain(v any) argument { return argument{v, v} }

func tensorArgument(t *testing.T, dt tensor.DType, transposed bool, values []float64, shape ...int) argument {
	t.Helper()
	x := tensor.Must(tensor.From(values, shape...))
	if shape != nil {
		x = tensor.Must(x.Reshape(shape...)) // From makes a list of one of a number
	}
	x, err := tensorops.Convert(x, dt)
	if err == nil && transposed {
		x, err = x.Transpose(0, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	text := make([]string, len(values))
	for i, v := range values {
		text[i] = strconv.FormatFloat(v, 'x', -1, 64)
	}
	if shape == nil {
		shape = []int{len(values)}
	}
	return argument{object{"dtype": dt.String(), "shape": shape, "values": text, "transposed": transposed}, x}
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// TestOperators compares the builtin operators of a Go worker with PyTorch's: values, types, shapes, and what is refused.
func TestOperators(t *testing.T) {
	types := []tensor.DType{
		tensor.Bool, tensor.Uint8, tensor.Int8, tensor.Int32, tensor.Int64, tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64,
		tensor.Complex64, tensor.Complex128,
	}
	type call struct {
		name   string // of the operator and, behind a point, of the overload
		args   []argument
		kwargs object
		more   []any // what the keyword arguments are on the stack
	}
	var calls []call
	add := func(name string, args ...argument) { calls = append(calls, call{name, args, object{}, nil}) }
	nan, inf := math.NaN(), math.Inf(1)
	for _, dt := range types {
		values := []float64{0, 1, 2, 3, 5, 7}
		x := tensorArgument(t, dt, false, values, 2, 3)
		y := tensorArgument(t, dt, true, values, 3, 2) // of shape 2, 3
		row := tensorArgument(t, dt, false, []float64{3, 1, 2})
		scalar := tensorArgument(t, dt, false, []float64{3}, []int{}...)
		for _, op := range []string{
			"neg", "relu", "abs", "exp", "log", "sqrt", "tanh", "sin", "cos", "sigmoid", "sum", "mean",
			"clone", "t",
		} {
			if op == "abs" && dt.Complex() {
				continue // torch returns a real tensor; refused here
			}
			add(op, x)
			add(op, y)
			// the versions of PyTorch differ in what they know of halves
			if tensorops.KindOf(dt) == tensorops.Real && dt != tensor.Float16 {
				add(op, tensorArgument(t, dt, false, []float64{math.Copysign(0, -1), 0, -1.5, nan, inf, -inf, 88, -104}))
			}
		}
		for _, op := range []string{"add", "sub", "mul", "div"} {
			add(op+".Tensor", x, y)
			add(op+".Tensor", x, row)
			add(op+".Tensor", row, scalar)
			add(op+".Tensor", x, tensorArgument(t, tensor.Float32, false, []float64{0.5, 1.5, 2.5}))
			add(op+".Scalar", x, plain(int64(2)))
			add(op+".Scalar", x, plain(2.5))
		}
		for _, op := range []string{"add.Tensor", "sub.Tensor"} {
			for _, alpha := range []any{int64(3), 1.5, int64(300), int64(-2)} {
				calls = append(calls, call{op, []argument{x, y}, object{"alpha": alpha}, []any{alpha}})
				calls = append(calls, call{
					op,
					[]argument{tensorArgument(t, tensor.Int64, false, values, 2, 3), y},
					object{"alpha": alpha},
					[]any{alpha},
				})
			}
		}
		for _, as := range []tensor.DType{tensor.Int32, tensor.Float64, tensor.Float32} {
			if dt.Complex() {
				continue // warns about what it drops
			}
			for _, op := range []string{"sum", "mean"} {
				calls = append(calls, call{op, []argument{x}, object{"dtype": as.String()}, []any{int64(as)}})
			}
		}
		square := tensorArgument(t, dt, true, values, 2, 3)
		for _, op := range []string{"mm", "matmul"} {
			add(op, x, square)
			add(op, x, x)
			add(op, x, tensorArgument(t, tensor.Float32, false, values, 3, 2))
			add(op, x, row)
			if !dt.Complex() { // Debian's PyTorch 1.13 has 0 for every product of complex vectors
				add(op, row, row)
			}
			add(op, scalar, x)
			add(op, tensorArgument(t, dt, false, values, 1, 2, 3), square)
		}
	}
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := torch.Start(t, torchtest.Script{Source: partsScript})
		budget := aten.NewBudget(1 << 20)
		for _, c := range calls {
			var values, stack []any
			for _, a := range c.args {
				values, stack = append(values, a.json), append(stack, a.value)
			}
			base, _, _ := strings.Cut(c.name, ".")
			want := ask[struct {
				DType  string   `json:"dtype"`
				Shape  []int    `json:"shape"`
				Values []string `json:"values"`
				Error  string   `json:"error"`
			}](t, p, object{"kind": "operator", "name": base, "args": values, "kwargs": c.kwargs})
			where := func() string { return c.name + " of " + text(values) + " " + text(c.kwargs) }
			got, known, err := budget.Run("aten::"+c.name, append(stack, c.more...))
			half := strings.Contains(want.Error, "Half") || strings.Contains(want.Error, "BFloat16") ||
				strings.Contains(want.Error, "BComplex32")
			switch {
			case !known:
				t.Fatalf("%s is not served", c.name)
			case half && err == nil, want.DType == "complex32": // arithmetic on halves came with later versions of PyTorch
				continue
			case (err != nil) != (want.Error != ""):
				t.Errorf("%s: %v, PyTorch %q", where(), err, want.Error)
				continue
			case err != nil:
				continue
			}
			x, ok := got.(*tensor.Tensor)
			if !ok || x.DType().String() != want.DType || !slices.Equal(x.Shape(), want.Shape) {
				t.Errorf("%s is %v, PyTorch %s%v", where(), got, want.DType, want.Shape)
				continue
			}
			wide, err := tensorops.Convert(x, tensor.Complex128)
			if err != nil {
				t.Fatal(err)
			}
			numbers, err := tensor.Copy[complex128](wide)
			if err != nil {
				t.Fatal(err)
			}
			var flat []float64
			for _, v := range numbers {
				flat = append(flat, real(v))
				if x.DType().Complex() {
					flat = append(flat, imag(v))
				}
			}
			tolerance := map[tensor.DType]float64{
				tensor.Float64: 1e-14, tensor.Complex128: 1e-14, tensor.Float16: 1e-3,
				tensor.BFloat16: 8e-3, tensor.Float32: 3e-7, tensor.Complex64: 1e-6,
			}[x.DType()]
			for i, v := range flat {
				w, err := strconv.ParseFloat(want.Values[i], 64)
				if err != nil {
					t.Fatal(err)
				}
				if !close64(v, w, tolerance) || math.Signbit(v) != math.Signbit(w) && !math.IsNaN(w) && !x.DType().Complex() {
					t.Errorf("%s: element %d is %v, PyTorch %v", where(), i, v, w)
				}
			}
		}
	})
}
