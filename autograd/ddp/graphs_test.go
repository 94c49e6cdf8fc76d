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

// newChain has a second layer that a pass may leave out.
func newChain(seed uint64) *chain {
	r := rand.New(rand.NewPCG(seed, 1))
	return &chain{first: nn.NewLinear(r, 4, 4), second: nn.NewLinear(r, 4, 2)}
}

// TestControlFlow: which layers a pass uses may change from pass to pass, alike on all ranks or on one alone; each pass
// has the means of those that used a layer, over all ranks.
func TestControlFlow(t *testing.T) {
	t.Parallel()
	for _, everywhere := range []bool{true, false} {
		wrapped(t, 3, newChain, []ddp.Option{ddp.WithFindUnused()},
			func(ctx context.Context, g *group.Group, m *chain, model *ddp.Model) error {
				uses := func(rank cohort.Rank, pass int) bool { return pass%2 == 1 && (everywhere || rank == 1) }
				for pass := range 6 {
					zero(m)
					m.skip = !uses(g.Rank(), pass)
					if err := step(ctx, model, uint64(10*pass)+uint64(g.Rank())); err != nil {
						return err
					}
					want := newChain(1)
					for rank := range cohort.Rank(g.Size()) {
						want.skip = !uses(rank, pass)
						x, y := batch(uint64(10*pass)+uint64(rank), 8)
						if err := autograd.CrossEntropy(want.Forward(x), y,
							autograd.ReduceMean).Scale(1 / float64(g.Size())).Backward(ctx); err != nil {
							return err
						}
					}
					if got := grads(m); !near(got, grads(want)) || (got[0] != nil) != (pass%2 == 1) {
						return fmt.Errorf("pass %d: %v, want %v", pass, got, grads(want))
					}
				}
				return nil
			})
	}
}

// TestGraphChanged: a static graph that uses a layer it did not use, or leaves out one that it did, is told so.
func TestGraphChanged(t *testing.T) {
	t.Parallel()
	for _, more := range []bool{true, false} {
		wrapped(t, 2, newChain, []ddp.Option{ddp.WithStaticGraph()},
			func(ctx context.Context, g *group.Group, m *chain, model *ddp.Model) error {
				var err error
				for pass := 0; pass < 2 && err == nil; pass++ {
					m.skip = (pass == 0) == more
					if err = step(ctx, model, uint64(g.Rank())); pass == 0 && err != nil {
						return err
					}
				}
				if !errors.Is(err, cohort.InvalidArgument) ||
					!strings.Contains(err.Error(), "Your training graph has changed in this iteration") ||
					!strings.Contains(err.Error(), "first.") {
					return fmt.Errorf("more=%v: %w", more, err)
				}
				return nil
			})
	}
}

// TestGraphChangedAtOnce: the same when the first gradient of a pass is that of a layer that was not used before.
func TestGraphChangedAtOnce(t *testing.T) {
	t.Parallel()
	weights := func(seed uint64) *either {
		r := rand.New(rand.NewPCG(seed, 1))
		return &either{left: nn.NewLinear(r, 4, 2).Weight, right: nn.NewLinear(r, 4, 2).Weight}
	}
	wrapped(t, 2, weights, []ddp.Option{ddp.WithStaticGraph()},
		func(ctx context.Context, g *group.Group, m *either, model *ddp.Model) error {
			if err := step(ctx, model, uint64(g.Rank())); err != nil {
				return err
			}
			m.goRight = true
			err := step(ctx, model, uint64(g.Rank()))
			if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "the first pass did not use right") {
				return fmt.Errorf("another layer: %w", err)
			}
			return nil
		})
}

// either uses one of two weights.
type either struct {
	left, right *autograd.Variable
	goRight     bool
}

func (m *either) Forward(x *autograd.Variable) *autograd.Variable {
	if m.goRight {
		return autograd.Linear(x, m.right, nil)
	}
	return autograd.Linear(x, m.left, nil)
}

func (m *either) Params() []nn.Param {
	return []nn.Param{{Name: "left", Value: m.left}, {Name: "right", Value: m.right}}
}

// TestSeveralForwards: two forwards before a pass are both in its gradients.
func TestSeveralForwards(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]ddp.Option{
		"plain": nil, "static": {ddp.WithStaticGraph()},
		"find unused": {ddp.WithFindUnused()},
	} {
		wrapped(t, 2, net, opts, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
			for pass := range 3 {
				zero(m)
				seed := uint64(10*pass) + uint64(g.Rank())
				x, _ := batch(seed, 8)
				y, _ := batch(seed+5, 8)
				if err := model.Forward(ctx, x).Sum().Add(model.Forward(ctx, y).Sum()).Backward(ctx); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				want := net(1)
				for rank := range uint64(2) {
					x, _ := batch(uint64(10*pass)+rank, 8)
					y, _ := batch(uint64(10*pass)+rank+5, 8)
					if err := want.Forward(x).Sum().Add(want.Forward(y).Sum()).Scale(0.5).Backward(ctx); err != nil {
						return err
					}
				}
				for i, p := range m.Params() {
					if w := want.Params()[i].Value.Grad(); !tensor.AllClose(p.Value.Grad(), w, 1e-4, 1e-4, false) {
						return fmt.Errorf("%s, pass %d: %s is %v, want %v", name, pass, p.Name, p.Value.Grad(), w)
					}
				}
			}
			return nil
		})
	}
}

// twoNames has a parameter under two names that no pass uses.
type twoNames struct {
	bias       *autograd.Variable
	used, idle *nn.Linear
}

func (m *twoNames) Forward(x *autograd.Variable) *autograd.Variable { return m.used.Forward(x) }

func (m *twoNames) Params() []nn.Param {
	out := append(nn.Prefix("used", m.used.Params()), nn.Param{Name: "bias", Value: m.bias}, nn.Param{Name: "idle.bias", Value: m.bias})
	return append(out, nn.Param{Name: "idle.weight", Value: m.idle.Weight})
}

// TestUnusedUnderTwoNames: such a parameter counts once and is known to be unused.
func TestUnusedUnderTwoNames(t *testing.T) {
	t.Parallel()
	module := func(seed uint64) *twoNames {
		r := rand.New(rand.NewPCG(seed, 1))
		return &twoNames{
			bias: autograd.Parameter(tensor.Must(tensor.New(tensor.Float32, 2))), used: nn.NewLinear(r, 4, 2),
			idle: nn.NewLinear(r, 4, 2),
		}
	}
	for name, option := range map[string]ddp.Option{"static": ddp.WithStaticGraph(), "find unused": ddp.WithFindUnused()} {
		wrapped(t, 2, module, []ddp.Option{option}, func(ctx context.Context, g *group.Group, m *twoNames, model *ddp.Model) error {
			for pass := range 6 {
				zero(m)
				if err := step(ctx, model, uint64(g.Rank())); err != nil {
					return fmt.Errorf("%s, pass %d: %w", name, pass, err)
				}
				if m.used.Weight.Grad() == nil || m.bias.Grad() != nil || m.idle.Weight.Grad() != nil {
					return fmt.Errorf("%s, pass %d: %v", name, pass, grads(m))
				}
			}
			return nil
		})
	}
}

// TestNoOutputs: a layer without outputs has parameters without elements, which are reduced like others.
func TestNoOutputs(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, func(uint64) nn.Sequential {
		r := rand.New(rand.NewPCG(1, 1))
		return nn.Sequential{nn.NewLinear(r, 4, 10), nn.ReLU, nn.NewLinear(r, 10, 0)}
	}, nil, func(ctx context.Context, _ *group.Group, m nn.Sequential, model *ddp.Model) error {
		for range 3 {
			x, _ := batch(1, 8)
			if err := model.Forward(ctx, x).Sum().Backward(ctx); err != nil {
				return err
			}
		}
		if w := m.Params()[2].Value; w.Grad() == nil || w.Grad().Numel() != 0 {
			return fmt.Errorf("the gradient is %v", w.Grad())
		}
		return nil
	})
}

// failing fails in the forward.
type failing struct {
	*nn.Linear
	err error
}

func (m *failing) Forward(x *autograd.Variable) *autograd.Variable {
	if m.err != nil {
		return autograd.Failed(m.err)
	}
	return m.Linear.Forward(x)
}

var errIntended = errors.New("intended")

// TestJoinTellsError: the error of a forward is what Join ends with.
func TestJoinTellsError(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, func(uint64) *failing {
		return &failing{Linear: nn.NewLinear(rand.New(rand.NewPCG(1, 1)), 4, 2), err: errIntended}
	}, nil, func(ctx context.Context, g *group.Group, _ *failing, model *ddp.Model) error {
		if err := model.Join(ctx, func() error { return step(ctx, model, 1) }); !errors.Is(err, errIntended) {
			return fmt.Errorf("Join ended with %w", err)
		}
		_ = g.Close()
		return errLeft
	})
}

// TestSecondModel: after a pass that failed and Close, another model of the same module works.
func TestSecondModel(t *testing.T) {
	t.Parallel()
	world(t, 2, func(ctx context.Context, g *group.Group) error {
		m := net(1)
		last, _ := m[len(m)-1].(*nn.Linear)
		first, err := ddp.New(ctx, g, m, ddp.WithBuckets(1, 1))
		if err != nil {
			return err
		}
		fails := true
		if _, err = m[0].(*nn.Linear).Weight.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { //nolint:errcheck // net has it
			if fails {
				return nil, errIntended
			}
			return nil, nil
		}); err != nil {
			return err
		}
		if err = step(ctx, first, uint64(g.Rank())); !errors.Is(err, errIntended) {
			return fmt.Errorf("a pass that fails: %w", err)
		}
		if err = first.Close(); err != nil {
			return err
		}
		fails = false
		zero(m)
		second, err := ddp.New(ctx, g, m, ddp.WithBuckets(1, 1))
		if err != nil {
			return err
		}
		defer second.Close()
		want, err := single(ctx, net(1), []uint64{0, 1})
		if err != nil {
			return err
		}
		if err := step(ctx, second, uint64(g.Rank())); err != nil {
			return err
		}
		if got := grads(m); !near(got, want) || last.Weight.Grad() == nil {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// TestForwardAlone: a rank may compute by itself without reducing, and waits for no other rank.
func TestForwardAlone(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, net, nil, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
		before := g.Seq()
		for range 6 {
			if g.Rank() != 0 {
				continue
			}
			x, _ := batch(1, 10)
			got, want := model.Forward(ctx, x), m.Forward(x)
			if err := errors.Join(got.Err(), want.Err()); err != nil || !tensor.Equal(got.Data(), want.Data()) || g.Seq() != before {
				return fmt.Errorf("%v, want %v: %w", got, want, err)
			}
		}
		return nil
	})
}
