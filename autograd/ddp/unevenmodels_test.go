// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// unevenSteps are how many passes each rank makes: one or two ranks end early, with none or some, by a few or many.
func unevenSteps() (all [][]int) {
	for _, first := range []int{0, 5} {
		for _, more := range []int{2, 3, 10} {
			all = append(all, []int{first, first + more, first + more}, []int{first, first + more/2, first + more})
		}
	}
	return all
}

// TestJoinModels: models of several kinds, with and without a hook, with passes that only accumulate, end on all ranks as on the last one,
// whatever the numbers of passes.
func TestJoinModels(t *testing.T) {
	t.Parallel()
	chained := func(skips cohort.Rank) func(rank cohort.Rank) nn.Module {
		return func(rank cohort.Rank) nn.Module {
			r := rand.New(rand.NewPCG(1, uint64(rank)))
			return &chain{first: nn.NewLinear(r, 4, 4), second: nn.NewLinear(r, 4, 2), skip: rank == skips}
		}
	}
	mean := func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
		return g.AllReduce(ctx, b.Data, group.Avg).Wait
	}
	for name, c := range map[string]struct {
		make func(rank cohort.Rank) nn.Module
		opts []ddp.Option
	}{
		"layers": {func(rank cohort.Rank) nn.Module { return net(uint64(rank)) }, []ddp.Option{ddp.WithBuckets(100, 100)}},
		"statistics": {func(rank cohort.Rank) nn.Module {
			return append(nn.Sequential{nn.NewBatchNorm(4)}, net(uint64(rank))...)
		}, nil},
		"unused by the first": {chained(0), []ddp.Option{ddp.WithFindUnused()}},
		"unused by the last":  {chained(2), []ddp.Option{ddp.WithFindUnused()}},
		"hook":                {func(rank cohort.Rank) nn.Module { return net(uint64(rank)) }, []ddp.Option{ddp.WithCommHook(mean)}},
		"hook, several buckets": {
			func(rank cohort.Rank) nn.Module { return net(uint64(rank)) },
			[]ddp.Option{ddp.WithCommHook(mean), ddp.WithBuckets(100, 100)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, interval := range []int{1, 3} {
				for _, steps := range unevenSteps() {
					joinModel(t, c.make, c.opts, interval, steps)
				}
			}
		})
	}
}

// joinModel trains a model within Join. Every interval-th pass is reduced; every pass changes the parameters, so that
// they differ between ranks unless all are reduced.
func joinModel(t *testing.T, module func(rank cohort.Rank) nn.Module, opts []ddp.Option, interval int, steps []int) {
	t.Helper()
	world(t, len(steps), func(ctx context.Context, g *group.Group) error {
		m := module(g.Rank())
		model, err := ddp.New(ctx, g, m, opts...)
		if err != nil {
			return err
		}
		defer model.Close()
		opt, err := optim.New(optim.SGD{LR: 0.1}, nn.Variables(m))
		if err != nil {
			return err
		}
		taken := 0
		var last []*tensor.Tensor
		err = model.Join(ctx, func() error {
			for ; taken < steps[g.Rank()]; taken++ {
				model.SetSync(taken%interval == 0)
				if failure := errors.Join(step(ctx, model, uint64(10*taken)+uint64(g.Rank())), opt.Step()); failure != nil {
					return failure
				}
				opt.ZeroGrad()
			}
			for _, x := range state(m) {
				last = append(last, tensor.Must(x.Clone()))
			}
			return nil
		})
		if err != nil || taken != steps[g.Rank()] {
			return fmt.Errorf("every %d of %v: %d passes, %w", interval, steps, taken, err)
		}
		for i, x := range state(m) {
			if err := g.Broadcast(ctx, last[i], 2).Wait(ctx); err != nil {
				return err
			}
			if !tensor.SameBits(x, last[i]) {
				return fmt.Errorf("every %d of %v: tensor %d is %v, the last rank's %v", interval, steps, i, x, last[i])
			}
		}
		return nil
	})
}

// state are the parameters and the buffers of a model.
func state(m nn.Module) (all []*tensor.Tensor) {
	for _, v := range nn.Variables(m) {
		all = append(all, v.Data())
	}
	for _, b := range nn.Buffers(m) {
		all = append(all, b.Value)
	}
	return all
}

// TestJoinEquivalence: ranks with different numbers of passes end with the model that one rank has after all of them,
// if the gradient is the same in each pass and the learning rate makes up for the mean.
func TestJoinEquivalence(t *testing.T) {
	t.Parallel()
	const size, rate = 3, 0.03
	world(t, size, func(ctx context.Context, g *group.Group) error {
		r := rand.New(rand.NewPCG(1, 1))
		data := make([]float32, 3*10)
		for i := range data {
			data[i] = r.Float32()
		}
		x := autograd.Constant(tensor.Must(tensor.From(data, 3, 10)))
		local, shared := nn.NewLinear(rand.New(rand.NewPCG(2, 2)), 10, 10), nn.NewLinear(rand.New(rand.NewPCG(2, 2)), 10, 10)
		train := func(m nn.Module, lr float64, passes int, forward func() *autograd.Variable) error {
			opt, err := optim.New(optim.SGD{LR: lr}, nn.Variables(m))
			for i := 0; err == nil && i < passes; i++ {
				opt.ZeroGrad()
				err = errors.Join(forward().Sum().Backward(ctx), opt.Step())
			}
			return err
		}
		if err := train(local, rate, 2+4+6, func() *autograd.Variable { return local.Forward(x) }); err != nil {
			return err
		}
		model, err := ddp.New(ctx, g, shared)
		if err != nil {
			return err
		}
		defer model.Close()
		err = model.Join(ctx, func() error {
			return train(shared, rate*size, 2*int(g.Rank()+1), func() *autograd.Variable { return model.Forward(ctx, x) })
		})
		if err != nil {
			return err
		}
		for i, v := range nn.Variables(local) {
			if got := nn.Variables(shared)[i].Data(); !tensor.AllClose(got, v.Data(), 1e-5, 1e-5, false) {
				return fmt.Errorf("parameter %d is %v, want %v", i, got, v.Data())
			}
		}
		return nil
	})
}
