// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// TestMeans: gradients are those of all data on one rank, whatever the buckets, before and after they are made again, and
// with passes that only accumulate.
func TestMeans(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3} {
		for _, cap := range []int{1, 100, 1 << 20} {
			var mu sync.Mutex
			var layouts []string
			world(t, size, func(ctx context.Context, g *group.Group) error {
				m := net(uint64(g.Rank()))
				model, err := ddp.New(ctx, g, m, ddp.WithBuckets(cap, cap))
				if err != nil {
					return err
				}
				defer model.Close()
				reference := net(0) // rank 0's
				for step := range uint64(4) {
					zero(m)
					seeds := []uint64{}
					for r := range uint64(size) {
						seeds = append(seeds, 100*step+r)
					}
					want, err := single(ctx, reference, seeds)
					if err != nil {
						return err
					}
					x, y := batch(100*step+uint64(g.Rank()), 8)
					if err := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx); err != nil {
						return err
					}
					if got := grads(m); !near(got, want) {
						return fmt.Errorf("step %d: gradients\n%v, want\n%v", step, got, want)
					}
				}
				// Two passes accumulate here, the third is reduced with them.
				zero(m)
				var total [][]float32
				for k := range uint64(3) {
					seeds := []uint64{}
					for r := range uint64(size) {
						seeds = append(seeds, 1000+10*k+r)
					}
					want, err := single(ctx, reference, seeds)
					if err != nil {
						return err
					}
					total = sum(total, want)
					model.SetSync(k == 2)
					before := g.Seq()
					x, y := batch(1000+10*k+uint64(g.Rank()), 8)
					if err := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx); err != nil {
						return err
					}
					if k < 2 && g.Seq() != before {
						return errors.New("a pass without sync communicated")
					}
				}
				if got := grads(m); !near(got, total) {
					return fmt.Errorf("accumulated %v, want %v", got, total)
				}
				mu.Lock()
				defer mu.Unlock()
				layouts = append(layouts, fmt.Sprint(model.Buckets()))
				return nil
			})
			if len(slices.Compact(layouts)) != 1 {
				t.Errorf("ranks have different buckets: %v", layouts)
			}
			if cap == 1 && !strings.HasPrefix(layouts[0], "[[4.") {
				t.Errorf("buckets are not in the order of the backward pass: %s", layouts[0])
			}
		}
	}
}

// TestOverlap: the first reductions begin before the backward pass has reached the first layer.
func TestOverlap(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		first, _ := m[0].(*nn.Linear)
		model, err := ddp.New(ctx, g, m, ddp.WithBuckets(1, 1))
		if err != nil {
			return err
		}
		defer model.Close()
		var early uint64
		var before uint64
		if _, err := first.Weight.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) {
			early = g.Seq() - before
			return nil, nil
		}); err != nil {
			return err
		}
		for range 2 { // the second pass has the final buckets
			x, y := batch(1, 8)
			out := model.Forward(ctx, x)
			before = g.Seq()
			if err := autograd.CrossEntropy(out, y, autograd.ReduceMean).Backward(ctx); err != nil {
				return err
			}
		}
		if early < 4 {
			return fmt.Errorf("%d reductions had begun when the last gradient came", early)
		}
		return nil
	})
}

func TestUnused(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, newBranches, []ddp.Option{ddp.WithFindUnused()},
		func(ctx context.Context, g *group.Group, m *branches, model *ddp.Model) error {
			for step := range 3 {
				zero(m)
				m.goRight = g.Rank() == 1 && step != 1
				x, y := batch(uint64(step), 8)
				if err := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx); err != nil {
					return err
				}
				if m.never.Weight.Grad() != nil {
					return errors.New("an unused parameter got a gradient")
				}
				if m.left.Weight.Grad() == nil {
					return errors.New("a parameter that the other rank used got no gradient")
				}
				if (m.right.Weight.Grad() != nil) != (step != 1) {
					return fmt.Errorf("step %d: the gradient of the right branch is %v", step, m.right.Weight.Grad())
				}
			}
			return nil
		})
	// Without the option the pass says what is missing.
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		r := rand.New(rand.NewPCG(1, 1))
		m := &branches{left: nn.NewLinear(r, 4, 2), right: nn.NewLinear(r, 4, 2), never: nn.NewLinear(r, 4, 2)}
		model, err := ddp.New(ctx, g, m)
		if err != nil {
			return err
		}
		defer model.Close()
		x, y := batch(1, 8)
		err = autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx)
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "never.weight") {
			return fmt.Errorf("unused parameters: %w", err)
		}
		if err := model.Forward(ctx, x).Err(); err == nil {
			return errors.New("a model that is out of step goes on")
		}
		return nil
	})
}

// TestTrainsAlike: after every step the parameters are those that one rank with all data has, and in the end they are the same on all
// ranks, bit by bit, whether all gradients are in one bucket or in several.
func TestTrainsAlike(t *testing.T) {
	t.Parallel()
	trainsAlike(t)
	trainsAlike(t, ddp.WithBuckets(100, 100))
}

func trainsAlike(t *testing.T, opts ...ddp.Option) {
	t.Helper()
	var mu sync.Mutex
	var all [][]*tensor.Tensor
	world(t, 3, func(ctx context.Context, g *group.Group) error {
		m := net(uint64(g.Rank()))
		model, err := ddp.New(ctx, g, m, opts...)
		if err != nil {
			return err
		}
		defer model.Close()
		rule := optim.SGD{LR: 0.1, Momentum: 0.9}
		opt, err := optim.New(rule, nn.Variables(m))
		if err != nil {
			return err
		}
		reference := net(0)
		same, err := optim.New(rule, nn.Variables(reference))
		if err != nil {
			return err
		}
		for k := range uint64(20) {
			opt.ZeroGrad()
			if err := errors.Join(step(ctx, model, 10*k+uint64(g.Rank())), opt.Step()); err != nil {
				return err
			}
			if _, err := single(ctx, reference, []uint64{10 * k, 10*k + 1, 10*k + 2}); err != nil {
				return err
			}
			if err := same.Step(); err != nil {
				return err
			}
			for i, v := range nn.Variables(m) {
				if want := nn.Variables(reference)[i].Data(); !tensor.AllClose(v.Data(), want, 1e-4, 1e-5, false) {
					return fmt.Errorf("step %d: parameter %d is %v, want %v", k, i, v.Data(), want)
				}
			}
		}
		if n := len(model.Buckets()); (n > 1) != (len(opts) > 0) {
			return fmt.Errorf("%d buckets", n)
		}
		mu.Lock()
		defer mu.Unlock()
		var params []*tensor.Tensor
		for _, v := range nn.Variables(m) {
			params = append(params, v.Data())
		}
		all = append(all, params)
		return nil
	})
	for _, other := range all {
		for i, p := range other {
			if !tensor.SameBits(p, all[0][i]) {
				t.Errorf("parameter %d differs", i)
			}
		}
	}
}

// TestTied: a layer that is used twice has one gradient.
func TestTied(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		r := rand.New(rand.NewPCG(1, uint64(g.Rank())))
		shared := nn.NewLinear(r, 4, 4)
		net := nn.Sequential{shared, nn.Tanh, shared}
		model, err := ddp.New(ctx, g, net)
		if err != nil {
			return err
		}
		defer model.Close()
		opt, err := optim.New(optim.SGD{LR: 0.1}, nn.Variables(net))
		if err != nil {
			return err
		}
		for step := range uint64(3) {
			opt.ZeroGrad()
			x, y := batch(step, 8)
			if err := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
		}
		if n := len(model.Buckets()[0]); n != 2 {
			return fmt.Errorf("%d parameters", n)
		}
		return nil
	})
}
