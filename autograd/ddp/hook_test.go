// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// hooked runs one pass of a single rank whose hook first calls f, and returns the model and what the pass returned.
func hooked(ctx context.Context, g *group.Group, f func(ctx context.Context, m *ddp.Model) bool) (*ddp.Model, error) {
	var model *ddp.Model
	hook := func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
		if !f(ctx, model) {
			return nil
		}
		return g.AllReduce(ctx, b.Data, group.Avg).Wait
	}
	model, err := ddp.New(ctx, g, net(1), ddp.WithBuckets(1, 1), ddp.WithCommHook(hook))
	if err != nil {
		return nil, err
	}
	return model, step(ctx, model, 1)
}

// TestHookCallsModel: a hook that calls methods of the model does not hang. It can switch reduction off for the next forward; what would
// mix two passes, or take the buckets away, ends this one with an error.
func TestHookCallsModel(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		model, err := hooked(ctx, g, func(_ context.Context, m *ddp.Model) bool {
			m.SetSync(false)
			return len(m.Buckets()) > 0
		})
		if err != nil {
			return fmt.Errorf("SetSync in a hook: %w", err)
		}
		x, _ := batch(1, 8)
		next := model.Forward(ctx, x)
		seq := g.Seq()
		if err = errors.Join(next.Sum().Backward(ctx), model.Close()); err != nil || g.Seq() != seq {
			return fmt.Errorf("the pass after it has reduced: %w", err)
		}
		_, err = hooked(ctx, g, func(_ context.Context, m *ddp.Model) bool { return m.Close() == nil })
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "closed during") {
			return fmt.Errorf("Close in a hook: %w", err)
		}
		model, err = hooked(ctx, g, func(ctx context.Context, m *ddp.Model) bool { return m.Forward(ctx, x).Err() != nil })
		if failure := errors.Join(atOnce(err), model.Close()); failure != nil {
			return fmt.Errorf("a forward in a hook: %w", failure)
		}
		model, err = hooked(ctx, g, func(ctx context.Context, m *ddp.Model) bool {
			return m.Module().Forward(x).Sum().Backward(ctx) != nil
		})
		if failure := errors.Join(atOnce(err), model.Close()); failure != nil {
			return fmt.Errorf("a pass in a hook: %w", failure)
		}
		model, err = hooked(ctx, g, func(context.Context, *ddp.Model) bool { return false })
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "nothing to wait") {
			return fmt.Errorf("a hook that returns nil: %w", err)
		}
		return model.Close()
	})
}

// TestHookPanics: the panic of a hook reaches who runs the pass, and the model can be closed.
func TestHookPanics(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		var model *ddp.Model
		recovered := func() (r any) {
			defer func() { r = recover() }()
			_, err := hooked(ctx, g, func(_ context.Context, m *ddp.Model) bool { model = m; panic("in the hook") })
			return err
		}()
		if recovered != "in the hook" {
			return fmt.Errorf("recovered %v", recovered)
		}
		return model.Close()
	})
}

// TestSyncOfForward: whether a pass reduces is decided by its forward, as in PyTorch, not by a switch between the two.
func TestSyncOfForward(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		model, err := ddp.New(ctx, g, net(1))
		if err != nil {
			return err
		}
		defer model.Close()
		for _, sync := range []bool{false, true} {
			model.SetSync(sync)
			x, y := batch(1, 8)
			loss := autograd.CrossEntropy(model.Forward(ctx, x), y, autograd.ReduceMean)
			model.SetSync(!sync)
			seq := g.Seq()
			if err := loss.Backward(ctx); err != nil || (g.Seq() > seq) != sync {
				return fmt.Errorf("a pass whose forward was announced with reduction %v reduced %v: %w", sync, g.Seq() > seq, err)
			}
		}
		return nil
	})
}

// TestHookClosesModelInAnotherRanksPass: a rank that has no more data runs the hook in the passes of the others. One that closes the model
// there ends the passes of this rank, and the buckets stay while reductions may write to them.
func TestHookClosesModelInAnotherRanksPass(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		var model *ddp.Model
		done := g.Rank() == 1
		hook := func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
			if done && (model.Close() != nil || len(model.Buckets()) == 0) {
				return func(context.Context) error { return errors.New("the buckets are gone") }
			}
			return g.AllReduce(ctx, b.Data, group.Avg).Wait
		}
		model, err := ddp.New(ctx, g, net(1), ddp.WithCommHook(hook))
		if err != nil {
			return err
		}
		err = model.Join(ctx, func() error {
			if done {
				return nil
			}
			return step(ctx, model, 1)
		})
		if done && (!errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "closed during")) {
			return fmt.Errorf("Close in a hook: %w", err)
		}
		_ = g.Close() // the other rank waits for this one to go on
		return errLeft
	})
}

// TestAccumulateWithHook: passes that only accumulate, in turn with passes whose gradients a hook reduces through the future of
// the operation.
func TestAccumulateWithHook(t *testing.T) {
	t.Parallel()
	scaled := func(x *tensor.Tensor, factor float64) (*tensor.Tensor, error) {
		values, err := tensor.Copy[float32](x)
		if err != nil {
			return nil, err
		}
		for i := range values {
			values[i] *= float32(factor)
		}
		return tensor.From(values, x.Shape()...)
	}
	// into ends a hook: the future's tensor becomes the bucket's.
	into := func(b ddp.Bucket, f *cohort.Future[*tensor.Tensor]) func(context.Context) error {
		return func(ctx context.Context) error {
			x, err := f.Await(ctx)
			if err != nil {
				return err
			}
			return b.Data.CopyFrom(x)
		}
	}
	for name, hook := range map[string]ddp.CommHook{
		"divided before": func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
			part, err := scaled(b.Data, 1/float64(g.Size()))
			if err != nil {
				return func(context.Context) error { return err }
			}
			return into(b, cohort.Then(g.AllReduce(ctx, part, group.Sum).Future(),
				func(outs []*tensor.Tensor, err error) (*tensor.Tensor, error) {
					return part, errors.Join(err, sameTensor(outs, part))
				}))
		},
		"doubled and divided": func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
			twice := cohort.Then(g.AllReduce(ctx, b.Data, group.Sum).Future(),
				func(outs []*tensor.Tensor, err error) (*tensor.Tensor, error) {
					if err = errors.Join(err, sameTensor(outs, b.Data)); err != nil {
						return nil, err
					}
					return scaled(outs[0], 2)
				})
			return into(b, cohort.Then(twice, func(x *tensor.Tensor, err error) (*tensor.Tensor, error) {
				if err != nil {
					return nil, err
				}
				return scaled(x, 1/float64(2*g.Size()))
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			accumulate(t, hook)
		})
	}
}

// sameTensor checks that a future brings the tensor that was reduced.
func sameTensor(outs []*tensor.Tensor, want *tensor.Tensor) error {
	if len(outs) != 1 || outs[0] != want {
		return fmt.Errorf("the future has %v, want %v", outs, want)
	}
	return nil
}

// accumulate makes four passes without zeroing: the even ones are not reduced, and after the odd ones the gradients are those of one
// rank that has all data.
func accumulate(t *testing.T, hook ddp.CommHook) {
	t.Helper()
	const size = 2
	wrapped(t, size, net, []ddp.Option{ddp.WithBuckets(1, 1), ddp.WithCommHook(hook)},
		func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
			x, _ := batch(99, 8)
			model.SetSync(false)
			if err := model.Forward(ctx, x).Err(); err != nil { // unused
				return err
			}
			var want [][]float32
			for pass := range uint64(4) {
				part, err := single(ctx, net(1), []uint64{size * pass, size*pass + 1})
				if err != nil {
					return err
				}
				want = sum(want, part)
				model.SetSync(pass%2 == 1)
				if err := step(ctx, model, size*pass+uint64(g.Rank())); err != nil {
					return err
				}
				if got := grads(m); near(got, want) != (pass%2 == 1) {
					return fmt.Errorf("pass %d: %v; one rank has %v", pass, got, want)
				}
			}
			return nil
		})
}

// sum adds gradients to those before; nil are none.
func sum(before, more [][]float32) [][]float32 {
	if before == nil {
		return more
	}
	for i := range more {
		for j := range more[i] {
			before[i][j] += more[i][j]
		}
	}
	return before
}
