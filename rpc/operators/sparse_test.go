// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package operators_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/tensor"
)

// TestSparse: operators of sparse tensors, within the budget.
func TestSparse(t *testing.T) {
	ctx, a := pair(t, operators.Serve(operators.WithBudget(2<<10)))
	column := func(values ...float32) *tensor.Sparse {
		n := len(values)
		at := make([]int64, n)
		for i := range at {
			at[i] = int64(2 * i)
		}
		return &tensor.Sparse{Shape: []int{100}, Indices: tensor.Must(tensor.From(at, 1, n)), Values: tensor.Must(tensor.From(values, n))}
	}
	x, y := column(1, 2, 3), column(10, 20)
	for _, c := range []struct {
		schema string
		args   []any
		want   []float32 // the values of the result
	}{
		{add, []any{x, y, 1}, []float32{11, 22, 3}},
		{add, []any{x, y, 2}, []float32{21, 42, 3}},
		{"aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", []any{y, x, 0.5}, []float32{9.5, 19, -1.5}},
		{mul, []any{x, y}, []float32{10, 40}},
		{"aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", []any{x, 7}, []float32{7, 14, 21}},
		{"aten::neg(Tensor self) -> Tensor", []any{x}, []float32{-1, -2, -3}},
		{clone, []any{x, nil}, []float32{1, 2, 3}},
	} {
		got, err := rpc.Call[*tensor.Sparse](ctx, a, "w1", c.schema, c.args...)
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		if values, err := tensor.Copy[float32](got.Values); err != nil || !slices.Equal(values, c.want) {
			t.Errorf("%s: %v, %v", c.schema, got, err)
		}
	}
	big := column(make([]float32, 50)...)
	dense := tensor.Must(tensor.New(tensor.Float32, 100))
	for name, c := range map[string]struct {
		schema string
		args   []any
		code   cohort.Code
	}{
		"too large":           {add, []any{big, big, 1}, cohort.Exhausted},
		"an operator of none": {"aten::exp(Tensor self) -> Tensor", []any{x}, cohort.NotSupported},
		"sparse plus dense":   {add, []any{x, dense, 1}, cohort.NotSupported},
		"plus a number": {
			"aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
			[]any{x, 1, 1},
			cohort.NotSupported,
		},
		"another shape": {mul, []any{x, &tensor.Sparse{Shape: []int{3}, Indices: y.Indices, Values: y.Values}}, cohort.InvalidArgument},
	} {
		if got, err := rpc.Call[any](ctx, a, "w1", c.schema, c.args...); !errors.Is(err, c.code) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
