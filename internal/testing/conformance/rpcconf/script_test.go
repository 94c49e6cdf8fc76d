// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// The tests of this file are those of PyTorch's jit/rpc_test.py in which Python calls a TorchScript function. Such a
// call has messages of its own. On a Go worker a handler is what answers them.
const script = "__torch__."

func TestScriptCall(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, mode := range modes {
			for _, to := range []string{w.next(n), n.Name()} {
				v, err := mode.call(w.ctx, n.Agent, to, script+"t.add", ones(2, 2), ones(2, 2))
				if err = errors.Join(err, double.check(v, 2)); err != nil {
					return fmt.Errorf("%s to %s: %w", mode.name, to, err)
				}
			}
		}
		return nil
	})
}

func TestScriptError(t *testing.T) {
	w := start(t, 2)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			a := w.nodes[0].Agent
			_, err := mode.call(w.ctx, a, name(1), script+"t.raise")
			wantErr(t, err, cohort.Remote, "Expected error")
			_, err = mode.call(w.ctx, a, name(1), script+"t.nothing", 10)
			wantErr(t, err, cohort.Remote, "t.nothing")
			_, err = mode.call(w.ctx, a, name(1), script+"t.missing")
			wantErr(t, err, cohort.Remote, "t.missing")
			// As in PyTorch, a script function is called with positional arguments on the wire.
			_, err = mode.call(w.ctx, a, name(1), script+"t.add", ones(2), rpc.Kw{"b": ones(2)})
			wantErr(t, err, cohort.InvalidArgument, "positional")
		})
	}
}

func TestScriptCallbacks(t *testing.T) {
	w := start(t, 2)
	call := func(fn string, args ...any) *cohort.Future[any] {
		return rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), script+fn, args...)
	}
	sum := func() *cohort.Future[any] { return call("t.add", ones(2, 2), ones(2, 2)) }
	check := func(t *testing.T, f *cohort.Future[any], want int) {
		t.Helper()
		v, err := f.Await(w.ctx)
		must(t, errors.Join(err, double.check(v, want)))
	}
	t.Run("one", func(t *testing.T) { check(t, cohort.Then(sum(), addTo), 3) })
	t.Run("chain", func(t *testing.T) {
		f := sum()
		for range 20 {
			f = cohort.Then(f, addTo)
		}
		check(t, f, 22)
	})
	t.Run("done", func(t *testing.T) {
		f, called := sum(), make(chan any, 1)
		f.OnDone(func(v any, _ error) { called <- v })
		check(t, f, 2)
		must(t, double.check(<-called, 2))
	})
	t.Run("error", func(t *testing.T) {
		bad := errors.New("another expected error")
		f := cohort.Then(call("t.raise"), func(_ any, err error) (any, error) {
			return nil, errors.Join(bad, checkErr(err, cohort.Remote, "Expected error"))
		})
		if _, err := f.Await(w.ctx); !errors.Is(err, bad) || err.Error() != bad.Error() {
			t.Errorf("got %v", err)
		}
	})
}

// TestScriptReferences: script functions take references and return them, to their owner and to others.
func TestScriptReferences(t *testing.T) {
	w := start(t, 3)
	for _, n := range w.nodes {
		n.reg.MustHandle("t.fetch", func(ctx context.Context, ref *rpc.Ref[*tensor.Tensor]) (*tensor.Tensor, error) {
			defer func() { _ = ref.Close() }()
			return ref.Fetch(ctx)
		}).MustHandle("t.give_back", func(ctx context.Context, ref *rpc.Ref[*tensor.Tensor]) *rpc.Ref[*tensor.Tensor] {
			context.AfterFunc(ctx, func() { _ = ref.Close() })
			return ref
		}).MustHandle("t.is_confirmed", func(ref *rpc.Ref[*tensor.Tensor]) bool {
			defer func() { _ = ref.Close() }()
			return ref.ConfirmedByOwner()
		})
	}
	a := w.nodes[0].Agent
	for _, owner := range []string{a.Name(), name(2)} {
		ref, err := rpc.Remote[*tensor.Tensor](w.ctx, a, owner, script+"t.add", ones(2, 2), ones(2, 2))
		must(t, err)
		for _, mode := range modes {
			fetched, failure := mode.call(w.ctx, a, name(1), script+"t.fetch", ref)
			must(t, errors.Join(failure, double.check(fetched, 2)))
			ok, failure := mode.call(w.ctx, a, name(1), script+"t.is_confirmed", ref)
			if ok != true || failure != nil {
				t.Errorf("owner %s, %s: confirmed %v, %v", owner, mode.name, ok, failure)
			}
		}
		back, err := rpc.Call[*rpc.Ref[*tensor.Tensor]](w.ctx, a, name(1), script+"t.give_back", ref)
		must(t, err)
		v, err := back.Fetch(w.ctx)
		must(t, errors.Join(err, double.check(v, 2)))
		_, _ = back.Close(), ref.Close()
	}
}

func TestScriptAsyncFunction(t *testing.T) {
	w := start(t, 3)
	w.serveAsync()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			must(t, parallel(20, func(i int) error {
				v, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), script+"t.a_simple", name(2), double.scaled(i))
				return errors.Join(err, double.check(v, i+1))
			}))
		})
	}
}
