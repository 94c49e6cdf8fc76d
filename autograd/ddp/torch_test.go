// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// The tests of this file are those of PyTorch's DistributedDataParallel that no other test here has; see docs/conformance.md.

// TestIgnoredOutput: a forward pass needs no backward pass, with and without parameters that are not used.
func TestIgnoredOutput(t *testing.T) {
	t.Parallel()
	for _, unused := range []bool{false, true} {
		world(t, 2, func(ctx context.Context, g *group.Group) error {
			var m, reference nn.Module = net(1), net(1)
			var opts []ddp.Option
			if unused {
				m, reference, opts = newBranches(1), newBranches(1), append(opts, ddp.WithFindUnused())
			}
			model, err := ddp.New(ctx, g, m, opts...)
			if err != nil {
				return err
			}
			defer model.Close()
			x, _ := batch(1, 4)
			for range 4 {
				if err := model.Forward(ctx, x).Err(); err != nil {
					return err
				}
			}
			return passes(ctx, model, reference, 4)
		})
	}
}

// typed has a layer of float64 and layers of float32, of which a pass may leave out one.
type typed struct {
	weight *autograd.Variable // float64
	second nn.Module
	third  nn.Module
	short  bool
}

func newTyped() *typed {
	r := rand.New(rand.NewPCG(1, 1))
	data := make([]float64, 8*4)
	for i := range data {
		data[i] = r.NormFloat64()
	}
	return &typed{
		weight: autograd.Parameter(tensor.Must(tensor.From(data, 8, 4))),
		second: nn.NewLinear(r, 8, 2), third: nn.NewLinear(r, 2, 2),
	}
}

func (m *typed) Forward(x *autograd.Variable) *autograd.Variable {
	x = autograd.Linear(x.To(tensor.Float64), m.weight, nil).ReLU().To(tensor.Float32)
	if x = m.second.Forward(x).ReLU(); m.short {
		return x
	}
	return m.third.Forward(x)
}

func (m *typed) Params() []nn.Param {
	out := append([]nn.Param{{Name: "weight", Value: m.weight}}, nn.Prefix("second", m.second.Params())...)
	return append(out, nn.Prefix("third", m.third.Params())...)
}

// TestSeveralTypes: a bucket never holds two element types, and gradients of both are means; a layer that a pass leaves out
// keeps no gradient, and an optimizer goes on with it later.
func TestSeveralTypes(t *testing.T) {
	t.Parallel()
	for _, unused := range []bool{false, true} {
		world(t, 2, func(ctx context.Context, g *group.Group) error {
			m, reference := newTyped(), newTyped()
			var opts []ddp.Option
			if unused {
				opts = append(opts, ddp.WithFindUnused())
			}
			model, err := ddp.New(ctx, g, m, opts...)
			if err != nil {
				return err
			}
			defer model.Close()
			for _, bucket := range model.Buckets() {
				for _, name := range bucket {
					if (name == "weight") != (bucket[0] == "weight") {
						return fmt.Errorf("a bucket of two types: %v", model.Buckets())
					}
				}
			}
			opt, err := optim.New(optim.Adam{LR: 0.01}, nn.Variables(m))
			if err != nil {
				return err
			}
			same, err := optim.New(optim.Adam{LR: 0.01}, nn.Variables(reference))
			if err != nil {
				return err
			}
			for i := range uint64(3) {
				opt.ZeroGrad()
				same.ZeroGrad()
				m.short = unused && i == 0
				reference.short = m.short
				if err := step(ctx, model, 2*i+uint64(g.Rank())); err != nil {
					return err
				}
				for r := range uint64(2) { // the reference accumulates the halves of both ranks
					x, y := batch(2*i+r, 8)
					if err := autograd.CrossEntropy(reference.Forward(x), y, autograd.ReduceMean).Scale(0.5).Backward(ctx); err != nil {
						return err
					}
				}
				for k, p := range m.Params() {
					want := reference.Params()[k].Value.Grad()
					if (p.Value.Grad() == nil) != (want == nil) ||
						want != nil && !tensor.AllClose(p.Value.Grad(), want, 1e-4, 1e-6, false) {
						return fmt.Errorf("pass %d: gradient of %s is %v, want %v", i, p.Name, p.Value.Grad(), want)
					}
				}
				if err := errors.Join(opt.Step(), same.Step()); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// chain uses its first layer on rank 0 only.
type chain struct {
	first, second nn.Module
	skip          bool
}

func (c *chain) Forward(x *autograd.Variable) *autograd.Variable {
	if !c.skip {
		x = c.first.Forward(x)
	}
	return c.second.Forward(x)
}

func (c *chain) Params() []nn.Param {
	return append(nn.Prefix("first", c.first.Params()), nn.Prefix("second", c.second.Params())...)
}

// TestUnusedElsewhere: a rank that uses everything still takes part in finding out what others do not use.
func TestUnusedElsewhere(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		r := rand.New(rand.NewPCG(1, 1))
		m := &chain{first: nn.NewLinear(r, 4, 4), second: nn.NewLinear(r, 4, 2), skip: g.Rank() != 0}
		model, err := ddp.New(ctx, g, m, ddp.WithFindUnused())
		if err != nil {
			return err
		}
		defer model.Close()
		for range 3 {
			zero(m)
			if err := step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
			for i, grad := range grads(m) {
				if grad == nil {
					return fmt.Errorf("parameter %d has no gradient", i)
				}
			}
		}
		return nil
	})
}

// conditional uses another layer on each rank and in each pass.
type conditional struct {
	layers [4]nn.Module
	use    int
}

func (c *conditional) Forward(x *autograd.Variable) *autograd.Variable {
	return c.layers[c.use].Forward(x)
}

func (c *conditional) Params() (out []nn.Param) {
	for i, l := range c.layers {
		out = append(out, nn.Prefix(fmt.Sprint("nn", i), l.Params())...)
	}
	return out
}

// TestUnusedWithoutSync: what was accumulated without reduction counts as used in the pass that reduces.
func TestUnusedWithoutSync(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		r := rand.New(rand.NewPCG(1, 1))
		m := &conditional{}
		for i := range m.layers {
			m.layers[i] = nn.NewLinear(r, 4, 2)
		}
		model, err := ddp.New(ctx, g, m, ddp.WithFindUnused())
		if err != nil {
			return err
		}
		defer model.Close()
		for pass := range 2 {
			model.SetSync(pass == 1)
			m.use = int(2*g.Rank() + cohort.Rank(pass))
			if err = step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
		}
		var all []float32
		for i, grad := range grads(m) {
			if grad == nil {
				return fmt.Errorf("parameter %d has no gradient", i)
			}
			all = append(all, grad...)
		}
		both, err := group.AllGatherSlice(ctx, g, all)
		if err != nil {
			return err
		}
		if !near([][]float32{both[:len(all)]}, [][]float32{both[len(all):]}) {
			return errors.New("gradients are not the same on both ranks")
		}
		return nil
	})
}

// TestSaveAndLoad: training that is saved and loaded in the middle ends where training without a break ends, with and
// without this package.
func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		train := func(m nn.Module, forward func(*autograd.Variable) *autograd.Variable, steps int) error {
			opt, err := optim.New(optim.SGD{LR: 0.01}, nn.Variables(m))
			if err != nil {
				return err
			}
			for range steps {
				opt.ZeroGrad()
				x, y := batch(1, 8) // the same on all ranks, so that the mean is each one's own
				if err := autograd.CrossEntropy(forward(x), y, autograd.ReduceMean).Backward(ctx); err != nil {
					return err
				}
				if err := opt.Step(); err != nil {
					return err
				}
			}
			return nil
		}
		together := func(m nn.Module, steps int) error {
			model, err := ddp.New(ctx, g, m)
			if err != nil {
				return err
			}
			defer model.Close()
			return train(m, func(x *autograd.Variable) *autograd.Variable { return model.Forward(ctx, x) }, steps)
		}
		whole, before, after, single := net(1), net(1), net(2), net(3)
		if err := errors.Join(together(whole, 6), together(before, 3)); err != nil {
			return err
		}
		if g.Rank() == 0 {
			if err := nn.Save(path, before); err != nil {
				return err
			}
		}
		if err := g.Barrier(ctx).Wait(ctx); err != nil {
			return err
		}
		if err := errors.Join(nn.Load(path, after), nn.Load(path, single)); err != nil {
			return err
		}
		if err := errors.Join(together(after, 3), train(single, single.Forward, 3)); err != nil {
			return err
		}
		for i, p := range whole.Params() {
			if !tensor.SameBits(p.Value.Data(), after.Params()[i].Value.Data()) {
				return fmt.Errorf("%s differs after loading", p.Name)
			}
			if !tensor.AllClose(p.Value.Data(), single.Params()[i].Value.Data(), 1e-5, 1e-6, false) {
				return fmt.Errorf("%s differs without other ranks", p.Name)
			}
		}
		return nil
	})
}

// TestOneCommHook: a second hook is a mistake, and so is none.
func TestOneCommHook(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		for _, opts := range [][]ddp.Option{
			{ddp.WithCommHook(ddp.FP16), ddp.WithCommHook(ddp.BF16)},
			{ddp.WithCommHook(nil)},
		} {
			if _, err := ddp.New(ctx, g, net(1), opts...); !errors.Is(err, cohort.InvalidArgument) ||
				!strings.Contains(err.Error(), "WithCommHook") {
				return fmt.Errorf("%d hooks: %w", len(opts), err)
			}
		}
		return nil
	})
}
