// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/tensor"
)

// TestAssign has the cases of PyTorch's test_c10d_common.py, ComputeBucketAssignmentTest.
func TestAssign(t *testing.T) {
	t.Parallel()
	single := func(elements ...int) (out []piece) {
		for _, n := range elements {
			out = append(out, piece{dtype: tensor.Float32, bytes: 4 * n})
		}
		return out
	}
	mixed := []piece{
		{dtype: tensor.Float32, bytes: 200},
		{dtype: tensor.Float64, bytes: 200},
		{dtype: tensor.Float32, bytes: 200},
		{dtype: tensor.Float64, bytes: 200},
		{dtype: tensor.Float32, bytes: 200},
		{dtype: tensor.Float64, bytes: 200},
	}
	for name, c := range map[string]struct {
		pieces        []piece
		limits, order []int
		want          [][]int
	}{
		"single limit, single type":   {single(100, 200, 100, 50), []int{400}, nil, [][]int{{0}, {1}, {2}, {3}}},
		"single limit, several types": {mixed, []int{400}, nil, [][]int{{0, 2}, {1, 3}, {4}, {5}}},
		"several limits, single type": {single(10, 10, 10, 10), []int{40, 80}, nil, [][]int{{0}, {1, 2}, {3}}},
		"several limits, several types": {
			[]piece{
				{dtype: tensor.Float32, bytes: 200},
				{dtype: tensor.Float64, bytes: 200},
				{dtype: tensor.Float32, bytes: 200},
				{dtype: tensor.Float64, bytes: 200},
				{dtype: tensor.Float32, bytes: 200},
				{dtype: tensor.Float64, bytes: 200},
			},
			[]int{200, 400},
			nil,
			[][]int{{0}, {1}, {2, 4}, {3, 5}},
		},
		"no limit": {mixed, []int{unlimited}, nil, [][]int{{0, 2, 4}, {1, 3, 5}}},
		"ready":    {single(10, 10, 10, 10), []int{40, 80}, []int{3, 2, 0, 1}, [][]int{{3}, {2, 0}, {1}}},
	} {
		if got := assign(c.pieces, c.limits, c.order); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestCut: what rank 0 sends is not trusted.
func TestCut(t *testing.T) {
	t.Parallel()
	m := &Model{params: make([]nn.Param, 3), pieces: []piece{
		{dtype: tensor.Float32, bytes: 4},
		{dtype: tensor.Float32, bytes: 4},
		{dtype: tensor.Float64, bytes: 8},
	}}
	if got, err := m.cut([]int32{1, 0, 2}, []int32{2, 1}); err != nil || !reflect.DeepEqual(got, [][]int{{1, 0}, {2}}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, c := range [][2][]int32{
		{{0, 1, 2}, {3}},
		{{0, 0, 2}, {2, 1}},
		{{0, 1, 3}, {2, 1}},
		{{0, -1, 2}, {2, 1}},
		{{0, 1, 2}, {2}},
		{{0, 1, 2}, {2, 2}},
		{{0, 1, 2}, {2, 0, 1}},
		{{0, 1, 2}, {-1, 1}},
		{{0, 1, 2}, {}},
	} {
		if got, err := m.cut(c[0], c[1]); !errors.Is(err, cohort.Protocol) {
			t.Errorf("order %v sizes %v: %v, %v", c[0], c[1], got, err)
		}
	}
}
