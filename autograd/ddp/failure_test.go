// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMisuse(t *testing.T) {
	t.Parallel()
	world(t, 1, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		if _, err := ddp.New(ctx, nil, m); !errors.Is(err, cohort.InvalidArgument) {
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
		if err := loss.Backward(ctx); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "without a forward") {
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
			if _, err := ddp.New(ctx, g, m, opts...); !errors.Is(err, cohort.InvalidArgument) {
				return fmt.Errorf("options: %w", err)
			}
		}
		if _, err := ddp.New(ctx, g, nn.ReLU); !errors.Is(err, cohort.InvalidArgument) {
			return fmt.Errorf("no parameters: %w", err)
		}
		return nil
	})
}

// TestCloseNotifies: Close says that gradients are lost which it could not copy.
func TestCloseNotifies(t *testing.T) {
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
		if _, err := ddp.New(ctx, g, m); !errors.Is(err, cohort.Mismatch) ||
			!strings.Contains(err.Error(), "DDP expects same model across all ranks") {
			return fmt.Errorf("another number of parameters: %w", err)
		}
		_, err := ddp.New(ctx, g, nn.NewLinear(r, int(2+g.Rank()), 2))
		if g.Rank() == 1 && (!errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "appears not to match")) {
			return fmt.Errorf("other shapes: %w", err)
		}
		if g.Rank() == 0 { // whose shapes the others compare with theirs: it learns of it when they leave
			err = errors.Join(err, g.Barrier(ctx).Wait(ctx))
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Rank != 1 || ctx.Err() != nil {
				return fmt.Errorf("other shapes: %w", err)
			}
		}
		_ = g.Close()
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

// atOnce checks that an error says that two passes met.
func atOnce(err error) error {
	if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "one pass at a time") {
		return fmt.Errorf("%w, want an error about two passes", err)
	}
	return nil
}

// TestSecondPass: a pass that begins while the gradients of another are being reduced fails, and so does the other: the ranks may have
// mixed them up. Here each of the two uses the parameters that the other does not, so that together they look like one.
func TestSecondPass(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, net, nil, func(ctx context.Context, _ *group.Group, m nn.Sequential, model *ddp.Model) error {
		x, _ := batch(1, 8)
		if err := model.Forward(ctx, x).Err(); err != nil {
			return err
		}
		ones := autograd.Value{Dense: tensor.Must(tensor.Full(tensor.Float32, float32(1), 8, 8))}
		first := m[0].Forward(x)
		rest := m[2:].Forward(autograd.Constant(ones.Dense))
		late := autograd.Parameter(tensor.Must(tensor.From([]float32{1}))).Scale(2)
		pass := autograd.NewPass([]*autograd.Node{rest.Edge().Node, late.Edge().Node})
		upstream := autograd.Value{Dense: tensor.Must(tensor.Full(tensor.Float32, float32(1), 8, 2))}
		if err := errors.Join(pass.Deliver(rest.Edge().Node, []autograd.Value{upstream}), pass.Run(ctx)); err != nil {
			return err
		}
		if err := atOnce(autograd.Backward(ctx, []*autograd.Variable{first}, []autograd.Value{ones})); err != nil {
			return err
		}
		upstream = autograd.Value{Dense: tensor.Must(tensor.From([]float32{1}))}
		if err := errors.Join(pass.Deliver(late.Edge().Node, []autograd.Value{upstream}), pass.Run(ctx)); err != nil {
			return err
		}
		return errors.Join(atOnce(pass.Finish(ctx)), atOnce(model.Forward(ctx, x).Err()))
	})
}
