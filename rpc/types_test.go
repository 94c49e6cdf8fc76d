// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// TestElementTypes sends every element type between Go workers. On PyTorch's transport the kind of the other side is unknown,
// so the later ones go only to a worker that has sent one, or with WithElementTypes.
func TestElementTypes(t *testing.T) {
	made := tensor.Must(tensor.Of([]uint16{1, 2}))
	reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x }).MustHandle("v.made", func() *tensor.Tensor { return made })
	for _, c := range []struct {
		name string
		open bool
		opts []Option
	}{
		{"cohort", true, nil},
		{"uv", false, []Option{WithTransports(TransportUV)}},
		{"uv, told", true, []Option{WithTransports(TransportUV), WithElementTypes(tensor.Uint16)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			agents := world(t, 2, true, func(int) *Registry { return reg }, c.opts...)
			ctx := testContext(t)
			for dt := range tensor.DType(23) {
				if !dt.Valid() {
					continue
				}
				x := tensor.Must(tensor.Full(dt, 1, 2, 3))
				if y, err := Call[*tensor.Tensor](ctx, agents[0], "w1", "v.echo", x); err != nil || !tensor.Equal(x, y) {
					t.Errorf("%v: %v, %v", dt, y, err)
				}
			}
			for _, x := range []any{made, &tensor.Sparse{Shape: []int{4}, Indices: tensor.Must(tensor.From([]int64{0, 1}, 1, 2)), Values: made}} {
				if _, err := Call[any](ctx, agents[0], "w1", "v.echo", x); (err == nil) != c.open || err != nil && !errors.Is(err, cohort.NotSupported) {
					t.Errorf("%T as an argument: %v", x, err)
				}
			}
			if y, err := Call[*tensor.Tensor](ctx, agents[0], "w1", "v.made"); (err == nil) != c.open || err == nil && !tensor.Equal(made, y) {
				t.Errorf("as a result: %v, %v", y, err)
			}
			shutdown(t, agents)
		})
	}
	if _, err := Join(testContext(t), store.NewMemory(), "w", WithElementTypes(99)); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("no element type: %v", err)
	}
}
