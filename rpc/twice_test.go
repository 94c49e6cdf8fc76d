// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"runtime"
	"testing"

	"github.com/cohort-dist/cohort/rpc/py"
)

type selfKeeper struct{ kept *Ref[any] }

func (s *selfKeeper) Echo(x any) any { return x }

func (s *selfKeeper) Keep(_, r *Ref[any]) { s.kept = r }

// TestReferenceTwiceInOneMessage gives methods the reference through which they are called among their arguments, and one
// reference as two arguments. A pickle names it once, so that it is one value in all places; but its receiver owns it.
func TestReferenceTwiceInOneMessage(t *testing.T) {
	reg := NewRegistry().MustClass("v.Keeper", (*selfKeeper)(nil))
	agents := world(t, 1, false, func(int) *Registry { return reg })
	ctx, a := testContext(t), agents[0]
	keeper := &selfKeeper{}
	invoke := func(method string, args ...any) any {
		t.Helper()
		got, err := a.serveMethod(ctx, &Request{Func: localInvoke, Args: []any{args[0], method, py.Tuple(args), &py.Dict{}}})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	fresh := func() *Ref[any] {
		r, err := NewRef[any](a, keeper)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	own := fresh()
	if got := invoke("echo", own); got != any(own) || own.c.Closed.Load() {
		t.Errorf("echo: %v, closed %v", got, own.c.Closed.Load())
	}
	_ = own.Close()
	own = fresh()
	inside := &py.Dict{Pairs: []py.Pair{{Key: "k", Value: []any{py.Tuple{own}}}}}
	args := []any{own, "echo", py.Tuple{inside}, &py.Dict{}}
	if _, err := a.serveMethod(ctx, &Request{Func: localInvoke, Args: args}); err != nil || own.c.Closed.Load() {
		t.Errorf("deep inside: %v, closed %v", err, own.c.Closed.Load())
	}
	_ = own.Close()
	own = fresh()
	invoke("keep", own, own)
	for range 3 {
		runtime.GC() // finds the first of the two
	}
	if v, err := keeper.kept.LocalValue(ctx); err != nil || v != any(keeper) {
		t.Errorf("the second of two arguments: %v, %v", v, err)
	}
	_ = keeper.kept.Close()
	runtime.KeepAlive(own)
}
