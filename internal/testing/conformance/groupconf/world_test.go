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
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// worldSize is that of PyTorch's multi-process tests.
const worldSize = 4

// run runs f as every rank of a world of PyTorch's size, over each transport.
func run(t *testing.T, f func(ctx context.Context, g *group.Group) error, opts ...group.Option) {
	t.Helper()
	runSize(t, worldSize, f, opts...)
}

func runSize(t *testing.T, size int, f func(ctx context.Context, g *group.Group) error, opts ...group.Option) {
	t.Helper()
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			runOver(t, transport, size, f, opts...)
		})
	}
}

// runOver runs f as every rank of one world. Groups are closed when all ranks have returned, so no rank sees another one leave.
func runOver(t *testing.T, transport group.Transport, size int, f func(ctx context.Context, g *group.Group) error, opts ...group.Option) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	groups := make([]*group.Group, size)
	opts = append([]group.Option{group.WithTransport(transport)}, opts...)
	err := each(size, func(r int) (err error) {
		groups[r], err = group.New(ctx, s, cohort.Rank(r), size, opts...)
		return err
	})
	if err == nil {
		err = each(size, func(r int) error { return f(ctx, groups[r]) })
	}
	if err != nil {
		t.Error(err)
	}
	_ = each(size, func(r int) error {
		if groups[r] != nil {
			return groups[r].Close()
		}
		return nil
	})
}

// each runs f for every rank at once.
var each = testkit.EachRank

// full returns a tensor whose elements are all v.
func full[T tensor.Element](v T, shape ...int) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return tensor.Must(tensor.From(slices.Repeat([]T{v}, n), shape...))
}

// cube is what PyTorch's tests call _build_tensor: size x size x size elements.
func cube[T tensor.Element](size int, v T) *tensor.Tensor { return full(v, size, size, size) }

// column returns a tensor of one element whose memory is a column of a larger one, as in PyTorch's tests of tensors that
// are not contiguous.
func column(t *tensor.Tensor) (*tensor.Tensor, error) {
	e, err := t.Expand(2, 2)
	if err != nil {
		return nil, err
	}
	dense, err := e.Clone()
	if err != nil {
		return nil, err
	}
	if dense, err = dense.Contiguous(); err != nil {
		return nil, err
	}
	return dense.Select(1, 0)
}

// wantAll checks that all elements of a tensor are v, and its shape if one is given.
func wantAll[T tensor.Element](what string, got *tensor.Tensor, v T, shape ...int) error {
	values, err := tensor.Copy[T](got)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if shape != nil && !slices.Equal(got.Shape(), shape) {
		return fmt.Errorf("%s: shape %v, want %v", what, got.Shape(), shape)
	}
	for i, x := range values {
		if x != v {
			return fmt.Errorf("%s: element %d is %v, want %v", what, i, x, v)
		}
	}
	return nil
}

// refused checks that an operation was refused as a mistake of the caller, at once, and for the reason that the words give.
func refused(what string, w *group.Work, words string) error {
	if !w.Completed() || !errors.Is(w.Err(), cohort.InvalidArgument) || !strings.Contains(w.Err().Error(), words) {
		return fmt.Errorf("%s: %w, want a refusal: %s", what, w.Err(), words)
	}
	return nil
}

// untouched checks that refusals have not put the ranks out of step.
func untouched(ctx context.Context, g *group.Group) error {
	if g.Seq() != 0 || g.Err() != nil {
		return fmt.Errorf("refusals took %d sequence numbers, failure %w", g.Seq(), g.Err())
	}
	x := full(int64(1), 1)
	if err := g.AllReduce(ctx, x, group.Sum).Wait(ctx); err != nil {
		return err
	}
	return wantAll("all_reduce after refusals", x, int64(g.Size()))
}

func repeat(t *tensor.Tensor, n int) []*tensor.Tensor { return slices.Repeat([]*tensor.Tensor{t}, n) }
