// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// storages returns where the gradients are.
func storages(m nn.Module) []*tensor.Storage {
	var out []*tensor.Storage
	for _, v := range nn.Variables(m) {
		out = append(out, v.Grad().Storage())
	}
	return out
}

// TestGradientsInBuckets: gradients are computed and reduced in the memory of the buckets, pass after pass, and the group divides them.
// Those that are not cleared move along when the buckets are made again, and are added to. Close leaves a copy.
func TestGradientsInBuckets(t *testing.T) {
	t.Parallel()
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory} {
		worldWith(t, 2, []group.Option{group.WithTransport(transport)}, func(ctx context.Context, g *group.Group) error {
			m, reference := net(1), net(1)
			model, err := ddp.New(ctx, g, m, ddp.WithBuckets(100, 100))
			if err != nil {
				return err
			}
			want, err := single(ctx, reference, []uint64{0, 1})
			if err != nil {
				return err
			}
			var before []*tensor.Storage
			for pass := range 4 {
				if pass == 2 {
					before = storages(m)
					zero(m)
				}
				if err := step(ctx, model, uint64(g.Rank())); err != nil {
					return err
				}
				sum := grads(m)
				for _, g := range sum {
					for i := range g {
						g[i] /= float32(1 + pass%2) // the second pass adds to the first
					}
				}
				if !near(sum, want) {
					return fmt.Errorf("pass %d: %v, want %v", pass, sum, want)
				}
				if buckets := len(slices.Compact(storages(m))); buckets != len(model.Buckets()) {
					return fmt.Errorf("pass %d: gradients in %d pieces of memory for buckets %v", pass, buckets, model.Buckets())
				}
			}
			if !slices.Equal(storages(m), before) {
				return errors.New("the memory was not used again")
			}
			last := grads(m)
			model.Close()
			if now := storages(m); slices.ContainsFunc(now, (*tensor.Storage).Released) || slices.Contains(before, now[0]) {
				return errors.New("gradients are still memory of the buckets")
			}
			if got := grads(m); !slices.EqualFunc(got, last, slices.Equal) {
				return fmt.Errorf("after Close: %v, want %v", got, last)
			}
			return nil
		})
	}
}

// TestComputedInBuckets: gradients of matrices are written to the buckets by the products that compute them, not copied there. A
// hook that runs before that of the model already finds them there. (Those of biases, which are small, are sums and copied.)
func TestComputedInBuckets(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		var buckets []*tensor.Storage
		var copied []string
		for _, p := range m.Params() {
			_, err := p.Value.OnAccumulated(func(_ context.Context, _ *autograd.Pass, v *autograd.Variable) error {
				if buckets != nil && v.Dims() > 1 && !slices.Contains(buckets, v.Grad().Storage()) {
					copied = append(copied, p.Name)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		model, err := ddp.New(ctx, g, m, ddp.WithBuckets(100, 100))
		if err != nil {
			return err
		}
		defer model.Close()
		for pass := range 4 {
			if pass >= 2 { // the buckets are the final ones
				buckets = storages(m)
				zero(m)
			}
			if err := step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
		}
		if len(copied) > 0 {
			return fmt.Errorf("gradients of %v were computed elsewhere", copied)
		}
		return nil
	})
}

// TestGradientsStay: a gradient stays what it is, to the bit, when a pass of the others uses the bucket that it is in: that of a
// parameter which no rank uses, and those of a rank that has joined. With three ranks a mean of three equal numbers may be another.
func TestGradientsStay(t *testing.T) {
	t.Parallel()
	wrapped(t, 3, newBranches, []ddp.Option{ddp.WithFindUnused()},
		func(ctx context.Context, g *group.Group, m *branches, model *ddp.Model) error {
			if err := step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
			before := grads(m)[0]
			m.goRight = true
			for range 3 {
				if err := step(ctx, model, uint64(g.Rank())); err != nil {
					return err
				}
			}
			if got := grads(m)[0]; !slices.Equal(got, before) {
				return fmt.Errorf("unused: %v, want %v", got, before)
			}
			return nil
		})
	wrapped(t, 3, net, nil, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
		var last [][]float32
		err := model.Join(ctx, func() error {
			for k := range 2 + 2*g.Rank() {
				zero(m)
				if failure := step(ctx, model, uint64(10*k+g.Rank())); failure != nil {
					return failure
				}
			}
			last = grads(m)
			return nil
		})
		if err != nil {
			return err
		}
		if got := grads(m); !slices.EqualFunc(got, last, slices.Equal) {
			return fmt.Errorf("joined: %v, want %v", got, last)
		}
		return nil
	})
}

// TestKeptGradients: a gradient that the program has kept is memory of a bucket, which the next pass overwrites, also after ZeroGrad. So it
// is in PyTorch with gradient_as_bucket_view=True. A copy stays, and so does what is kept when the model is closed.
func TestKeptGradients(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, net, nil, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
		for range 2 { // then the buckets are the final ones
			zero(m)
			if err := step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
		}
		first := nn.Variables(m)[0]
		kept, before := first.Grad(), grads(m)[0]
		zero(m)
		if err := step(ctx, model, 7+uint64(g.Rank())); err != nil {
			return err
		}
		now, err := tensor.Copy[float32](kept)
		if err != nil {
			return err
		}
		if first.Grad() != kept || slices.Equal(now, before) {
			return fmt.Errorf("the gradient %v has become %v, and that of the parameter is %v", before, now, first.Grad())
		}
		model.Close()
		kept, before = first.Grad(), grads(m)[0]
		zero(m)
		if _, err = single(ctx, m, []uint64{9}); err != nil {
			return err
		}
		if now, err = tensor.Copy[float32](kept); err != nil || !slices.Equal(now, before) {
			return fmt.Errorf("after Close the gradient %v has become %v: %w", before, now, err)
		}
		return nil
	})
}
