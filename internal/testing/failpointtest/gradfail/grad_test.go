// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package gradfail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

const (
	timeout = 20 * time.Second
	workers = 4
)

// The events beside those of the context.
const (
	releaseEvent = "release" // the context is closed
	middleEvent  = "middle"  // the agent of a worker that the pass goes through is closed
	lastEvent    = "last"    // that of the last one
	openerEvent  = "opener"  // that of the worker that began
	hookPanic    = "hook-panic"
	hookGoexit   = "hook-goexit"
)

func TestBackward(t *testing.T) {
	for _, mode := range []string{"smart", "fast"} {
		failpointtest.Test(t, failpointtest.Scenario{
			Name: mode, Share: 4, Points: []string{"autograd.", "distautograd."},
			Events: []failpointtest.Event{
				failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline,
				{Name: releaseEvent},
				{Name: middleEvent, Where: failpointtest.Beside},
				{Name: lastEvent, Where: failpointtest.Beside},
				{Name: openerEvent, Where: failpointtest.Beside},
				{Name: hookPanic},
				{Name: hookGoexit},
			},
			Run: func(r *failpointtest.Run) { play(r, mode == "fast") },
		})
	}
}

// game is a world in one process.
type game struct {
	r       *failpointtest.Run
	engines []*distautograd.Engine
	agents  []*rpc.Agent

	mu   sync.Mutex
	hook func() // what the next call of a hook does
}

// called is what happens in the hook of a gradient.
func (g *game) called() {
	g.mu.Lock()
	f := g.hook
	g.hook = nil
	g.mu.Unlock()
	if f != nil {
		f()
	}
}

func (g *game) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hook = f
}

func (g *game) handlers() *rpc.Registry {
	return rpc.NewRegistry().MustHandle("g.via",
		func(ctx context.Context, path []string, x *autograd.Variable) (*autograd.Variable, error) {
			y := x.Mul(x)
			if _, err := y.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { g.called(); return nil, nil }); err != nil {
				return nil, err
			}
			if len(path) == 0 {
				return y, nil
			}
			return rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), path[0], "g.via", path[1:], y)
		})
}

// pass is one forward and backward pass over w1, w2 and w3 and back through the first.
func (g *game) pass(ctx context.Context, c *distautograd.Context, gctx func(context.Context) context.Context, fast bool) error {
	x := autograd.Parameter(tensor.Must(tensor.From([]float64{1.1}, 1)))
	y, err := rpc.Call[*autograd.Variable](gctx(ctx), g.agents[0], "w1", "g.via", []string{"w2", "w3", "w0"}, x)
	if err != nil {
		return err
	}
	var opts []distautograd.PassOption
	if fast {
		opts = append(opts, distautograd.Fast())
	}
	if err := c.Backward(ctx, []*autograd.Variable{y.Sum()}, opts...); err != nil {
		return err
	}
	grad := c.Gradient(x)
	if grad == nil {
		return errors.New("a pass has ended without its gradient")
	}
	want := 16.0 // the derivative of x^16
	for range 15 {
		want *= 1.1
	}
	if got, _ := tensor.Data[float64](grad); got[0]/want < 1-1e-12 || got[0]/want > 1+1e-12 {
		return fmt.Errorf("a gradient of %v, not %v", got[0], want)
	}
	return nil
}

func play(r *failpointtest.Run, fast bool) {
	g := &game{r: r}
	st := store.NewMemory()
	r.Cleanup(func() { _ = st.Close() })
	join, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for i := range workers {
		e := distautograd.New(distautograd.WithLease(200 * time.Millisecond))
		a, err := rpc.Join(join, st, fmt.Sprintf("w%d", i), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(g.handlers()),
			rpc.WithTimeout(timeout), e.Join())
		if err != nil {
			r.Errorf("w%d cannot join: %v", i, err)
			return
		}
		g.engines, g.agents = append(g.engines, e), append(g.agents, a)
		r.Cleanup(func() { _ = a.Close() })
	}
	opened, c, err := g.engines[0].Open(context.Background())
	if err != nil {
		r.Errorf("open: %v", err)
		return
	}
	carry := func(ctx context.Context) context.Context { return carrying{ctx, opened} }
	r.On(releaseEvent, func() { _ = c.Close() })
	r.On(middleEvent, func() { _ = g.agents[2].Close() })
	r.On(lastEvent, func() { _ = g.agents[3].Close() })
	r.On(openerEvent, func() { _ = g.agents[0].Close() })
	r.On(hookPanic, func() { g.set(failpointtest.Panic) })
	r.On(hookGoexit, func() { g.set(runtime.Goexit) })
	own := r.Context()
	r.Does("pass")
	r.Begin()
	call := r.Go("a pass", timeout+5*time.Second, func() error { return g.pass(own, c, carry, fast) })
	r.Wait()
	r.End()
	// On a slow machine the deadline comes by itself, at another worker perhaps a moment before it does here.
	happened := own.Err() != nil || r.Planned(failpointtest.Deadline.Name) && cohort.CodeOf(call.Err) == cohort.DeadlineExceeded
	for _, event := range []string{
		failpointtest.Cancel.Name, failpointtest.CancelCause.Name, failpointtest.Deadline.Name,
		releaseEvent, middleEvent, lastEvent, openerEvent, hookPanic, hookGoexit,
	} {
		_, did := r.Happened(event)
		happened = happened || did
		if did && event != failpointtest.Deadline.Name && event != hookPanic && event != hookGoexit { // which come to pass later
			r.EndsSoon(call, event, time.Second)
		}
	}
	g.judge(call)
	if err := call.Err; err != nil && !happened {
		r.Errorf("the pass has failed without a reason: %v", err)
	}
	_ = c.Close()
	// Nothing may be left at those that live, whichever died.
	dead := map[int]string{0: openerEvent, 2: middleEvent, 3: lastEvent}
	for i, e := range g.engines {
		if _, died := r.Happened(dead[i]); died {
			continue
		}
		for end := time.Now().Add(r.Slack() + 10*time.Second); e.Stats() != (distautograd.Stats{}) &&
			time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		if s := e.Stats(); s != (distautograd.Stats{}) {
			r.Errorf("w%d still holds %+v", i, s)
		}
	}
}

// carrying has the values of another context beside its own life.
type carrying struct {
	context.Context                 //nolint:containedctx // it is a context
	values          context.Context //nolint:containedctx // as above
}

func (c carrying) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// judge checks that the code of a pass that failed is one of those of what happened.
func (g *game) judge(c *failpointtest.Call) {
	r := g.r
	allowed := r.AllowContext(c)
	if r.Planned(failpointtest.Deadline.Name) { // the deadline of a worker that it reached first
		allowed = append(allowed, r.Allow(cohort.Canceled))
	}
	for _, code := range []cohort.Code{cohort.PeerLost, cohort.Closed, cohort.Unavailable, cohort.Aborted, cohort.NotFound} {
		allowed = append(allowed, r.Allow(code, middleEvent, lastEvent, openerEvent))
	}
	allowed = append(allowed, r.Allow(cohort.Closed, releaseEvent), r.Allow(cohort.Aborted, releaseEvent),
		r.Allow(cohort.Internal, hookPanic, hookGoexit), r.Allow(cohort.Remote, hookPanic, hookGoexit))
	r.Check(c, allowed...)
}
