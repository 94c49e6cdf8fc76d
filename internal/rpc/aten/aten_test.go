// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package aten

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// TestReservationsCoverAllocations runs every operator over types and layouts: what is allocated was reserved first. It
// must not run beside other tests of the package, which would allocate too.
func TestReservationsCoverAllocations(t *testing.T) {
	types := []tensor.DType{tensor.Bool, tensor.Int64, tensor.Float16, tensor.Float32, tensor.Complex64}
	layouts := map[string]func(x *tensor.Tensor) (*tensor.Tensor, error){
		"dense":      func(x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil },
		"transposed": func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Transpose(-1, -2) },
		"expanded": func(x *tensor.Tensor) (*tensor.Tensor, error) {
			row, err := x.Narrow(-2, 0, 1)
			if err != nil {
				return nil, err
			}
			return row.Expand(80, 80)
		},
	}
	// Go's size classes round up, by an eighth at most; the rest is shapes, tables, closures. An operand has 6 KiB and more.
	const small = 4 << 10
	computed := 0
	for _, name := range Names() {
		for _, dt := range types {
			for layout, lay := range layouts {
				x, err := tensorops.Convert(tensor.Must(tensor.Full(tensor.Int64, 1, 80, 80)), dt)
				if err != nil {
					t.Fatal(err)
				}
				a, err := lay(x)
				if err != nil {
					t.Fatal(err)
				}
				b := tensor.Must(tensor.Full(tensor.Float64, 1, 1, 80))
				batch := tensor.Must(a.Expand(3, 80, 80))
				stacks, slack := [][]any{{a}, {batch}}, int64(small)
				switch {
				case strings.Contains(name, "mm"), strings.Contains(name, "matmul"):
					stacks = [][]any{{a, a}, {batch, a}, {a, batch}}
					if tensorops.KindOf(dt) == tensorops.Real {
						slack = 512 << 10 // buffers of the kernels, which are of limited size and kept for the next product
					}
				case strings.Contains(name, "."):
					stacks = [][]any{
						{a, a},
						{a, b},
						{b, a},
						{a, batch},
						{a, int64(2)},
						{a, a, 0.5},
						{a, a, int64(2)},
						{a, b, 2.5},
						{a, int64(2), int64(3)},
					}
				case name == "aten::sum", name == "aten::mean":
					stacks = append(stacks, []any{a, nil}, []any{a, int64(tensor.Float64)})
				case name == "aten::zeros", name == "aten::ones":
					stacks = [][]any{{[]any{int64(80), int64(80)}, int64(dt)}}
				}
				for _, stack := range stacks {
					allocated, reserved, err := measure(operators[name], stack)
					if err != nil {
						continue
					}
					for try := 0; try < 5 && allocated > reserved*9/8+slack; try++ { // the runtime's own allocations are counted too
						allocated, reserved, _ = measure(operators[name], stack)
					}
					computed++
					if allocated > reserved*9/8+slack {
						t.Errorf("%s of %s %v with %d arguments: %d bytes allocated, %d reserved", name, layout, dt, len(stack),
							allocated, reserved)
					}
				}
			}
		}
	}
	if computed < 400 {
		t.Errorf("only %d calls computed anything", computed)
	}
}

func measure(op operator, stack []any) (allocated, reserved int64, err error) {
	c := &call{budget: NewBudget(1 << 40)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = op(c, stack)
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), c.reserved, err
}

// TestRefusals: every operator says what is wrong with its arguments, and gives back what it has reserved.
func TestRefusals(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1, 2}))
	n := tensor.Must(tensor.From([]int64{1, 2}))
	yes := tensor.Must(tensor.From([]bool{true, false}))
	bytes := tensor.Must(tensor.From([]uint8{1, 2}))
	c64 := tensor.Must(tensor.From([]complex64{1, 2}))
	f8 := tensor.Must(tensor.New(tensor.Float8E5M2, 2))
	big := tensor.Must(tensor.Must(tensor.New(tensor.Float32, 1)).Expand(2048, 2048))
	for _, c := range []struct {
		name  string
		stack []any
		code  cohort.Code
		want  string
	}{
		{"aten::add.Tensor", []any{x}, cohort.InvalidArgument, "argument 2 is missing"},
		{"aten::add.Tensor", []any{x, "y"}, cohort.InvalidArgument, "argument 2 is a string"},
		{"aten::add.Tensor", []any{n, n, 1.5}, cohort.InvalidArgument, "argument alpha must not be a floating point number"},
		{"aten::add.Tensor", []any{x, x, 1i}, cohort.InvalidArgument, "argument alpha must not be a complex number"},
		{"aten::add.Tensor", []any{x, x, true}, cohort.InvalidArgument, "Boolean alpha only supported for Boolean results"},
		{"aten::add.Tensor", []any{bytes, bytes, int64(300)}, cohort.InvalidArgument, "without overflow"},
		{"aten::add.Tensor", []any{x, x, nil}, cohort.InvalidArgument, "alpha is a <nil>"},
		{"aten::sub.Tensor", []any{yes, yes}, cohort.InvalidArgument, "Subtraction, the `-` operator, with a bool tensor is not supported"},
		{
			"aten::mul.Tensor",
			[]any{x, tensor.Must(tensor.New(tensor.Float32, 3))},
			cohort.InvalidArgument,
			"size of tensor a (2) must match the size of tensor b (3)",
		},
		{"aten::mul.Tensor", []any{f8, x}, cohort.InvalidArgument, "mul: invalid argument: float8_e5m2 has no arithmetic"},
		{
			"aten::neg",
			[]any{yes},
			cohort.InvalidArgument,
			"neg: invalid argument: not implemented for bool: convert the tensor first, the operation takes integer, real and " +
				"complex types",
		},
		{
			"aten::relu",
			[]any{c64},
			cohort.InvalidArgument,
			"relu: invalid argument: not implemented for complex64: convert the tensor first, the operation takes integer and real types",
		},
		{"aten::mean", []any{n}, cohort.InvalidArgument, "could not infer output dtype"},
		{"aten::sum", []any{n, "f"}, cohort.InvalidArgument, "dtype f"},
		{"aten::mm", []any{x, x}, cohort.InvalidArgument, "self must be a matrix"},
		{"aten::matmul", []any{tensor.Must(x.Reshape(2, 1)), tensor.Must(x.Reshape(2, 1))}, cohort.InvalidArgument, "cannot be multiplied"},
		{"aten::matmul", []any{x, n}, cohort.InvalidArgument, "same dtype"},
		{"aten::matmul", []any{tensor.Must(tensor.Full(tensor.Float32, 1)), x}, cohort.InvalidArgument, "at least 1D"},
		{"aten::matmul", []any{big, big}, cohort.Exhausted, "multiplications"},
		{"aten::clone", []any{big}, cohort.Exhausted, "bytes are needed"},
		{"aten::zeros", []any{[]any{int64(-1)}}, cohort.InvalidArgument, "size -1 of dimension 0"},
		{"aten::zeros", []any{int64(1)}, cohort.InvalidArgument, "sizes are a int64"},
		{"aten::t", []any{tensor.Must(x.Reshape(1, 1, 2))}, cohort.InvalidArgument, "<= 2 dimensions"},
	} {
		b := NewBudget(1 << 20)
		_, known, err := b.Run(c.name, c.stack)
		if !known || !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if used := b.used.Load(); used != 0 {
			t.Errorf("%s: %d bytes are still reserved", c.name, used)
		}
	}
	if _, known, _ := NewBudget(1).Run("aten::svd", nil); known {
		t.Error("an operator that does not exist is known")
	}
	if !slices.IsSorted(Names()) {
		t.Error(Names())
	}
}

// TestCallsShareTheBudget: a call gets what the others have left, and all of it when they have ended; and no number is so large that the
// sum passes for a small one.
func TestCallsShareTheBudget(t *testing.T) {
	b := NewBudget(1 << 20)
	release, err := b.Reserve(800_000)
	if err != nil {
		t.Fatal(err)
	}
	zeros := func(n int) error {
		_, _, err := b.Run("aten::zeros", []any{[]any{int64(n)}, int64(tensor.Float32)})
		return err
	}
	if err := zeros(50_000); err != nil {
		t.Errorf("what is left is refused: %v", err)
	}
	if err := zeros(100_000); !errors.Is(err, cohort.Exhausted) {
		t.Errorf("more than is left: %v", err)
	}
	if _, err := b.Reserve(math.MaxInt64 - 1); !errors.Is(err, cohort.Exhausted) {
		t.Errorf("as much as can be counted: %v", err)
	}
	release()
	if err := zeros(250_000); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
