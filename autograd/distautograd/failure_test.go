// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// gate is a function whose gradient waits: it says that it has begun, and ends with the pass or when it is opened.
type gate struct {
	begun chan string
	open  chan struct{}
	at    string
}

func (*gate) Name() string { return "Gate" }

func (*gate) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (g *gate) Backward(c *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	g.begun <- g.at
	select {
	case <-g.open:
		return grads, nil
	case <-c.Ctx().Done():
		return nil, context.Cause(c.Ctx())
	}
}

// gated is a registry with "g.via", which is "t.via" whose last function is a gate.
func gated() (*rpc.Registry, *gate) {
	g := &gate{begun: make(chan string, 16), open: make(chan struct{})}
	return basics().MustHandle("g.via", func(ctx context.Context, path []string, x *autograd.Variable) (*autograd.Variable, error) {
		self := rpc.AgentFrom(ctx)
		if len(path) > 0 {
			return rpc.Call[*autograd.Variable](ctx, self, path[0], "g.via", path[1:], x)
		}
		out, err := autograd.Apply(&gate{g.begun, g.open, self.Name()}, x)
		if err != nil {
			return nil, err
		}
		return out[0], nil
	}), g
}

// passEnds checks that no worker has a pass any more.
func passEnds(t *testing.T, ws []*worker) {
	t.Helper()
	for _, w := range ws {
		if !w.closed && !eventually(func() bool { return w.engine.Stats().Passes == 0 }) {
			t.Errorf("%s still runs a pass", w.name())
		}
	}
}

// A worker dies while a pass waits in it, before the pass reaches it, or after it has left it.
func TestWorkerDies(t *testing.T) {
	for _, victim := range []int{1, 2, 3} {
		modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
			t.Helper()
			reg, g := gated()
			ws := newWorld(t, 4, reg)
			ctx, c := ws[0].open(t)
			y := call(ctx, t, ws[0], "w1", "g.via", []string{"w2", "w3"}, param(1)) // the gate is at w3
			result := make(chan error, 1)
			go func() { result <- c.Backward(ctx, []*autograd.Variable{y.Sum()}, opts...) }()
			<-g.begun
			died := time.Now()
			ws[victim].closed = true
			_ = ws[victim].agent.Close()
			err := <-result
			if d := time.Since(died); d > liveness {
				t.Errorf("it took %v", d)
			}
			var e *cohort.Error
			if !errors.Is(err, cohort.PeerLost) || !errors.As(err, &e) || e.Peer != ws[victim].name() {
				t.Errorf("the death of %s: %v", ws[victim].name(), err)
			}
			passEnds(t, ws)
		})
	}
}

// The worker that opened a context dies: the others free it.
func TestOpenerDies(t *testing.T) {
	reg, g := gated()
	ws := newWorld(t, 3, reg, distautograd.WithLease(100*time.Millisecond))
	ctx, c := ws[0].open(t)
	y := call(ctx, t, ws[0], "w1", "g.via", []string{"w2"}, param(1))
	go func() { _ = c.Backward(ctx, []*autograd.Variable{y.Sum()}) }()
	<-g.begun
	ws[0].closed = true
	_ = ws[0].agent.Close()
	for _, w := range ws[1:] {
		w.noLeak(t)
	}
}

// A worker that the clean-up has not reached asks.
func TestLease(t *testing.T) {
	ws := newWorld(t, 3, basics(), distautograd.WithLease(50*time.Millisecond))
	ctx, c := ws[0].open(t)
	call(ctx, t, ws[0], "w1", "t.via", []string{"w2"}, param(1))
	if !eventually(func() bool { return ws[2].engine.Stats().Contexts == 1 }) {
		t.Fatal("w2 has not seen the context")
	}
	time.Sleep(200 * time.Millisecond) // several leases: a context that is open stays
	if n := ws[2].engine.Stats().Contexts; n != 1 {
		t.Errorf("w2 has %d contexts, although it is open", n)
	}
	ws[1].closed = true
	_ = ws[1].agent.Close() // only w1 knows that w2 has seen it
	_ = c.Close()
	ws[0].noLeak(t)
	ws[2].noLeak(t)
}

// The clean-up reaches workers that only others know, and contexts may be closed at any moment of a pass.
func TestCloseDuringPass(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		reg, g := gated()
		ws := newWorld(t, 4, reg)
		ctx, c := ws[0].open(t)
		y := call(ctx, t, ws[0], "w1", "g.via", []string{"w2", "w3"}, param(1))
		for _, w := range ws {
			if n := w.engine.Stats().Contexts; n != 1 {
				t.Errorf("%s has %d contexts", w.name(), n)
			}
		}
		result := make(chan error, 1)
		go func() { result <- c.Backward(ctx, []*autograd.Variable{y.Sum()}, opts...) }()
		<-g.begun
		for _, w := range ws {
			if s := w.engine.Stats(); s.Passes != 1 || s.Contexts != 1 {
				t.Errorf("%s has %+v during a pass", w.name(), s)
			}
		}
		_ = c.Close()
		if err := <-result; !errors.Is(err, cohort.Aborted) {
			t.Errorf("a pass whose context was closed: %v", err)
		}
	})
}

func TestCancelledPass(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		reg, g := gated()
		ws := newWorld(t, 3, reg)
		ctx, c := ws[0].open(t)
		x := param(1)
		y := call(ctx, t, ws[0], "w1", "g.via", []string{"w2"}, x).Sum()
		short, cancel := context.WithCancel(ctx)
		result := make(chan error, 1)
		go func() {
			result <- c.Backward(short, []*autograd.Variable{y}, append(slices.Clone(opts), distautograd.RetainGraph())...)
		}()
		<-g.begun
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled pass: %v", err)
		}
		passEnds(t, ws)
		close(g.open)
		backward(ctx, t, c, y, opts...) // the context is still good
		wantGrad(t, c, x, 1)
	})
}

// A message of a context that arrives after the clean-up is refused, and does not make it again.
func TestLateMessage(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	var answers atomic.Int64
	reg := basics().MustHandle("l.late", func(ctx context.Context, to string, x *autograd.Variable) error {
		close(arrived)
		<-goOn
		_, err := rpc.Call[any](ctx, rpc.AgentFrom(ctx), to, "t.square", x)
		if errors.Is(err, cohort.Closed) {
			answers.Add(1)
		}
		return err
	})
	ws := newWorld(t, 3, reg)
	ctx, c := ws[0].open(t)
	f := rpc.Async[any](ctx, ws[0].agent, "w1", "l.late", "w2", param(1))
	<-arrived
	_ = c.Close()
	ws[1].noLeak(t)
	close(goOn)
	if _, err := f.Await(testContext(t)); err == nil {
		t.Error("a call in a context that was closed meanwhile has succeeded")
	}
	if answers.Load() != 1 {
		t.Error("the late call was not refused")
	}
	if n := ws[2].engine.Stats().Contexts; n != 0 {
		t.Errorf("w2 has %d contexts", n)
	}
}

// flaky is a function whose gradient fails for a time.
type flaky struct {
	failing
	works *atomic.Bool
}

func (f flaky) Backward(c *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f.works.Load() {
		return grads, nil
	}
	return f.failing.Backward(c, grads)
}

// Fifty passes fail, fifty succeed, in one context and mixed. Those of the same graph succeed once its function works.
func TestPassesWithErrors(t *testing.T) {
	var works atomic.Bool
	ws := newWorld(t, 2, basics().MustHandle("t.flaky", func(x *autograd.Variable) (*autograd.Variable, error) {
		out, err := autograd.Apply(flaky{works: &works}, x.Mul(x))
		if err != nil {
			return nil, err
		}
		return out[0], nil
	}))
	ctx, c := ws[0].open(t)
	x := param(3)
	bad := call(ctx, t, ws[0], "w1", "t.flaky", x).Sum()
	good := call(ctx, t, ws[0], "w1", "t.square", x).Sum()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if err := c.Backward(ctx, []*autograd.Variable{bad}, distautograd.RetainGraph()); err == nil ||
				!strings.Contains(err.Error(), "simulated error") {
				t.Errorf("pass %d has not failed with the error of the function: %v", i, err)
			}
		})
		wg.Go(func() {
			if err := c.Backward(ctx, []*autograd.Variable{good}, distautograd.RetainGraph()); err != nil {
				t.Errorf("pass %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	wantGrad(t, c, x, 50*6)
	works.Store(true)
	for i := range 50 {
		backward(ctx, t, c, bad, distautograd.RetainGraph())
		wantGrad(t, c, x, float64(51+i)*6)
	}
}

// panics is a function whose gradient panics.
type panics struct{ failing }

func (panics) Name() string { return "Panics" }

func (panics) Backward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) { panic("a bug") }

func TestFunctionPanics(t *testing.T) {
	ws := newWorld(t, 2, basics().MustHandle("t.panics", func(x *autograd.Variable) (*autograd.Variable, error) {
		out, err := autograd.Apply(panics{}, x)
		if err != nil {
			return nil, err
		}
		return out[0], nil
	}))
	ctx, c := ws[0].open(t)
	y := call(ctx, t, ws[0], "w1", "t.panics", param(1))
	err := c.Backward(ctx, []*autograd.Variable{y.Sum()})
	var e *cohort.Error
	if !errors.As(err, &e) || e.Peer != "w1" || !errors.Is(err, cohort.Internal) {
		t.Errorf("a panic: %v", err)
	}
}
