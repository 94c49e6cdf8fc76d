// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package trainfail

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// rank is one of two that train together.
type rank struct {
	g     *group.Group
	net   nn.Sequential
	model *ddp.Model
	x     *autograd.Variable
	y     *tensor.Tensor
}

func newRank(ctx context.Context, s store.Store, number cohort.Rank) (*rank, error) {
	g, err := group.New(ctx, s, number, 2, group.WithTransport(group.TCP))
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(1, uint64(number)))
	k := &rank{g: g, net: nn.Sequential{nn.NewLinear(r, 4, 8), nn.Tanh, nn.NewLinear(r, 8, 3)}}
	if k.model, err = ddp.New(ctx, g, k.net, ddp.WithBuckets(1, 64)); err != nil {
		_ = g.Close()
		return nil, err
	}
	data := make([]float32, 8)
	for i := range data {
		data[i] = r.Float32()
	}
	k.x, k.y = autograd.Constant(tensor.Must(tensor.From(data, 2, 4))), tensor.Must(tensor.From([]int64{0, 2}))
	return k, nil
}

// steps runs passes; when one fails the rank leaves, as a program would.
func (k *rank) steps(ctx context.Context, n int) error {
	for range n {
		for _, v := range nn.Variables(k.net) {
			v.ZeroGrad()
		}
		if err := autograd.CrossEntropy(k.model.Forward(ctx, k.x), k.y, autograd.ReduceMean).Backward(ctx); err != nil {
			_ = k.g.Close()
			return err
		}
	}
	return nil
}

func (k *rank) close() {
	k.model.Close()
	_ = k.g.Close()
}

// uneven runs as many passes as this rank has data for.
func (k *rank) uneven(ctx context.Context, n int) error {
	err := k.model.Join(ctx, func() error { return k.steps(ctx, n) })
	if err != nil {
		_ = k.g.Close()
	}
	return err
}

func TestTrain(t *testing.T) {
	train(t, "ddp", func(ctx context.Context, k *rank) error { return k.steps(ctx, 3) })
}

// TestUneven: one rank has joined while the other still trains.
func TestUneven(t *testing.T) {
	train(t, "join", func(ctx context.Context, k *rank) error { return k.uneven(ctx, 1+2*int(k.g.Rank())) })
}

func train(t *testing.T, name string, run func(ctx context.Context, k *rank) error) {
	t.Helper()
	failpointtest.Test(t, failpointtest.Scenario{
		Name:   name,
		Points: []string{"autograd.", "ddp."},
		Events: []failpointtest.Event{failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline, {Name: "close"}},
		Run: func(r *failpointtest.Run) {
			s := store.NewMemory()
			r.Cleanup(func() { _ = s.Close() })
			var ranks [2]*rank
			var setup [2]*failpointtest.Call
			for i := range ranks {
				setup[i] = r.Go("setup", 20*time.Second, func() (err error) {
					ranks[i], err = newRank(context.Background(), s, cohort.Rank(i))
					return err
				})
			}
			for i := range ranks {
				r.Await(setup[i])
				if setup[i].Err != nil {
					r.Errorf("setup: %v", setup[i].Err)
					return
				}
				r.Cleanup(ranks[i].close)
			}
			ctx := r.Context()
			r.On("close", func() { _ = ranks[0].g.Close() })
			r.Does(name)
			r.Begin()
			victim := r.Go("victim", 5*time.Second, func() error { return run(ctx, ranks[0]) })
			other := r.Go("other", 5*time.Second, func() error { return run(context.Background(), ranks[1]) })
			r.Wait()
			r.End()
			events := []string{failpointtest.Cancel.Name, failpointtest.CancelCause.Name, failpointtest.Deadline.Name, "close"}
			r.Check(victim, append(r.AllowContext(victim), r.Allow(cohort.Closed, "close"), r.Allow(cohort.Aborted, "close"))...)
			allowed := []failpointtest.Allowance{
				r.Allow(cohort.PeerLost, events...), r.Allow(cohort.Aborted, events...),
				r.Allow(cohort.Closed, events...),
			}
			// a busy machine can be there before the point is
			if r.Planned(failpointtest.Deadline.Name) && cohort.CodeOf(victim.Err) == cohort.DeadlineExceeded {
				allowed = append(allowed, r.Allow(cohort.PeerLost), r.Allow(cohort.Aborted))
			}
			r.Check(other, allowed...)
			if victim.Err != nil || other.Err != nil {
				return
			}
			for i, v := range nn.Variables(ranks[0].net) {
				w := nn.Variables(ranks[1].net)[i]
				if !tensor.SameBits(v.Data(), w.Data()) {
					r.Errorf("parameter %d: %v and %v", i, v.Data(), w.Data())
				}
				if name == "ddp" && !tensor.SameBits(v.Grad(), w.Grad()) {
					r.Errorf("gradient %d: %v and %v", i, v.Grad(), w.Grad())
				}
			}
		},
	})
}
