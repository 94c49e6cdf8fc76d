// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/tensor"
)

// TestCallToSelfCopiesLikeAWire sends views and a sparse tensor to the worker itself: they are copies, and what shared its
// memory before shares it after.
func TestCallToSelfCopiesLikeAWire(t *testing.T) {
	var seen []*tensor.Tensor
	reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x }).
		MustHandle("v.see", func(xs []*tensor.Tensor) { seen = xs })
	agents := world(t, 1, false, func(int) *Registry { return reg })
	ctx := testContext(t)
	x := tensor.Must(tensor.From([]float32{1, 2, 3, 4, 5, 6}, 2, 3))
	row := tensor.Must(x.Select(0, 1))
	turned := tensor.Must(x.Transpose(0, 1))
	check := func(what string, got []*tensor.Tensor) {
		t.Helper()
		for i, want := range []*tensor.Tensor{row, turned} {
			if !tensor.Equal(got[i], want) || !slices.Equal(got[i].Strides(), want.Strides()) || got[i].Offset() != want.Offset() {
				t.Errorf("%s: tensor %d: %v, strides %v, offset %d", what, i, got[i], got[i].Strides(), got[i].Offset())
			}
		}
		if got[0].Storage() != got[1].Storage() || got[0].Storage() == x.Storage() || got[0].Storage().Len() != x.Storage().Len() {
			t.Errorf("%s: the views do not share one copy", what)
		}
	}
	got, err := Call[[]*tensor.Tensor](ctx, agents[0], "w0", "v.echo", []*tensor.Tensor{row, turned})
	if err != nil {
		t.Fatal(err)
	}
	check("call", got)
	ref, err := Remote[any](ctx, agents[0], "w0", "v.see", []*tensor.Tensor{row, turned})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = ref.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	check("remote", seen)
	_ = ref.Close()
	sparse := &tensor.Sparse{Shape: []int{2, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 2, 0}, 2, 2)), Values: tensor.Must(tensor.From([]float32{3, 4}, 2))}
	back, err := Call[*tensor.Sparse](ctx, agents[0], "w0", "v.echo", sparse)
	if err != nil || !tensor.Equal(back.Values, sparse.Values) || !tensor.Equal(back.Indices, sparse.Indices) {
		t.Fatalf("sparse: %v, %v", back, err)
	}
	if back.Values.Storage() == sparse.Values.Storage() {
		t.Error("a sparse tensor is not copied")
	}
}
