// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// errLeft is returned by a rank that goes without saying goodbye.
var errLeft = errors.New("left")

// world runs f as the ranks of a group over TCP in one process.
func world(t *testing.T, size int, f func(ctx context.Context, g *group.Group) error) {
	t.Helper()
	worldWith(t, size, nil, f)
}

func worldWith(t *testing.T, size int, opts []group.Option, f func(ctx context.Context, g *group.Group) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	var ranks sync.WaitGroup
	for rank := range size {
		ranks.Go(func() {
			g, err := group.New(ctx, s, dist.Rank(rank), size, append([]group.Option{group.WithTransport(group.TCP)}, opts...)...)
			if err != nil {
				t.Error(err)
				return
			}
			if err := f(ctx, g); errors.Is(err, errLeft) {
				return
			} else if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			} else if err := g.Barrier(ctx).Wait(ctx); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
			_ = g.Close()
		})
	}
	ranks.Wait()
}

// wrapped runs f as the ranks of a group, with a model that they all have wrapped.
func wrapped[M nn.Module](t *testing.T, size int, module func(seed uint64) M, opts []ddp.Option, f func(ctx context.Context, g *group.Group, m M, model *ddp.Model) error) {
	t.Helper()
	world(t, size, func(ctx context.Context, g *group.Group) error {
		m := module(1)
		model, err := ddp.New(ctx, g, m, opts...)
		if err != nil {
			return err
		}
		defer model.Close()
		return f(ctx, g, m, model)
	})
}

func net(seed uint64) nn.Sequential {
	r := rand.New(rand.NewPCG(seed, 1))
	return nn.Sequential{nn.NewLinear(r, 4, 8), nn.Tanh, nn.NewLinear(r, 8, 6), nn.ReLU, nn.NewLinear(r, 6, 2)}
}

func batch(seed uint64, n int) (x *autograd.Variable, y *tensor.Tensor) {
	r := rand.New(rand.NewPCG(seed, 2))
	data, ids := make([]float32, n*4), make([]int64, n)
	for i := range data {
		data[i] = float32(r.NormFloat64())
	}
	for i := range ids {
		if data[4*i]*data[4*i+1] > 0 {
			ids[i] = 1
		}
	}
	return autograd.Constant(tensor.Must(tensor.From(data, n, 4))), tensor.Must(tensor.From(ids))
}

func grads(m nn.Module) [][]float32 {
	var out [][]float32
	for _, p := range m.Params() {
		if p.Value.Grad() == nil {
			out = append(out, nil)
			continue
		}
		g, err := tensor.Copy[float32](p.Value.Grad())
		if err != nil {
			panic(err)
		}
		out = append(out, g)
	}
	return out
}

func zero(m nn.Module) {
	for _, p := range m.Params() {
		p.Value.ZeroGrad()
	}
}

func near(a, b [][]float32) bool {
	return slices.EqualFunc(a, b, func(x, y []float32) bool {
		return slices.EqualFunc(x, y, func(u, v float32) bool { return math.Abs(float64(u-v)) < 1e-5 })
	})
}

// single is what one rank with all data computes: the mean of the ranks' gradients.
func single(ctx context.Context, m nn.Module, seeds []uint64) ([][]float32, error) {
	var loss *autograd.Variable
	for _, seed := range seeds {
		x, y := batch(seed, 8)
		l := autograd.CrossEntropy(m.Forward(x), y, autograd.ReduceMean).Scale(1 / float64(len(seeds)))
		if loss == nil {
			loss = l
		} else {
			loss = loss.Add(l)
		}
	}
	zero(m)
	err := loss.Backward(ctx)
	return grads(m), err
}

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
				sum := make([][]float32, 0)
				for k := range uint64(3) {
					seeds := []uint64{}
					for r := range uint64(size) {
						seeds = append(seeds, 1000+10*k+r)
					}
					want, err := single(ctx, reference, seeds)
					if err != nil {
						return err
					}
					if k == 0 {
						sum = want
					} else {
						for i := range want {
							for j := range want[i] {
								sum[i][j] += want[i][j]
							}
						}
					}
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
				if got := grads(m); !near(got, sum) {
					return fmt.Errorf("accumulated %v, want %v", got, sum)
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

// branches uses one of two layers, and has one that nobody uses.
type branches struct {
	left, right, never *nn.Linear
	goRight            bool
}

func newBranches(seed uint64) *branches {
	r := rand.New(rand.NewPCG(seed, 1))
	return &branches{left: nn.NewLinear(r, 4, 2), right: nn.NewLinear(r, 4, 2), never: nn.NewLinear(r, 4, 2)}
}

func (b *branches) Forward(x *autograd.Variable) *autograd.Variable {
	if b.goRight {
		return b.right.Forward(x)
	}
	return b.left.Forward(x)
}

func (b *branches) Params() []nn.Param {
	out := nn.Prefix("left", b.left.Params())
	out = append(out, nn.Prefix("right", b.right.Params())...)
	return append(out, nn.Prefix("never", b.never.Params())...)
}

func TestUnused(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, newBranches, []ddp.Option{ddp.WithFindUnused()}, func(ctx context.Context, g *group.Group, m *branches, model *ddp.Model) error {
		for step := range 3 {
			zero(m)
			m.goRight = g.Rank() == 1 && step != 1
			x, y := batch(uint64(step), 8)
			if err := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx); err != nil {
				return err
			}
			if m.never.Weight.Grad() != nil {
				return errors.New("a parameter that nobody uses got a gradient")
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
		if !errors.Is(err, dist.InvalidArgument) || !strings.Contains(err.Error(), "never.weight") {
			return fmt.Errorf("unused parameters: %w", err)
		}
		if err := model.Forward(ctx, x).Err(); err == nil {
			return errors.New("a model that is out of step goes on")
		}
		return nil
	})
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		if _, err := ddp.New(ctx, nil, m); !errors.Is(err, dist.InvalidArgument) {
			return fmt.Errorf("no group: %w", err)
		}
		model, err := ddp.New(ctx, g, m)
		if err != nil {
			return err
		}
		x, y := batch(1, 8)
		loss := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean)
		if err := loss.Backward(ctx, autograd.RetainGraph()); err != nil {
			return err
		}
		if err := loss.Backward(ctx); !errors.Is(err, dist.InvalidArgument) || !strings.Contains(err.Error(), "without a forward") {
			return fmt.Errorf("a second pass: %w", err)
		}
		if err := errors.Join(model.Close(), model.Close()); err != nil {
			return err
		}
		zero(m)
		before := g.Seq()
		if err := autograd.CrossEntropy(m.Forward(x), y, autograd.ReduceMean).Backward(ctx); err != nil || g.Seq() != before {
			return fmt.Errorf("after Close: %w", err)
		}
		for _, opts := range [][]ddp.Option{{ddp.WithBuckets(0, 1)}} {
			if _, err := ddp.New(ctx, g, m, opts...); !errors.Is(err, dist.InvalidArgument) {
				return fmt.Errorf("options: %w", err)
			}
		}
		if _, err := ddp.New(ctx, g, nn.ReLU); !errors.Is(err, dist.InvalidArgument) {
			return fmt.Errorf("no parameters: %w", err)
		}
		return nil
	})
}

// TestCloseTells: Close says that gradients are lost which it could not copy.
func TestCloseTells(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		model, err := ddp.New(ctx, g, m)
		if err != nil {
			return err
		}
		x, y := batch(1, 8)
		if err := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean).Backward(ctx); err != nil {
			return err
		}
		first := m.Params()[0]
		first.Value.Grad().Storage().Release()
		if err := model.Close(); err == nil || !strings.Contains(err.Error(), first.Name) || first.Value.Grad() != nil {
			return fmt.Errorf("a gradient without memory: %w", err)
		}
		return nil
	})
}

// TestOtherModels: ranks whose models differ are told so, all of them.
func TestOtherModels(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		r := rand.New(rand.NewPCG(1, 1))
		m := nn.Sequential{nn.NewLinear(r, 2, 2)}
		if g.Rank() == 1 {
			m = append(m, nn.NewLinear(r, 2, 2))
		}
		if _, err := ddp.New(ctx, g, m); !errors.Is(err, dist.Mismatch) {
			return fmt.Errorf("another number of parameters: %w", err)
		}
		_, err := ddp.New(ctx, g, nn.NewLinear(r, int(2+g.Rank()), 2))
		if g.Rank() == 1 && !errors.Is(err, dist.Mismatch) {
			return fmt.Errorf("other shapes: %w", err)
		}
		_ = g.Close() // rank 0 may be waiting for the other
		return errLeft
	})
}

// TestDeath: a rank that goes away ends the pass of the others.
func TestDeath(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, net, nil, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
		x, y := batch(1, 8)
		out := model.Forward(ctx, x)
		if g.Rank() == 1 {
			_ = g.Close()
			return errLeft
		}
		if err := autograd.CrossEntropy(out, y, autograd.ReduceMean).Backward(ctx); err == nil || ctx.Err() != nil {
			return fmt.Errorf("a pass with a dead rank: %w", err)
		}
		if err := model.Forward(ctx, x).Err(); err == nil {
			return errors.New("the model goes on without its group")
		}
		_ = g.Close()
		return errLeft
	})
}

// TestTrainsAlike: after every step the parameters are those that one rank with all data has, and in the end they are the same on all
// ranks, bit by bit.
func TestTrainsAlike(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var all [][]*tensor.Tensor
	world(t, 3, func(ctx context.Context, g *group.Group) error {
		m := net(uint64(g.Rank()))
		model, err := ddp.New(ctx, g, m)
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
