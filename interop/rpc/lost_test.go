// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
)

// pylate makes an object when it is told to, and knows when it is freed.
const pylate = `
import threading, weakref
began, made, freed = threading.Event(), threading.Event(), threading.Event()
class Made: pass
def make():
    began.set()
    made.wait()
    m = Made()
    weakref.finalize(m, freed.set)
    return m
def give():
    import torch.distributed.rpc as rpc
    return rpc.RRef(make())
def has_begun(): return began.wait(20)
def finish(): made.set()
def is_freed(): return freed.wait(25)
`

// TestCreationIsCut cuts the pipe while a PyTorch worker makes an object for a Go worker, which may have given it up before. The PyTorch
// worker takes a delete only once its function has ended; the object is still freed, and its shutdown waits for nothing.
func TestCreationIsCut(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for name, givenUp := range map[string]bool{"awaited": false, "given up": true} {
			t.Run(name, func(t *testing.T) {
				set := refSettings(settings{static: true, tolerant: true})
				set.modules["pycut"], set.modules["pylate"] = pycut, pylate
				w := start(t, tr, set, goWorker("go0", nil), torchWorker("py1", "pass"))
				a, ctx := w.agents["go0"], testContext(t)
				creation, giveUp := context.WithCancel(ctx)
				defer giveUp()
				ref, err := rpc.Remote[any](creation, a, "py1", "pylate.make")
				if err != nil {
					t.Fatal(err)
				}
				askTorch(ctx, t, a, "pylate.has_begun")
				if givenUp {
					giveUp()
					if err := ref.Confirmed(ctx); err == nil || ctx.Err() != nil {
						t.Fatalf("the creation that was given up: %v", err)
					}
				}
				if _, err := rpc.Call[any](ctx, a, "py1", "pycut.cut", 0); !errors.Is(err, cohort.PeerLost) {
					t.Fatalf("the call that cuts its own connection: %v", err)
				}
				if err := ref.Confirmed(ctx); err == nil {
					t.Error("a creation whose answer was lost is confirmed")
				}
				_ = ref.Close()
				askTorch(ctx, t, a, "pylate.finish")
				askTorch(ctx, t, a, "pylate.is_freed")
				w.run()
				w.stop()
			})
		}
	})
}

// TestCreationIsRefused lets a Go worker refuse objects that a PyTorch worker wants it to make. The PyTorch worker is told when it fetches
// them, though the fetch may have been sent before, and can leave: its shutdown waits for references that are not settled.
func TestCreationIsRefused(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := start(t, tr, refSettings(settings{static: true, tolerant: true}),
			goWorker("go0", refHandlers(), rpc.WithConcurrency(1), rpc.WithQueue(2)), torchWorker("py1", `
import refstub
refs = [rpc.remote("go0", refstub.slow) for _ in range(20)]
refused = 0
for r in refs:
    try:
        r.to_here()
    except RuntimeError as e:
        assert "wait for a slot" in str(e), e
        refused += 1
assert 0 < refused < 20, refused
del r, refs
`))
		w.run()
		w.stop()
	})
}

// TestOwnPipeIsCut cuts the pipe of a PyTorch worker to one of two Go workers, whose object it keeps. It cannot give the object back any
// more; they do not wait for that when they leave.
func TestOwnPipeIsCut(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		set := refSettings(settings{static: true, tolerant: true})
		set.modules["pycut"] = pycut
		w := start(t, tr, set, goWorker("go0", refHandlers()), goWorker("go1", refHandlers()), torchWorker("py2", `
import refstub
rpc.rpc_sync("go1", refstub.tensor, args=(1,))
`))
		w.run()
		ctx, a := testContext(t), w.agents["go1"]
		at, err := netip.ParseAddrPort(a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		mine, err := rpc.NewRef(a, 7)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rpc.Call[any](ctx, a, "py2", "pyrefs.keep", mine); err != nil {
			t.Fatal(err)
		}
		_ = mine.Close()
		if _, err := rpc.Call[any](ctx, w.agents["go0"], "py2", "pycut.cut_own", int(at.Port())); err != nil {
			t.Fatal(err)
		}
		w.stop()
	})
}

// TestLateReference gives up a call whose result is a reference of the PyTorch worker, or a fetch of an object that is such a reference.
// The answer comes late, and what it brings is released: otherwise the PyTorch worker keeps the object, and its shutdown waits.
func TestLateReference(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		t.Run("call", func(t *testing.T) {
			lateReference(t, tr, func(ctx, call context.Context, a *rpc.Agent) func() error {
				f := rpc.Async[any](call, a, "py1", "pylate.give")
				askTorch(ctx, t, a, "pylate.has_begun")
				return func() error {
					_, err := f.Await(ctx)
					return err
				}
			})
		})
		t.Run("fetch", func(t *testing.T) {
			lateReference(t, tr, func(ctx, call context.Context, a *rpc.Agent) func() error {
				ref, err := rpc.Remote[any](ctx, a, "py1", "pylate.give")
				if err != nil {
					t.Fatal(err)
				}
				askTorch(ctx, t, a, "pylate.has_begun")
				sent, fetched := a.Stats()["py1"].BytesSent, make(chan error, 1)
				go func() {
					_, err := ref.Fetch(call)
					fetched <- err
				}()
				for a.Stats()["py1"].BytesSent == sent && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				return func() error {
					defer func() { _ = ref.Close() }()
					return <-fetched
				}
			})
		})
	})
}

// lateReference begins something with the context call, and gives it up while py1 makes the object.
func lateReference(t *testing.T, tr *torchtest.Torch, begin func(ctx, call context.Context, a *rpc.Agent) (end func() error)) {
	t.Helper()
	set := refSettings(settings{static: true})
	set.modules["pylate"] = pylate
	w := start(t, tr, set, goWorker("go0", nil), torchWorker("py1", "pass"))
	a, ctx := w.agents["go0"], testContext(t)
	call, giveUp := context.WithCancel(ctx)
	defer giveUp()
	end := begin(ctx, call, a)
	giveUp()
	if err := end(); err == nil || ctx.Err() != nil {
		t.Fatalf("what was given up: %v", err)
	}
	askTorch(ctx, t, a, "pylate.finish")
	askTorch(ctx, t, a, "pylate.is_freed")
	w.run()
	w.stop()
}

// askTorch calls a function of py1 that must not return False.
func askTorch(ctx context.Context, t *testing.T, a *rpc.Agent, fn string) {
	t.Helper()
	if ok, err := rpc.Call[any](ctx, a, "py1", fn); err != nil || ok == false {
		t.Fatalf("%s: %v, %v", fn, ok, err)
	}
}
