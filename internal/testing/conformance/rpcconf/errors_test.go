// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

func TestWrongArguments(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, args := range [][]any{{10}, {"text"}, {1, 2, 3, 4}, {rpc.Kw{"unknown": 1}}} {
			_, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.sum", args...)
			var remote *rpc.RemoteError
			if !errors.As(err, &remote) || remote.Kind != "TypeError" || remote.Worker != w.next(n) ||
				!errors.Is(err, cohort.InvalidArgument) {
				return fmt.Errorf("%v: %w", args, err)
			}
		}
		return nil
	})
}

func TestRaise(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, mode := range modes {
			_, err := mode.call(w.ctx, n.Agent, w.next(n), "t.raise")
			var remote *rpc.RemoteError
			if !errors.As(err, &remote) || remote.Kind != "ValueError" || remote.Message != "Expected error" ||
				remote.Worker != w.next(n) || !errors.Is(err, cohort.Remote) {
				return fmt.Errorf("%s: got %w", mode.name, err)
			}
		}
		_, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.plain_error")
		return checkErr(err, cohort.Remote, "a plain Go error", w.next(n))
	})
}

// A panic is an error at the caller, without the stack, and with it in the callee's log; the worker lives on.
func TestPanic(t *testing.T) {
	w := start(t, 2)
	_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.panic")
	var remote *rpc.RemoteError
	if !errors.As(err, &remote) || !strings.Contains(remote.Message, "Expected panic") || remote.Stack != "" {
		t.Errorf("got %+v", err)
	}
	if !w.nodes[1].log.Has("Expected panic") || !w.nodes[1].log.Has("rpcconf") {
		t.Errorf("the callee's log has no word of it: %s", w.nodes[1].log)
	}
	if here, err := rpc.Call[string](w.ctx, w.nodes[0].Agent, name(1), "t.here"); err != nil || here != name(1) {
		t.Errorf("after the panic: %q, %v", here, err)
	}
}

func TestRaiseEscaped(t *testing.T) {
	w := start(t, 2)
	for _, to := range []string{name(1), name(0)} {
		_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, to, "t.raise_escaped")
		var remote *rpc.RemoteError
		if !errors.As(err, &remote) || remote.Message != "Expected error escaped\nwith \"quotes\", \\ and ü" {
			t.Errorf("got %q", err)
		}
	}
}

// An exception class that is unknown here keeps its name.
func TestUnknownErrorKind(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.custom", func() error { return rpc.Raise("my.module.CustomException", "text") })
	_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.custom")
	var remote *rpc.RemoteError
	if !errors.As(err, &remote) || remote.Kind != "my.module.CustomException" || remote.Message != "text" {
		t.Errorf("got %v", err)
	}
}

func TestUnknownFunction(t *testing.T) {
	w := start(t, 2)
	for _, mode := range modes {
		_, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.foo_add")
		wantErr(t, err, cohort.NotFound, "t.foo_add", name(1))
	}
	if here, err := rpc.Call[string](w.ctx, w.nodes[0].Agent, name(1), "t.here"); err != nil || here != name(1) {
		t.Errorf("the worker does not go on: %q, %v", here, err)
	}
	w.shutdown()
}

func TestAwaitTwice(t *testing.T) {
	w := start(t, 2)
	futures := w.async("t.raise", 20)
	_, err := cohort.All(futures...).Await(w.ctx)
	wantErr(t, err, cohort.Remote, "Expected error")
	for _, f := range futures {
		_, first := f.Await(w.ctx)
		wantErr(t, first, cohort.Remote, "Expected error")
		if _, second := f.Await(w.ctx); second != first { //nolint:errorlint // the very same
			t.Errorf("first %v, then %v", first, second)
		}
	}
}

// async starts calls and returns their futures.
func (w *world) async(fn string, count int, args ...any) []*cohort.Future[any] {
	var all []*cohort.Future[any]
	for range count {
		all = append(all, rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), fn, args...))
	}
	return all
}

func TestAllWithError(t *testing.T) {
	w := start(t, 2)
	_, err := cohort.All(w.async("t.raise", 10)...).Await(w.ctx)
	wantErr(t, err, cohort.Remote, "Expected error")
}

func TestAllWithPartialError(t *testing.T) {
	w := start(t, 2)
	futures := append(w.async("t.add", 10, ones(2), ones(2)), w.async("t.raise", 1)...)
	_, err := cohort.All(futures...).Await(w.ctx)
	wantErr(t, err, cohort.Remote, "Expected error")
}

func TestAllEndsEarly(t *testing.T) {
	w := start(t, 2)
	for _, c := range []struct {
		name, fn, text string
		args           []any
	}{
		{"handler", "t.raise", "Expected error", nil},
		{"builtin", addSchema, "size of tensor", []any{ones(10), ones(5), 1}},
		{"script", "__torch__.t.raise", "Expected error", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(w.ctx)
			defer cancel() // ends the call that hangs, at the callee too
			hangs := rpc.Async[any](ctx, w.nodes[0].Agent, name(1), "t.sleep", limit.Seconds())
			within(t, soon, "the error", func() {
				_, err := cohort.All(append([]*cohort.Future[any]{hangs}, w.async(c.fn, 2, c.args...)...)...).Await(w.ctx)
				wantErr(t, err, cohort.Remote, c.text)
			})
		})
	}
}

// scope is PyTorch's _wait_all: what was started inside is awaited at its end. Go has no hidden state for it.
func scope(ctx context.Context, body func(start func(f *cohort.Future[any])) error) ([]any, error) {
	var futures []*cohort.Future[any]
	if err := body(func(f *cohort.Future[any]) { futures = append(futures, f) }); err != nil {
		return nil, err
	}
	return cohort.All(futures...).Await(ctx)
}

func TestWaitAll(t *testing.T) {
	w := start(t, 2)
	got, err := scope(w.ctx, func(start func(*cohort.Future[any])) error {
		start(rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2, 2), ones(2, 2)))
		return nil
	})
	must(t, err)
	must(t, payload{make: func() any { return ones(2, 2) }}.check(got[0], 2))
	if calls := w.nodes[0].DebugInfo()["agent.client_active_calls"]; calls != 0 {
		t.Errorf("%v calls are left", calls)
	}
}

func TestWaitAllMany(t *testing.T) {
	w := start(t, 2)
	const calls = 20
	var own []any
	got, err := scope(w.ctx, func(start func(*cohort.Future[any])) error {
		for i := range calls { // of growing size, and each once more with its own wait
			p := payload{make: func() any { return ones(i, i) }}
			f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), addSchema, p.make(), p.make(), 1)
			start(f)
			sum, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), addSchema, p.make(), p.make(), 1)
			if err = errors.Join(err, p.check(sum, 2)); err != nil {
				return err
			}
			if sum, err = f.Await(w.ctx); err != nil {
				return err
			}
			own = append(own, sum)
		}
		return nil
	})
	must(t, err)
	if len(got) != calls {
		t.Fatalf("%d results", len(got))
	}
	for i, sum := range got {
		p := payload{make: func() any { return ones(i, i) }}
		must(t, errors.Join(p.check(sum, 2), p.check(own[i], 2)))
	}
}

func TestWaitAllTimeout(t *testing.T) {
	w := start(t, 2)
	_, err := scope(w.ctx, func(start func(*cohort.Future[any])) error {
		start(rpc.Async[any](within50ms(w.ctx, t), w.nodes[0].Agent, name(1), "t.sleep", 5.0))
		return nil
	})
	wantErr(t, err, cohort.DeadlineExceeded)
	testkit.Until(t, "no call is left", func() bool { return w.nodes[0].DebugInfo()["agent.client_active_calls"] == 0 })
}

func TestWaitAllRaise(t *testing.T) {
	w := start(t, 2)
	_, err := scope(w.ctx, func(start func(*cohort.Future[any])) error {
		start(rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.raise"))
		return nil
	})
	wantErr(t, err, cohort.Remote, "Expected error")
}

func TestWaitAllRaiseInBody(t *testing.T) {
	w := start(t, 2)
	mine := errors.New("local error")
	_, err := scope(w.ctx, func(start func(*cohort.Future[any])) error {
		start(rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.raise"))
		return mine
	})
	wantErr(t, err, mine)
	testkit.Until(t, "no call is left", func() bool { return w.nodes[0].DebugInfo()["agent.client_active_calls"] == 0 })
}

// A call to a worker that has gone fails soon, and says which worker.
func TestCallToGonePeer(t *testing.T) {
	w := start(t, worldSize)
	must(t, w.nodes[2].Close())
	time.Sleep(20 * time.Millisecond)
	for _, mode := range modes {
		within(t, soon, mode.name, func() {
			_, err := mode.call(w.ctx, w.nodes[1].Agent, name(2), "t.here")
			if !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), name(2)) {
				t.Errorf("%s: %v", mode.name, err)
			}
		})
	}
	// A call that is under way ends as well.
	waiting := rpc.Async[any](w.ctx, w.nodes[1].Agent, name(3), "t.sleep", limit.Seconds())
	time.Sleep(20 * time.Millisecond)
	within(t, soon, "a call under way", func() {
		must(t, w.nodes[3].Close())
		_, err := waiting.Await(w.ctx)
		// Its handler may have had the time to say that its agent was closed.
		if !errors.Is(err, cohort.PeerLost) && !errors.Is(err, cohort.Closed) || !strings.Contains(err.Error(), name(3)) {
			t.Errorf("got %v", err)
		}
	})
	if here, err := rpc.Call[string](w.ctx, w.nodes[1].Agent, name(0), "t.here"); err != nil || here != name(0) {
		t.Errorf("the others: %q, %v", here, err)
	}
}

func TestBuiltinWithInvalidArguments(t *testing.T) {
	w := start(t, 2)
	for _, args := range [][]any{{}, {ones(2)}, {ones(2), "text", 1}} {
		if v, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), addSchema, args...); err == nil {
			t.Errorf("%v gave %v", args, v)
		}
	}
	if here, err := rpc.Call[string](w.ctx, w.nodes[0].Agent, name(1), "t.here"); err != nil || here != name(1) {
		t.Errorf("the worker does not go on: %q, %v", here, err)
	}
}
