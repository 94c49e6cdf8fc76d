// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// rude is a function whose gradient does not return.
type rude struct{ how func() }

func (rude) Name() string { return "Rude" }

func (rude) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (r rude) Backward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	r.how()
	return nil, nil
}

// A function that panics, or ends its goroutine, fails the pass at once, wherever it is; the workers go on.
func TestFunctionDoesNotReturn(t *testing.T) {
	for name, how := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			reg := basics().MustHandle("t.rude", func(x *autograd.Variable) (*autograd.Variable, error) {
				out, err := autograd.Apply(rude{how}, x)
				if err != nil {
					return nil, err
				}
				return out[0], nil
			})
			ws := newWorld(t, 2, reg)
			for i, to := range []string{"w1", "w0", "w1"} { // the last one shows that all readers live
				ctx, c := ws[0].open(t)
				y := call(ctx, t, ws[0], to, "t.rude", param(1))
				begun := time.Now()
				err := onItsOwn(func() error { return c.Backward(ctx, []*autograd.Variable{y.Sum()}) })
				var e *cohort.Error
				if !errors.As(err, &e) || e.Code != cohort.Internal {
					t.Errorf("%d, at %s: %v", i, to, err)
				}
				if d := time.Since(begun); d > liveness {
					t.Errorf("%d, at %s: it took %v", i, to, d)
				}
			}
			ctx, c := ws[0].open(t)
			x := param(2)
			backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.square", x))
			wantGrad(t, c, x, 4)
		})
	}
}

// onItsOwn runs f in a goroutine that f may end.
func onItsOwn(f func() error) error {
	out := make(chan error, 1)
	go func() {
		err := error(cohort.New("distautograd: backward", cohort.Internal, "the goroutine of the caller has ended"))
		defer func() { out <- err }()
		err = f()
	}()
	return <-out
}

// Gradients of a megabyte go with messages and with answers, in both directions at once.
func TestLargeGradients(t *testing.T) {
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ws := newWorld(t, 2, basics())
		ctx, c := ws[0].open(t)
		x := autograd.Parameter(tensor.Must(tensor.Full(tensor.Float64, 2.0, 1<<17)))
		loss := autograd.Constant(tensor.Must(tensor.Full(tensor.Float64, 0.0)))
		for range 4 {
			y := x
			for range 3 {
				y = call(ctx, t, ws[0], "w1", "t.mul", y, x)
			}
			loss = loss.Add(y.Sum())
		}
		backward(ctx, t, c, loss, opts...)
		got, err := tensor.Data[float64](c.Gradient(x))
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range got {
			if g != 4*4*8 { // of x^4, four times
				t.Fatalf("element %d has gradient %v", i, g)
			}
		}
	})
}

// The clean-ups of many contexts leave in few messages, and reach also who was reached through another worker.
func TestCleanupsTravelTogether(t *testing.T) {
	var sent atomic.Int64
	hook := observe.Hook(func(e observe.Event) {
		if e.Kind == "rpc.call" && e.Phase == observe.Begin && e.Key == rpcwire.BackwardAutogradReq.String() {
			sent.Add(1)
		}
	})
	ws := newWorldWith(t, 3, []rpc.Option{rpc.WithHandlers(basics()), rpc.WithHook(hook)})
	const contexts = 512
	open := make([]*distautograd.Context, contexts)
	for i := range open {
		ctx, c, err := ws[0].engine.Open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		call(ctx, t, ws[0], "w1", "t.via", []string{"w2"}, param(1))
		open[i] = c
	}
	for _, c := range open {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range ws {
		w.noLeak(t)
	}
	if n := sent.Load(); n == 0 || n > contexts { // w0 to w1, w1 to w2
		t.Errorf("%d messages for the clean-up of %d contexts at two workers", n, contexts)
	}
}

// A worker that leaves a dynamic world right after it has closed a context still notifies the others.
func TestCleanupBeforeLeaving(t *testing.T) {
	ws := newWorld(t, 2, basics())
	ctx, c, err := ws[0].engine.Open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	call(ctx, t, ws[0], "w1", "t.square", param(1))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ws[0].closed = true
	if err := ws[0].agent.Shutdown(testContext(t)); err != nil {
		t.Fatal(err)
	}
	ws[1].noLeak(t)
}
