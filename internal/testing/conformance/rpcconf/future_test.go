// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

var double = payload{make: func() any { return ones(2, 2) }}

func addTo(v any, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return add(v, ones(2, 2))
}

func TestThen(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		f := rpc.Async[any](w.ctx, n.Agent, w.next(n), "t.add", ones(2, 2), ones(2, 2))
		next, err := cohort.Then(f, addTo).Await(w.ctx)
		if err != nil {
			return err
		}
		if wrong := double.check(next, 3); wrong != nil {
			return wrong
		}
		first, err := f.Await(w.ctx)
		if err != nil {
			return err
		}
		return double.check(first, 2)
	})
}

func TestThenError(t *testing.T) {
	w := start(t, 2)
	f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2, 2), ones(2, 2))
	bad := errors.New("of the continuation")
	derived := cohort.Then(f, func(any, error) (int, error) { return 0, bad })
	if _, err := derived.Await(w.ctx); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	if _, err := f.Await(w.ctx); err != nil {
		t.Errorf("the call itself: %v", err)
	}
}

func TestThenMany(t *testing.T) {
	w := start(t, 2)
	f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2, 2), ones(2, 2))
	var derived []*cohort.Future[any]
	for i := range 10 {
		derived = append(derived, cohort.Then(f, func(v any, err error) (any, error) {
			if err = errors.Join(err, double.check(v, 2)); err != nil {
				return nil, err
			}
			return add(v, double.scaled(i))
		}))
	}
	for i, d := range derived {
		v, err := d.Await(w.ctx)
		must(t, err)
		must(t, double.check(v, 2+i))
	}
	v, err := f.Await(w.ctx)
	must(t, err)
	must(t, double.check(v, 2))
}

func TestThenChain(t *testing.T) {
	w := start(t, 2)
	f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2, 2), ones(2, 2))
	for range 20 {
		f = cohort.Then(f, addTo)
	}
	v, err := f.Await(w.ctx)
	must(t, err)
	must(t, double.check(v, 22))
}

func TestThenInHandler(t *testing.T) {
	w := start(t, 3)
	w.nodes[1].reg.MustHandle("t.add_then", func(ctx context.Context, to string, x any) (any, error) {
		return cohort.Then(rpc.Async[any](ctx, w.nodes[1].self(), to, "t.add", x, x), addTo).Await(ctx)
	})
	v, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.add_then", name(2), ones(2, 2))
	must(t, err)
	must(t, double.check(v, 3))
}

// A continuation that itself calls.
func TestThenCalls(t *testing.T) {
	w := start(t, 3)
	w.every(func(n *node) error {
		plus := func(x any) *cohort.Future[any] {
			return rpc.Async[any](w.ctx, n.Agent, w.next(n), addSchema, x, ones(2, 2), 1)
		}
		// The callback calls, adds a callback to that call, and waits for it.
		f := cohort.Then(plus(ones(2, 2)), func(x any, err error) (any, error) {
			if err != nil {
				return nil, err
			}
			return cohort.Then(plus(x), func(y any, err error) (any, error) {
				if err != nil {
					return nil, err
				}
				return add(y, ones(2, 2))
			}).Await(w.ctx)
		})
		v, err := f.Await(w.ctx)
		if err != nil {
			return err
		}
		return double.check(v, 4)
	})
}

func TestThenReplacesError(t *testing.T) {
	w := start(t, 2)
	f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.raise")
	seen := cohort.Then(f, func(_ any, err error) (string, error) {
		if checkErr(err, cohort.Remote, "Expected error") != nil {
			return "", err
		}
		return "", errors.New("Another error")
	})
	if _, err := seen.Await(w.ctx); err == nil || err.Error() != "Another error" {
		t.Errorf("got %v", err)
	}
	ignored := cohort.Then(f, func(any, error) (int, error) { return 7, nil })
	if v, err := ignored.Await(w.ctx); err != nil || v != 7 {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestOnDone(t *testing.T) {
	w := start(t, 2)
	done := make(chan any, 1)
	f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2, 2), ones(2, 2))
	f.OnDone(func(v any, err error) {
		if err != nil {
			v = err
		}
		done <- v
	})
	must(t, double.check(<-done, 2))
}

func TestCompleteTwice(t *testing.T) {
	f := cohort.NewPromise[int]()
	if !f.Complete(1, nil) || f.Complete(2, nil) {
		t.Error("a future was completed twice")
	}
	if v, err := f.Future().Await(t.Context()); v != 1 || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestFuturesDoNotTravel(t *testing.T) {
	w := start(t, 2)
	for _, mode := range modes {
		v, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.echo", cohort.NewPromise[int]().Future())
		if err == nil || !strings.Contains(err.Error(), "Future") {
			t.Errorf("%s: %v, %v", mode.name, v, err)
		}
	}
}

func TestCompleted(t *testing.T) {
	w := start(t, 2)
	for _, c := range []struct{ name, fn string }{{"value", "t.nothing"}, {"error", "t.raise"}} {
		t.Run(c.name, func(t *testing.T) {
			f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), c.fn)
			_, err := f.Await(w.ctx)
			if !f.Completed() || (err != nil) != (c.name == "error") {
				t.Errorf("completed %v, %v", f.Completed(), err)
			}
		})
	}
}

// A handler that completes a promise of its own from a continuation.
func TestPromiseInHandler(t *testing.T) {
	w := start(t, 3)
	w.nodes[1].reg.MustHandle("t.promise", func(ctx context.Context, to string, x any) (any, error) {
		out := cohort.NewPromise[any]()
		rpc.Async[any](ctx, w.nodes[1].self(), to, "t.add", x, x).OnDone(func(v any, err error) { out.Complete(v, err) })
		return out.Future().Await(ctx)
	})
	v, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.promise", name(2), ones(2, 2))
	must(t, err)
	must(t, double.check(v, 2))
}

func TestNestedThen(t *testing.T) {
	w := start(t, worldSize)
	for _, n := range w.nodes {
		n.reg.MustHandle("t.deep", func(left int, x any) *cohort.Future[any] {
			if left == 0 {
				f := cohort.NewPromise[any]()
				f.Complete(x, nil)
				return f.Future()
			}
			return cohort.Then(rpc.Async[any](w.ctx, n.self(), w.next(n), "t.deep", left-1, x), addTo)
		})
	}
	w.every(func(n *node) error {
		v, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.deep", 6, ones(2, 2))
		if err != nil {
			return err
		}
		return double.check(v, 7)
	})
}

// Only a handler whose result is a future itself is answered by it; a future inside a result cannot travel.
func TestFutureInResult(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.future_inside", func() []any { return []any{cohort.NewPromise[int]().Future()} })
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			v, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.future_inside")
			if err == nil || !strings.Contains(err.Error(), "Future") {
				t.Errorf("got %v, %v", v, err)
			}
		})
	}
}

func TestAsyncHandlerRaises(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.async_raise", func() (*cohort.Future[int], error) {
		return nil, rpc.Raise("RuntimeError", "Expected error")
	})
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			_, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.async_raise")
			wantErr(t, err, cohort.Remote, "Expected error")
		})
	}
}

// The compiler knows that an async handler returns a future; it may still return none.
func TestAsyncHandlerReturnsNothing(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.async_nil", func() *cohort.Future[int] { return nil })
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			_, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.async_nil")
			wantErr(t, err, cohort.Remote, "nil future")
		})
	}
}

func (w *world) serveAsync() {
	for _, n := range w.nodes {
		one := func(to string, x any) *cohort.Future[any] {
			return rpc.Async[any](w.ctx, n.self(), to, "t.add", x, ones(2, 2))
		}
		n.reg.MustHandle("t.a_simple", one).
			MustHandle("t.a_promise", func(_ string, x any) *cohort.Future[any] {
				f := cohort.NewPromise[any]()
				go func() { f.Complete(add(x, ones(2, 2))) }()
				return f.Future()
			}).
			MustHandle("t.a_chained", func(to string, x any) *cohort.Future[any] { return cohort.Then(one(to, x), addTo) }).
			MustHandle("t.a_nested", func(to string, x any) *cohort.Future[any] {
				return rpc.Async[any](w.ctx, n.self(), to, "t.a_chained", n.self().Name(), x)
			}).
			MustHandle("t:Async.method", one).
			MustHandle("t.a_steps", func(to string, x any, steps int) *cohort.Future[any] {
				f := one(to, x)
				for range steps - 1 {
					f = cohort.Then(f, addTo)
				}
				return f
			}).
			MustHandle("t.a_fanout", func(to string, x any, count int) *cohort.Future[any] {
				var all []*cohort.Future[any]
				for range count {
					all = append(all, one(to, x))
				}
				return cohort.Then(cohort.All(all...), func(sums []any, err error) (any, error) {
					if err != nil {
						return nil, err
					}
					total := any(tensor.Must(tensor.New(tensor.Float32, 2, 2)))
					for _, sum := range sums {
						if total, err = add(total, sum); err != nil {
							return nil, err
						}
					}
					return total, nil
				})
			})
	}
}

func TestAsyncHandler(t *testing.T) {
	// One place for handlers: what is answered by a future does not hold it.
	w := start(t, 3, rpc.WithConcurrency(1))
	w.serveAsync()
	for _, c := range []struct {
		name, fn string
		more     []any
		want     int
	}{
		{"simple", "t.a_simple", nil, 2},
		{"promise", "t.a_promise", nil, 2},
		{"chained", "t.a_chained", nil, 3},
		{"nested", "t.a_nested", nil, 3},
		{"type", "t:Async.method", nil, 2},
		{"steps", "t.a_steps", []any{20}, 21},
		{"fanout", "t.a_fanout", []any{20}, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, mode := range modes {
				t.Run(mode.name, func(t *testing.T) {
					must(t, parallel(8, func(int) error {
						v, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), c.fn, append([]any{name(2), ones(2, 2)}, c.more...)...)
						if err != nil {
							return err
						}
						if err := double.check(v, c.want); err != nil {
							return fmt.Errorf("%s: %w", c.fn, err)
						}
						return nil
					}))
				})
			}
		})
	}
}

// Sixty-four calls that call back, on workers with few places: PyTorch's pool of sixteen threads stops for good here.
func TestNestedCallsDoNotExhaust(t *testing.T) {
	w := start(t, 2, rpc.WithConcurrency(2))
	must(t, parallel(64, func(int) error {
		hops, err := rpc.Call[int](w.ctx, w.nodes[0].Agent, name(1), "t.relay",
			[]string{name(0), name(1), name(0), name(1), name(0)})
		if err != nil || hops != 5 {
			return fmt.Errorf("%d hops, %w", hops, err)
		}
		return nil
	}))
}
