// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// step runs one forward and backward pass with data of its own for each seed.
func step(ctx context.Context, model *ddp.Model, seed uint64) error {
	x, y := batch(seed, 8)
	return autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx)
}

// passes runs n passes on two ranks. Each leaves the gradients that one rank with the data of both computes.
func passes(ctx context.Context, model *ddp.Model, reference nn.Module, n int) error {
	for i := range uint64(n) {
		zero(model.Module())
		if err := step(ctx, model, 2*i+uint64(model.Group().Rank())); err != nil {
			return err
		}
		want, err := single(ctx, reference, []uint64{2 * i, 2*i + 1})
		if err != nil {
			return err
		}
		if got := grads(model.Module()); !near(got, want) {
			return fmt.Errorf("pass %d: %v, want %v", i, got, want)
		}
	}
	return nil
}

// TestTraceShowsOverlap reads the events: a reduction of the pass has ended before the pass has computed its last
// gradient. The last layer to be reached waits for that, so the result does not depend on timing.
func TestTraceShowsOverlap(t *testing.T) {
	t.Parallel()
	reduced := make(chan struct{}, 1000)
	var mu sync.Mutex
	var trace []string
	hook := observe.Hook(func(e observe.Event) {
		if e.Rank != 0 || e.Kind != "group.all_reduce" && e.Kind != "ddp.backward" {
			return
		}
		mu.Lock()
		trace = append(trace, fmt.Sprint(e.Kind, " ", e.Phase))
		mu.Unlock()
		if e.Phase == observe.End && e.Kind == "group.all_reduce" {
			reduced <- struct{}{}
		}
	})
	worldWith(t, 2, []group.Option{group.WithHook(hook)}, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		model, err := ddp.New(ctx, g, m, ddp.WithBuckets(1, 1), ddp.WithHook(hook))
		if err != nil {
			return err
		}
		defer model.Close()
		if err := step(ctx, model, 1); err != nil { // the buckets are made again behind this pass
			return err
		}
		if err := model.Prepare(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			mu.Lock()
			trace = nil
			mu.Unlock()
			for len(reduced) > 0 {
				<-reduced
			}
			first, _ := m[0].(*nn.Linear)
			if _, err := first.Weight.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) {
				select {
				case <-reduced:
					return nil, nil
				case <-ctx.Done():
					return nil, errors.New("no reduction ended while the pass was running")
				}
			}); err != nil {
				return err
			}
		}
		if err := step(ctx, model, 2); err != nil {
			return err
		}
		if g.Rank() == 0 {
			mu.Lock()
			defer mu.Unlock()
			end, ended := slices.Index(trace, "ddp.backward end"), slices.Index(trace, "group.all_reduce end")
			if end < 0 || ended < 0 || ended > end {
				return fmt.Errorf("no reduction ended before the pass: %v", trace)
			}
		}
		return nil
	})
}

// TestBuffers: before each forward, running statistics are those of rank 0, unless the forward before only accumulated.
func TestBuffers(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]ddp.Option{
		"each forward": nil, "at the ends": ddp.WithBuffersAtEnds(),
		"never": ddp.WithoutBuffers(),
	} {
		keep := option != nil
		world(t, 2, func(ctx context.Context, g *group.Group) error {
			norm := nn.NewBatchNorm(4)
			if err := norm.Buffers()[0].Value.Fill(g.Rank() + 5); err != nil {
				return err
			}
			m := append(nn.Sequential{norm}, net(1)...)
			model, err := ddp.New(ctx, g, m, option)
			if err != nil {
				return err
			}
			defer model.Close()
			first := float32(5)
			if name == "never" {
				first += float32(g.Rank())
			}
			if v, failure := norm.Buffers()[0].Value.At(0); failure != nil || v != first {
				return fmt.Errorf("%s: the first running mean of rank %d is %v, %w", name, g.Rank(), v, failure)
			}
			if err = step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
			same := func() (bool, error) {
				all, failure := tensor.Copy[float32](norm.Buffers()[0].Value)
				if failure != nil {
					return false, failure
				}
				every, failure := group.AllGatherSlice(ctx, g, all)
				if failure != nil {
					return false, failure
				}
				return slices.Equal(every[:len(all)], every[len(all):]), nil
			}
			ok, err := same()
			if err != nil || ok {
				return fmt.Errorf("data of two ranks has the same statistics: %w", err)
			}
			model.SetSync(false)
			if err = model.Prepare(ctx); err != nil {
				return err
			}
			ok, err = same()
			if err != nil || ok == keep {
				return fmt.Errorf("behind a pass with reduction: the same statistics are %v, %w", ok, err)
			}
			if err := step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
			if ok, err := same(); err != nil || ok {
				return fmt.Errorf("data of two ranks has the same statistics: %w", err)
			}
			if err := model.Prepare(ctx); err != nil {
				return err
			}
			if ok, err := same(); err != nil || ok {
				return fmt.Errorf("behind a pass without reduction the statistics are the same: %w", err)
			}
			return nil
		})
	}
}

// TestCommHooks: the built-in hooks give the means within their precision, and a hook of the user's gets every bucket once.
func TestCommHooks(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []int
	for name, c := range map[string]struct {
		hook      ddp.CommHook
		tolerance float64
		factor    float32
	}{
		"fp16": {ddp.FP16, 2e-3, 1},
		"bf16": {ddp.BF16, 2e-2, 1},
		"sum": {func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
			if g.Rank() == 0 {
				mu.Lock()
				seen = append(seen, b.Index)
				mu.Unlock()
			}
			return g.AllReduce(ctx, b.Data, group.Sum).Wait
		}, 1e-5, 2},
	} {
		world(t, 2, func(ctx context.Context, g *group.Group) error {
			m := net(uint64(g.Rank()))
			model, err := ddp.New(ctx, g, m, ddp.WithBuckets(1, 1), ddp.WithCommHook(c.hook))
			if err != nil {
				return err
			}
			defer model.Close()
			want, err := single(ctx, net(0), []uint64{0, 1})
			if err != nil {
				return err
			}
			for range 2 {
				zero(m)
				if err := step(ctx, model, uint64(g.Rank())); err != nil {
					return err
				}
			}
			for i, got := range grads(m) {
				for j, v := range got {
					if d := float64(v - c.factor*want[i][j]); d > c.tolerance || d < -c.tolerance {
						return fmt.Errorf("%s: gradient %d[%d] is %v, want %v", name, i, j, v, c.factor*want[i][j])
					}
				}
			}
			return nil
		})
	}
	if want := []int{0, 0, 1, 2, 3, 4, 5}; !slices.Equal(seen, want) {
		t.Errorf("the hook got buckets %v, want %v", seen, want)
	}
	// What a hook leaves in a bucket when its function returns is the gradient, untouched.
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		model, err := ddp.New(ctx, g, m,
			ddp.WithCommHook(func(_ context.Context, _ *group.Group, b ddp.Bucket) func(context.Context) error {
				return func(context.Context) error {
					data, err := tensor.Data[float32](b.Data)
					for i := range data {
						data[i] = 2
					}
					return err
				}
			}))
		if err != nil {
			return err
		}
		defer model.Close()
		if err := step(ctx, model, uint64(g.Rank())); err != nil {
			return err
		}
		for i, got := range grads(m) {
			if len(got) == 0 || slices.Min(got) != 2 || slices.Max(got) != 2 {
				return fmt.Errorf("gradient %d is %v, want 2", i, got)
			}
		}
		return nil
	})
	failed := errors.New("the hook has failed")
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		model, err := ddp.New(ctx, g, net(1), ddp.WithCommHook(func(context.Context, *group.Group, ddp.Bucket) func(context.Context) error {
			return func(context.Context) error { return failed }
		}))
		if err != nil {
			return err
		}
		defer model.Close()
		if err := step(ctx, model, 1); !errors.Is(err, failed) {
			return fmt.Errorf("a pass with a hook that fails: %w", err)
		}
		return nil
	})
}

// TestStaticGraph: parameters that a pass does not use keep their gradients, without a walk through the graph, and the
// others are means in every pass.
func TestStaticGraph(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		m := newBranches(uint64(g.Rank()))
		model, err := ddp.New(ctx, g, m, ddp.WithStaticGraph(), ddp.WithBuckets(1, 1))
		if err != nil {
			return err
		}
		defer model.Close()
		if err := passes(ctx, model, newBranches(0), 4); err != nil {
			return err
		}
		if n := len(model.Buckets()); n != len(m.Params()) {
			return fmt.Errorf("%d buckets after the third pass: %v", n, model.Buckets())
		}
		if _, err := ddp.New(ctx, g, m, ddp.WithStaticGraph(), ddp.WithFindUnused()); !errors.Is(err, cohort.InvalidArgument) {
			return fmt.Errorf("both ways to find unused parameters: %w", err)
		}
		if err := model.Join(ctx, func() error { return nil }); !errors.Is(err, cohort.NotSupported) {
			return fmt.Errorf("Join with a static graph: %w", err)
		}
		return nil
	})
}

// TestStaticGraphApart: with a static graph, too, a parameter that one rank uses gets its gradient on all ranks, and one that no rank uses
// gets none.
func TestStaticGraphApart(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, newBranches, []ddp.Option{ddp.WithStaticGraph()},
		func(ctx context.Context, g *group.Group, m *branches, model *ddp.Model) error {
			m.goRight = g.Rank() == 1
			for pass := range 3 {
				zero(m)
				if err := step(ctx, model, uint64(pass)); err != nil {
					return err
				}
				want := newBranches(1)
				for _, want.goRight = range []bool{false, true} {
					x, y := batch(uint64(pass), 8)
					if err := autograd.CrossEntropy(want.Forward(x), y, autograd.ReduceMean).Scale(0.5).Backward(ctx); err != nil {
						return err
					}
				}
				if got := grads(m); !near(got, grads(want)) || m.left.Weight.Grad() == nil || m.right.Weight.Grad() == nil ||
					m.never.Weight.Grad() != nil {
					return fmt.Errorf("pass %d: %v, want %v", pass, got, grads(want))
				}
			}
			return nil
		})
}

// TestJoin: ranks with more data go on without waiting for those that have none left; everybody ends with the same model.
// Every number of steps below the others', none included, is tried, with and without buckets made again in between.
func TestJoin(t *testing.T) {
	t.Parallel()
	for _, active := range []bool{false, true} {
		for _, unused := range []bool{false, true} {
			for short := range 4 {
				joinRun(t, active, unused, short)
			}
		}
	}
}

func joinRun(t *testing.T, active, unused bool, short int) {
	t.Helper()
	const size, long = 3, 4
	world(t, size, func(ctx context.Context, g *group.Group) error {
		m := net(uint64(g.Rank()))
		opts := []ddp.Option{ddp.WithBuckets(1, 100)}
		if unused {
			opts = append(opts, ddp.WithFindUnused())
		}
		model, err := ddp.New(ctx, g, m, opts...)
		if err != nil {
			return err
		}
		defer model.Close()
		steps := long
		if g.Rank() == 0 {
			steps = short
		}
		var divide []ddp.JoinOption
		if active {
			divide = append(divide, ddp.DivideByActive())
		}
		reference := net(0)
		err = model.Join(ctx, func() error {
			for i := range steps {
				zero(m)
				if failure := step(ctx, model, uint64(cohort.Rank(10*i)+g.Rank())); failure != nil {
					return failure
				}
				var seeds []uint64
				for rank := range size {
					if rank > 0 || i < short {
						seeds = append(seeds, uint64(10*i+rank))
					}
				}
				want, failure := single(ctx, reference, seeds)
				if failure != nil {
					return failure
				}
				factor := float32(1)
				if !active {
					factor = float32(len(seeds)) / size
				}
				for _, g := range want {
					for k := range g {
						g[k] *= factor
					}
				}
				if got := grads(m); !near(got, want) {
					return fmt.Errorf("step %d: %v, want %v", i, got, want)
				}
			}
			if g.Rank() == size-1 { // as an optimizer that only the ranks with data have stepped
				return m.Params()[0].Value.Data().Fill(42)
			}
			return nil
		}, divide...)
		if err != nil {
			return err
		}
		if v, err := m.Params()[0].Value.Data().At(0, 0); err != nil || v != float32(42) {
			return fmt.Errorf("the model is not that of the last rank: %v, %w", v, err)
		}
		return nil
	})
}
