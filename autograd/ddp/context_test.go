// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// member is a rank of a group that is a worker of an RPC world, too.
type member struct {
	g      *group.Group
	agent  *rpc.Agent
	engine *distautograd.Engine
}

// contextWorld runs f as the ranks of a group, each of which is worker "w<rank>" of an RPC world with its own handlers.
func contextWorld(t *testing.T, size int, f func(ctx context.Context, w member, serve *rpc.Registry) error) {
	t.Helper()
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	world(t, size, func(ctx context.Context, g *group.Group) error {
		serve, engine := rpc.NewRegistry(), distautograd.New()
		agent, err := rpc.Join(ctx, st, fmt.Sprintf("w%d", g.Rank()), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(serve), engine.Join())
		if err != nil {
			return err
		}
		defer func() { _ = agent.Close() }()
		if err := f(ctx, member{g, agent, engine}, serve); err != nil {
			return err
		}
		return g.Barrier(ctx).Wait(ctx) // others may need this worker
	})
}

// inContext runs f in a context of its own.
func (w member) inContext(ctx context.Context, f func(ctx context.Context, c *distautograd.Context) error) error {
	ctx, c, err := w.engine.Open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, c), c.Close())
}

// gradsIn are the gradients that a context has for the parameters of a module.
func gradsIn(c *distautograd.Context, m nn.Module) [][]float32 {
	var out [][]float32
	for _, v := range nn.Variables(m) {
		g, err := c.GradientValue(v).ToDense()
		if err != nil || g == nil {
			out = append(out, nil)
			continue
		}
		data, err := tensor.Copy[float32](g)
		if err != nil {
			panic(err)
		}
		out = append(out, data)
	}
	return out
}

// hybrid is a model with a layer at another worker in its middle, and one of this rank's own, which is not wrapped, before it.
type hybrid struct {
	own, first, last *nn.Linear
	middle           func(x *autograd.Variable) *autograd.Variable
}

func newHybrid(seed uint64, middle func(x *autograd.Variable) *autograd.Variable) *hybrid {
	r := rand.New(rand.NewPCG(seed, 1))
	return &hybrid{nn.NewLinear(r, 4, 4), nn.NewLinear(r, 4, 3), nn.NewLinear(r, 3, 2), middle}
}

func (h *hybrid) Forward(x *autograd.Variable) *autograd.Variable {
	return h.last.Forward(h.middle(h.first.Forward(h.own.Forward(x)).Tanh()))
}

func (h *hybrid) Params() []nn.Param {
	return append(nn.Prefix("first", h.first.Params()), nn.Prefix("last", h.last.Params())...)
}

// TestGradientsInContext: a pass of a distributed autograd context reduces the gradients in the context, on both sides of a layer that
// another worker has, before and after the buckets are made again. Gradients of the parameters themselves, which lie in the same buckets,
// stay what they are; so do those of a context when the next one is trained in.
func TestGradientsInContext(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]distautograd.PassOption{nil, {distautograd.Fast()}} {
		contextWorld(t, 3, func(ctx context.Context, w member, serve *rpc.Registry) error {
			trainers, err := w.g.NewGroup(ctx, []cohort.Rank{0, 1})
			if err != nil {
				return err
			}
			server := nn.NewLinear(rand.New(rand.NewPCG(9, 9)), 3, 3)
			err = errors.Join(
				rpc.Handle(serve, "t.middle", func(_ context.Context, x *autograd.Variable) (*autograd.Variable, error) {
					return server.Forward(x), nil
				}),
				rpc.Handle(serve, "t.gradient", func(ctx context.Context, _ int64) (*tensor.Tensor, error) {
					return distautograd.From(ctx).Gradient(server.Weight), nil
				}),
			)
			if err != nil {
				return err
			}
			if err = w.g.Barrier(ctx).Wait(ctx); err != nil || w.g.Rank() == 2 {
				return err
			}
			return trainHybrid(ctx, w, trainers, server, opts)
		})
	}
}

// trainHybrid is one of two trainers; server is like the layer that worker w2 has.
func trainHybrid(ctx context.Context, w member, trainers *group.Group, server *nn.Linear, opts []distautograd.PassOption) error {
	reference := newHybrid(3, server.Forward)
	m := newHybrid(3, server.Forward)
	model, err := ddp.New(ctx, trainers, m, ddp.WithBuckets(30, 30))
	if err != nil {
		return err
	}
	defer model.Close()
	if err = step(ctx, model, uint64(w.g.Rank())); err != nil { // outside of a context
		return err
	}
	own := grads(m)
	var former *distautograd.Context
	var kept [][]float32
	for k := range uint64(3) {
		inside, c, err := w.engine.Open(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		m.middle = func(x *autograd.Variable) *autograd.Variable {
			y, failure := rpc.Call[*autograd.Variable](inside, w.agent, "w2", "t.middle", x)
			if failure != nil {
				return autograd.Failed(failure)
			}
			return y
		}
		x, y := batch(10*k+uint64(w.g.Rank()), 8)
		loss := autograd.CrossEntropy(model.Forward(inside, x), y, autograd.ReduceMean)
		if err = c.Backward(inside, []*autograd.Variable{loss}, opts...); err != nil {
			return err
		}
		want, err := single(ctx, reference, []uint64{10 * k, 10*k + 1})
		if err != nil {
			return err
		}
		got := gradsIn(c, m)
		switch {
		case !near(got, want):
			return fmt.Errorf("pass %d: the context has %v, want %v", k, got, want)
		case !slices.EqualFunc(grads(m), own, slices.Equal):
			return fmt.Errorf("pass %d: the parameters have %v, had %v", k, grads(m), own)
		case former != nil && !slices.EqualFunc(gradsIn(former, m), kept, slices.Equal):
			return fmt.Errorf("pass %d: the context before it has %v, had %v", k, gradsIn(former, m), kept)
		}
		former, kept = c, got
		if err = ownGradients(inside, w.agent, c.Gradient(m.own.Weight), reference, server, 10*k+uint64(w.g.Rank())); err != nil {
			return err
		}
	}
	zero(m)
	m.middle = server.Forward
	return step(ctx, model, 5)
}

// ownGradients checks that the layer at the other worker and the one that is not wrapped have the gradients of this
// rank alone: no other rank reduces them.
func ownGradients(ctx context.Context, a *rpc.Agent, own *tensor.Tensor, reference *hybrid, server *nn.Linear, seed uint64) error {
	server.Weight.ZeroGrad()
	reference.own.Weight.ZeroGrad()
	if _, err := single(ctx, reference, []uint64{seed}); err != nil {
		return err
	}
	got, err := rpc.Call[*tensor.Tensor](ctx, a, "w2", "t.gradient", int64(0))
	if err != nil {
		return err
	}
	for _, pair := range [][2]*tensor.Tensor{{got, server.Weight.Grad()}, {own, reference.own.Weight.Grad()}} {
		x, err1 := tensor.Copy[float32](pair[0])
		y, err2 := tensor.Copy[float32](pair[1])
		if err = errors.Join(err1, err2); err != nil || !near([][]float32{x}, [][]float32{y}) {
			return fmt.Errorf("a layer of one rank has %v, want %v: %w", x, y, err)
		}
	}
	return nil
}

// TestOneContextForAllRanks: a rank that calls the model of the other ranks reduces with them in one pass. It sends them their gradients
// before it waits for theirs.
func TestOneContextForAllRanks(t *testing.T) {
	t.Parallel()
	contextWorld(t, 3, func(ctx context.Context, w member, serve *rpc.Registry) error {
		m := net(1)
		model, err := ddp.New(ctx, w.g, m)
		if err != nil {
			return err
		}
		defer model.Close()
		loss := func(ctx context.Context, seed int64) *autograd.Variable {
			x, y := batch(uint64(seed), 8)
			return autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean)
		}
		want, err := single(ctx, net(1), []uint64{0, 1, 2})
		if err != nil {
			return err
		}
		check := func(c *distautograd.Context) error {
			if got := gradsIn(c, m); !near(got, want) {
				return fmt.Errorf("rank %d: the context has %v, want %v", w.g.Rank(), got, want)
			}
			return nil
		}
		ended := make(chan struct{})
		err = errors.Join(
			rpc.Handle(serve, "t.loss", func(ctx context.Context, seed int64) (*autograd.Variable, error) {
				l := loss(ctx, seed)
				return l, l.Err()
			}),
			rpc.Handle(serve, "t.check", func(ctx context.Context, _ int64) (bool, error) { return true, check(distautograd.From(ctx)) }),
			rpc.Handle(serve, "t.end", func(context.Context, int64) (bool, error) {
				close(ended)
				return true, nil
			}),
			w.g.Barrier(ctx).Wait(ctx), // all have their handlers
		)
		if err != nil {
			return err
		}
		if w.g.Rank() > 0 {
			select {
			case <-ended:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		names := []string{"w1", "w2"}
		pass := func(ctx context.Context, c *distautograd.Context) error {
			others := make([]*cohort.Future[*autograd.Variable], len(names))
			for i, name := range names { // their forwards may be collective with this rank's
				others[i] = rpc.Async[*autograd.Variable](ctx, w.agent, name, "t.loss", int64(i+1))
			}
			sum := loss(ctx, 0)
			for _, f := range others {
				l, failure := rpc.Await(ctx, f)
				if failure != nil {
					return failure
				}
				sum = sum.Add(l)
			}
			if failure := c.Backward(ctx, []*autograd.Variable{sum}); failure != nil {
				return failure
			}
			all := []error{check(c)}
			for _, name := range names {
				_, failure := rpc.Call[bool](ctx, w.agent, name, "t.check", int64(0))
				all = append(all, failure)
			}
			return errors.Join(all...)
		}
		err = nil
		for range 3 {
			err = errors.Join(err, w.inContext(ctx, pass))
		}
		for _, name := range names {
			_, failed := rpc.Call[bool](ctx, w.agent, name, "t.end", int64(0))
			err = errors.Join(err, failed)
		}
		return err
	})
}

// TestSparseInContext: the sparse gradient of a table is reduced in the context, too, and stays sparse.
func TestSparseInContext(t *testing.T) {
	t.Parallel()
	contextWorld(t, 2, func(ctx context.Context, w member, _ *rpc.Registry) error {
		m, reference := tables(1), tables(1)
		if err := reference.Forward(ids(slices.Concat(rowsOf(0), rowsOf(1))...)).Sum().Scale(0.5).Backward(ctx); err != nil {
			return err
		}
		want, err := tableGrads(reference)
		if err != nil {
			return err
		}
		model, err := ddp.New(ctx, w.g, m)
		if err != nil {
			return err
		}
		defer model.Close()
		for range 3 {
			err := w.inContext(ctx, func(ctx context.Context, c *distautograd.Context) error {
				loss := model.Forward(ctx, ids(rowsOf(w.g.Rank())...)).Sum()
				if err := c.Backward(ctx, []*autograd.Variable{loss}); err != nil {
					return err
				}
				if c.GradientValue(nn.Variables(m)[0]).Sparse == nil {
					return errors.New("the gradient of the table is dense")
				}
				if got := gradsIn(c, m); !near(got, want) {
					return fmt.Errorf("%v, want %v", got, want)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// TestUnevenInContexts: ranks with different numbers of passes, in contexts and outside of them, where the gradients are the same, and
// with parameters that a rank does not use.
func TestUnevenInContexts(t *testing.T) {
	t.Parallel()
	contextWorld(t, 2, func(ctx context.Context, w member, _ *rpc.Registry) error {
		m := newBranches(1)
		m.goRight = w.g.Rank() == 1
		model, err := ddp.New(ctx, w.g, m, ddp.WithFindUnused())
		if err != nil {
			return err
		}
		defer model.Close()
		return model.Join(ctx, func() error {
			for k := range 1 + w.g.Rank() {
				err := w.inContext(ctx, func(ctx context.Context, c *distautograd.Context) error {
					seed := uint64(10*k) + uint64(w.g.Rank()) // every rank has data of its own
					x, y := batch(seed, 8)
					loss := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean)
					if err := c.Backward(ctx, []*autograd.Variable{loss}); err != nil {
						return err
					}
					zero(m)
					if err := step(ctx, model, seed); err != nil {
						return err
					}
					got, want := gradsIn(c, m), grads(m)
					if !near(got, want) || (got[0] != nil) != (k == 0) || got[2] == nil || got[4] != nil {
						return fmt.Errorf("pass %d: %v in the context, %v outside", k, got, want)
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
}
