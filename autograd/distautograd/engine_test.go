// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// rows are those of a matrix, each as a matrix.
func rows(x *autograd.Variable) (list []*autograd.Variable) {
	for i := range x.Data().Dim(0) {
		list = append(list, x.Slice(0, i, i+1, 1))
	}
	return list
}

// basics are handlers without state.
func basics() *rpc.Registry {
	return rpc.NewRegistry().
		MustHandle("t.mul", func(x, y *autograd.Variable) *autograd.Variable { return x.Mul(y) }).
		MustHandle("t.square", func(x *autograd.Variable) *autograd.Variable { return x.Mul(x) }).
		MustHandle("t.constant", func(x *autograd.Variable) *autograd.Variable { return autograd.Constant(x.Data()) }).
		MustHandle("t.rows", rows).
		MustHandle("t.via", func(ctx context.Context, path []string, x *autograd.Variable) (*autograd.Variable, error) {
			if len(path) > 0 { // 3 * the rest of the way
				y, err := rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), path[0], "t.via", path[1:], x)
				if err != nil {
					return nil, err
				}
				return y.Mul(autograd.Constant(tensor.Must(tensor.From([]float64{3}, 1)))), nil
			}
			return x.Mul(x), nil
		}).
		MustHandle("t.context", func(ctx context.Context) int64 {
			if c := distautograd.From(ctx); c != nil {
				return int64(c.ID())
			}
			return 0
		}).
		MustHandle("t.fail", func(x *autograd.Variable) (*autograd.Variable, error) {
			out, err := autograd.Apply(failing{}, x)
			if err != nil {
				return nil, err
			}
			return out[0], nil
		}).
		MustHandle("t.error", func(*autograd.Variable) (*autograd.Variable, error) { return nil, errors.New("it does not work") })
}

// failing is a function whose gradient fails.
type failing struct{}

func (failing) Name() string { return "Failing" }

func (failing) Forward(_ *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (failing) Backward(*autograd.Context, []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return nil, errors.New("simulated error on backward")
}

// The root may be a received value itself.
func TestReceivedRoot(t *testing.T) {
	ws := newWorld(t, 2, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x := param(3)
		backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.square", x), opts...)
		wantGrad(t, c, x, 6)
	})
}

func TestBackwardMultiHop(t *testing.T) {
	ws := newWorld(t, 4, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		for _, path := range [][]string{
			{"w1"},
			{"w1", "w2"},
			{"w1", "w2", "w3"},
			{"w1", "w0"},
			{"w1", "w2", "w0", "w1", "w2", "w0"},
			{"w0", "w0"},
		} {
			ctx, c := ws[0].open(t)
			x := param(5)
			y := call(ctx, t, ws[0], path[0], "t.via", path[1:], x)
			backward(ctx, t, c, y.Sum(), opts...)
			want := 10.0
			for range path[1:] {
				want *= 3
			}
			wantGrad(t, c, x, want)
		}
	})
}

func TestRoundTripsAndRoots(t *testing.T) {
	ws := newWorld(t, 3, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x := param(1.5)
		y := x
		for i := range 6 { // x^64
			y = call(ctx, t, ws[0], []string{"w1", "w2"}[i%2], "t.square", y)
		}
		z := call(ctx, t, ws[0], "w2", "t.mul", x, x)
		roots := []*autograd.Variable{y.Sum(), z.Sum(), z.Sum()}
		if err := c.Backward(ctx, roots, opts...); err != nil {
			t.Fatal(err)
		}
		power := 1.0
		for range 63 {
			power *= 1.5
		}
		got, _ := tensor.Data[float64](c.Gradient(x))
		if want := 64*power + 2*2*1.5; got[0]/want < 1-1e-12 || got[0]/want > 1+1e-12 {
			t.Errorf("gradient %v, want %v", got[0], want)
		}
	})
}

func TestRetainAndAccumulate(t *testing.T) {
	ws := newWorld(t, 2, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x := param(3)
		loss := call(ctx, t, ws[0], "w1", "t.square", x).Sum()
		for i := range 1100 {
			backward(ctx, t, c, loss, append(opts, distautograd.RetainGraph())...)
			wantGrad(t, c, x, 6*float64(i+1))
		}
		backward(ctx, t, c, loss, opts...)
		wantGrad(t, c, x, 6*1101)
		err := c.Backward(ctx, []*autograd.Variable{loss}, opts...)
		if err == nil || !strings.Contains(err.Error(), "second time") {
			t.Errorf("a second pass without retain: %v", err)
		}
	})
}

// A value that was sent and does not enter the loss.
func TestUnusedSend(t *testing.T) {
	ws := newWorld(t, 2, basics())
	unused := func(t *testing.T) (context.Context, *distautograd.Context, *autograd.Variable, *autograd.Variable) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x := param(2)
		call(ctx, t, ws[0], "w1", "t.square", x) // unused
		return ctx, c, x, call(ctx, t, ws[0], "w1", "t.square", x).Sum()
	}
	t.Run("smart", func(t *testing.T) {
		ctx, c, x, loss := unused(t)
		backward(ctx, t, c, loss)
		wantGrad(t, c, x, 4)
	})
	t.Run("fast", func(t *testing.T) {
		ctx, c, _, loss := unused(t)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := c.Backward(short, []*autograd.Variable{loss}, distautograd.Fast())
		if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), "t.square") &&
			!strings.Contains(err.Error(), "PYTHON_CALL") {
			t.Errorf("an unused send: %v", err)
		}
	})
	t.Run("only some of a list", func(t *testing.T) {
		modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
			t.Helper()
			ctx, c := ws[0].open(t)
			x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5, 2)))
			here := rows(x)
			if err := here[0].Mul(here[2]).Mul(here[4]).Sum().Backward(ctx); err != nil {
				t.Fatal(err)
			}
			list, err := rpc.Call[[]*autograd.Variable](ctx, ws[0].agent, "w1", "t.rows", x)
			if err != nil {
				t.Fatal(err)
			}
			product := call(ctx, t, ws[0], "w1", "t.mul", call(ctx, t, ws[0], "w1", "t.mul", list[0], list[2]), list[4])
			backward(ctx, t, c, product.Sum(), opts...)
			wantLocal(t, c, x)
		})
	})
	t.Run("of a call that failed", func(t *testing.T) {
		modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
			t.Helper()
			ctx, c := ws[0].open(t)
			x := param(5)
			if _, err := rpc.Call[any](ctx, ws[0].agent, "w1", "t.error", x); err == nil {
				t.Fatal("no error")
			}
			if _, err := rpc.Call[any](ctx, ws[0].agent, "w1", "aten::matmul(Tensor self, Tensor other) -> Tensor", x,
				param(1, 2)); err == nil {
				t.Fatal("no error of an operator whose arguments do not match")
			}
			backward(ctx, t, c, call(ctx, t, ws[0], "w1", "t.square", x).Sum(), opts...)
			wantGrad(t, c, x, 10)
		})
	})
}

func TestContextTravels(t *testing.T) {
	ws := newWorld(t, 2, basics())
	base := testContext(t)
	ctx, c := ws[0].open(t)
	if id := c.ID(); int(id>>48) != int(ws[0].agent.ID()) {
		t.Errorf("the context of worker %d is %d", ws[0].agent.ID(), id)
	}
	for _, to := range []string{"w0", "w1"} {
		if id, err := rpc.Call[int64](ctx, ws[0].agent, to, "t.context"); err != nil || id != int64(c.ID()) {
			t.Errorf("context %d at %s, %v; want %d", id, to, err, c.ID())
		}
		if id, err := rpc.Call[int64](base, ws[0].agent, to, "t.context"); err != nil || id != 0 {
			t.Errorf("context %d at %s, %v; want none", id, to, err)
		}
	}
	if _, _, err := ws[0].engine.Open(ctx); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a context inside another one: %v", err)
	}
	if n := ws[1].engine.Stats().Contexts; n != 1 {
		t.Errorf("w1 has %d contexts", n)
	}
	if n := ws[1].agent.DebugInfo()["num_autograd_contexts"]; n != 1 {
		t.Errorf("the agent of w1 says that there are %d contexts", n)
	}
	_ = c.Close()
	_ = c.Close()
	if !eventually(func() bool { return ws[1].engine.Stats().Contexts == 0 }) {
		t.Error("w1 still has the context")
	}
	if _, err := rpc.Call[int64](ctx, ws[0].agent, "w1", "t.context"); !errors.Is(err, cohort.Closed) {
		t.Errorf("a call in a closed context: %v", err)
	}
	if _, err := c.Gradients(); !errors.Is(err, cohort.Closed) {
		t.Errorf("the gradients of a closed context: %v", err)
	}
	if err := c.Backward(ctx, []*autograd.Variable{param(1).Sum()}); !errors.Is(err, cohort.Closed) {
		t.Errorf("a pass in a closed context: %v", err)
	}
}

func TestInvalidRoots(t *testing.T) {
	ws := newWorld(t, 1, basics())
	ctx, c := ws[0].open(t)
	for name, roots := range map[string][]*autograd.Variable{
		"no tensors": nil, "requires_grad": {autograd.Constant(tensor.Must(tensor.From([]float64{1}, 1)))},
		"scalar": {param(1, 2).Mul(param(1, 2))},
		"leaf":   {param(1)}, "no variable": {nil},
	} {
		if err := c.Backward(ctx, roots); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWithoutCalls(t *testing.T) {
	ws := newWorld(t, 1, basics())
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x := param(1, 2)
		backward(ctx, t, c, x.Mul(x).Sum(), opts...)
		wantGrad(t, c, x, 2, 4)
	})
}

// An error of a function reaches the worker that began the pass, and ends it everywhere: of one at another worker, which may have been
// called by a third one, or of one here that gradients reach over several others.
func TestFunctionFails(t *testing.T) {
	ws := newWorld(t, 3, basics().
		MustHandle("t.nested", func(ctx context.Context, to string, x *autograd.Variable) (*autograd.Variable, error) {
			y, err := rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), to, "t.fail", x.Mul(x))
			if err != nil {
				return nil, err
			}
			return x.Mul(y), nil
		}))
	t.Run("callee", func(t *testing.T) {
		functionFails(t, ws, "w2", func(ctx context.Context, t *testing.T, x *autograd.Variable) *autograd.Variable {
			t.Helper()
			return call(ctx, t, ws[0], "w2", "t.fail", call(ctx, t, ws[0], "w1", "t.square", x))
		})
	})
	t.Run("nested", func(t *testing.T) {
		functionFails(t, ws, "w2", func(ctx context.Context, t *testing.T, x *autograd.Variable) *autograd.Variable {
			t.Helper()
			return call(ctx, t, ws[0], "w1", "t.nested", "w2", x)
		})
	})
	t.Run("here", func(t *testing.T) {
		functionFails(t, ws, "w0", func(ctx context.Context, t *testing.T, x *autograd.Variable) *autograd.Variable {
			t.Helper()
			out, err := autograd.Apply(failing{}, x.Mul(x))
			if err != nil {
				t.Fatal(err)
			}
			y := out[0]
			for _, to := range []string{"w1", "w2", "w1", "w2"} {
				y = call(ctx, t, ws[0], to, "t.mul", y, x)
			}
			return y
		})
	})
}

// functionFails runs a pass through a function that fails at a worker.
func functionFails(t *testing.T, ws []*worker, at string,
	compute func(context.Context, *testing.T, *autograd.Variable) *autograd.Variable,
) {
	t.Helper()
	modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
		t.Helper()
		ctx, c := ws[0].open(t)
		x := param(2)
		mid := compute(ctx, t, x)
		begun := time.Now()
		err := c.Backward(ctx, []*autograd.Variable{mid.Sum()}, append(opts, distautograd.RetainGraph())...)
		var e *cohort.Error
		if !errors.As(err, &e) || e.Peer != at || e.Key != "Failing" || !strings.Contains(err.Error(), "simulated error") {
			t.Errorf("the error is %v", err)
		}
		if d := time.Since(begun); d > liveness {
			t.Errorf("it took %v", d)
		}
		for _, w := range ws {
			if !eventually(func() bool { return w.engine.Stats().Passes == 0 }) {
				t.Errorf("%s still runs a pass", w.name())
			}
		}
		// The context is still good.
		y := call(ctx, t, ws[0], "w1", "t.square", x)
		if len(opts) == 0 { // a FAST pass waits for the messages above
			backward(ctx, t, c, y.Sum())
			wantGrad(t, c, x, 4)
		}
	})
}

func TestLocalBackwardRefused(t *testing.T) {
	ws := newWorld(t, 2, basics())
	ctx, _ := ws[0].open(t)
	x := param(2)
	y := call(ctx, t, ws[0], "w1", "t.square", x)
	if err := y.Sum().Backward(ctx); err == nil || !strings.Contains(err.Error(), "Backward of its distributed autograd context") {
		t.Errorf("a local pass: %v", err)
	}
}
