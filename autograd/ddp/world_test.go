// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
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
			g, err := group.New(ctx, s, cohort.Rank(rank), size, append([]group.Option{group.WithTransport(group.TCP)}, opts...)...)
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
func wrapped[M nn.Module](t *testing.T, size int, module func(seed uint64) M, opts []ddp.Option,
	f func(ctx context.Context, g *group.Group, m M, model *ddp.Model) error,
) {
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

// branches uses one of two layers, and has one that is unused.
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
