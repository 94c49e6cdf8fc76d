// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// sparseOf is what PyTorch's tests give to a rank: ones at 0 to rank of the first dimension, and at 0 of the others with indices.
func sparseOf(rank, size, sparseDims, denseDims int) *tensor.Sparse {
	n := rank + 1
	indices := make([]int64, sparseDims*n)
	for i := range n {
		indices[i] = int64(i)
	}
	shape, values := slices.Repeat([]int{size}, sparseDims), []int{n}
	for range denseDims {
		shape, values = append(shape, 2), append(values, 2)
	}
	return &tensor.Sparse{Shape: shape, Indices: tensor.Must(tensor.From(indices, sparseDims, n)), Values: full(float32(1), values...)}
}

// wantSparse checks that the ranks have the sum of their tensors, coalesced: row i has come from all ranks from i on.
func wantSparse(got *tensor.Sparse, size, sparseDims, denseDims int) error {
	of := sparseOf(size-1, size, sparseDims, denseDims) // the last rank has all rows
	if !slices.Equal(got.Shape, of.Shape) || !slices.Equal(got.Indices.Shape(), of.Indices.Shape()) ||
		!slices.Equal(got.Values.Shape(), of.Values.Shape()) {
		return fmt.Errorf("shapes %v, %v and %v, want %v, %v and %v", got.Shape, got.Indices.Shape(), got.Values.Shape(), of.Shape,
			of.Indices.Shape(), of.Values.Shape())
	}
	index, err := tensor.Copy[int64](got.Indices)
	if err != nil {
		return err
	}
	want := make([]int64, sparseDims*size)
	for i := range size {
		want[i] = int64(i)
	}
	if !slices.Equal(index, want) {
		return fmt.Errorf("indices %v, want %v", index, want)
	}
	for i := range size {
		row, err := got.Values.Select(0, i)
		if err != nil {
			return err
		}
		if row, err = row.Clone(); err != nil {
			return err
		}
		if err := wantAll(fmt.Sprintf("row %d", i), row, float32(size-i)); err != nil {
			return err
		}
	}
	return nil
}

var sparseCases = [][2]int{{1, 0}, {2, 0}, {3, 0}, {1, 1}, {1, 2}, {1, 3}}

func TestSparseAllReduceBasics(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		for _, c := range sparseCases {
			s := sparseOf(int(g.Rank()), g.Size(), c[0], c[1])
			w := g.AllReduceSparse(ctx, s, group.Sum)
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := wantSparse(s, g.Size(), c[0], c[1]); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			outputs, err := w.Result()
			if err != nil || len(outputs) != 2 || outputs[0] != s.Indices || outputs[1] != s.Values {
				return fmt.Errorf("the result is %v, %w", outputs, err)
			}
			// PyTorch's future has the tensor as its value.
			if outputs, err = w.Future().Await(ctx); err != nil || len(outputs) != 2 {
				return fmt.Errorf("the future has %v, %w", outputs, err)
			}
		}
		return nil
	})
}

// TestSparseAllReduceInGroup: the same in a group of two.
func TestSparseAllReduceInGroup(t *testing.T) {
	run(t, func(ctx context.Context, world *group.Group) error {
		g, err := world.NewGroup(ctx, []cohort.Rank{1, 2})
		if g == nil || err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		for _, c := range sparseCases {
			s := sparseOf(int(g.Rank()), g.Size(), c[0], c[1])
			if err := g.AllReduceSparse(ctx, s, group.Sum).Wait(ctx); err != nil {
				return err
			}
			if err := wantSparse(s, g.Size(), c[0], c[1]); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
		}
		return g.Barrier(ctx).Wait(ctx)
	})
}

func TestSparseAllReduceChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		s := sparseOf(0, 4, 1, 0)
		errs := []error{refused("no tensor", g.AllReduceSparse(ctx, nil, group.Sum), "no tensor")}
		for _, op := range []group.ReduceOp{group.Product, group.Min, group.Max, group.Avg, group.And} {
			errs = append(errs, refused(op.String(), g.AllReduceSparse(ctx, s, op), "unsupported reduction operation"))
		}
		outside := sparseOf(3, 2, 1, 0) // indices up to 3 of 2
		return errors.Join(append(errs,
			refused("an index outside", g.AllReduceSparse(ctx, outside, group.Sum), "outside dimension 0"),
			refused("five dimensions with indices", g.AllReduceSparse(ctx, sparseOf(0, 2, 5, 0), group.Sum), "at most 4 have them"),
			refused("five dimensions without", g.AllReduceSparse(ctx, sparseOf(0, 2, 1, 5), group.Sum), "4 have none"),
			untouched(ctx, g))...)
	})
}

// TestSparseAllReduceDiffers: tensors of other sizes or types fail on all ranks, which then go on together.
func TestSparseAllReduceDiffers(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		odd := g.Rank() == 2
		for i, other := range []*tensor.Sparse{
			sparseOf(0, 5, 1, 0), sparseOf(0, 4, 2, 0), sparseOf(0, 4, 1, 1),
			{Shape: []int{4}, Indices: full(int64(1), 1, 1), Values: full(float64(1), 1)},
		} {
			s := sparseOf(0, 4, 1, 0)
			if odd {
				s = other
			}
			err := g.AllReduceSparse(ctx, s, group.Sum).Wait(ctx)
			if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "Sparse dimensions do not match") || g.Err() != nil {
				return fmt.Errorf("case %d: %w, the group %w", i, err, g.Err())
			}
			x := full(int64(1), 1)
			if err := g.AllReduce(ctx, x, group.Sum).Wait(ctx); err != nil {
				return err
			}
			if err := wantAll("afterwards", x, int64(g.Size())); err != nil {
				return err
			}
			if err := g.Barrier(ctx).Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}
