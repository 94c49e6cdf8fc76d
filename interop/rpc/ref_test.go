// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// counter is an object that Python reaches through references.
type counter struct{ n atomic.Int64 }

func (c *counter) Add(k int64) int64 { return c.n.Add(k) }
func (c *counter) Value() int64      { return c.n.Load() }
func (c *counter) Fail() error       { return rpc.Raise("ValueError", "this one always fails") }
func (c *counter) LearnLater(k int64) *cohort.Future[int64] {
	f := cohort.NewPromise[int64]()
	go func() { f.Complete(c.n.Add(k), nil) }()
	return f.Future()
}

const refstub = `
import torch
import torch.distributed.rpc as rpc
class Counter:
    def add(self, k): raise NotImplementedError
    def value(self): raise NotImplementedError
    def fail(self): raise NotImplementedError
    def learn_later(self, k): raise NotImplementedError
def counter(start): raise NotImplementedError
def tensor(n): raise NotImplementedError
def fail(text): raise NotImplementedError
def fetch(ref): raise NotImplementedError
def keep(ref): raise NotImplementedError
def drop(): raise NotImplementedError
def kept(): raise NotImplementedError
def slow(): raise NotImplementedError
def nested(ref): raise NotImplementedError
`

const pyrefs = `
import time, torch
import torch.distributed.rpc as rpc
class Thing:
    def __init__(self, n): self.n = n
    def get(self, k=0): return self.n + k
    def set(self, n): self.n = n
    def fail(self): raise ValueError("thing fails")
def thing(n): return Thing(n)
def make(n): return torch.ones(n)
def fail(text): raise ValueError(text)
def slow(n):
    time.sleep(0.3)
    return n
def fetch(ref): return ref.to_here()
store = []
def keep(ref):
    store.append(ref)
    return ref.confirmed_by_owner()
def drop():
    store.clear()
def own(v): return rpc.RRef(v)
def give(ref): return ref
`

// refHandlers is the Go side of the stub.
func refHandlers() *rpc.Registry { return addRefHandlers(rpc.NewRegistry()) }

func addRefHandlers(reg *rpc.Registry) *rpc.Registry {
	var kept atomic.Pointer[rpc.Ref[any]]
	return reg.
		MustClass("refstub.Counter", (*counter)(nil)).
		MustHandle("refstub.counter", func(start int64) *counter {
			c := &counter{}
			c.n.Store(start)
			return c
		}).
		MustHandle("refstub.tensor", func(n int) (*tensor.Tensor, error) { return tensor.Full(tensor.Float32, 1, n) }).
		MustHandle("refstub.fail", func(text string) (any, error) { return nil, rpc.Raise("ValueError", "%s", text) }).
		MustHandle("refstub.fetch", func(ctx context.Context, ref *rpc.Ref[any]) (any, error) {
			defer func() { _ = ref.Close() }()
			return ref.Fetch(ctx)
		}).
		MustHandle("refstub.keep", func(ref *rpc.Ref[any]) bool {
			if old := kept.Swap(ref); old != nil {
				_ = old.Close()
			}
			return ref.ConfirmedByOwner()
		}).
		MustHandle("refstub.drop", func() {
			if old := kept.Swap(nil); old != nil {
				_ = old.Close()
			}
		}).
		MustHandle("refstub.kept", func() *rpc.Ref[any] { return kept.Load() }).
		MustHandle("refstub.slow", func(ctx context.Context) int {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
			return 42
		}).
		MustHandle("refstub.nested", func(ref *rpc.Ref[any]) []any { return []any{ref, "nested"} })
}

func refSettings(set settings) settings {
	set.modules = map[string]string{"refstub": refstub, "pyrefs": pyrefs}
	return set
}

func TestGoOwnsForPyTorch(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		w := start(t, tr, refSettings(set), torchWorker("py0", `
import refstub
r = rpc.remote("go1", refstub.tensor, args=(4,))
teq(r.to_here(), torch.ones(4))
assert not r.is_owner() and r.owner().name == "go1"
r._get_future().wait()
while not r.confirmed_by_owner(): time.sleep(0.01)
slow = rpc.remote("go1", refstub.slow)
eq(slow.to_here(), 42)
c = rpc.remote("go1", refstub.counter, args=(5,))
eq(c.rpc_sync().add(3), 8)
eq(c.rpc_async().value().wait(), 8)
eq(c.remote().add(2).to_here(), 10)
eq(c.rpc_sync().learn_later(1), 11)
try:
    c.rpc_sync().fail()
    raise SystemExit("no exception")
except ValueError as e:
    assert "this one always fails" in str(e)
bad = rpc.remote("go1", refstub.fail, args=("made badly",))
try:
    bad.to_here()
    raise SystemExit("no exception")
except ValueError as e:
    assert "made badly" in str(e), str(e)
b = rpc.remote("go1", torch.add, args=(torch.ones(2), 2))
teq(b.to_here(), torch.full((2,), 3.))
teq(rpc.rpc_sync("go1", torch.mul, args=(torch.ones(2), torch.full((2,), 4.))), torch.full((2,), 4.))
# the reference comes home as an argument
teq(rpc.rpc_sync("go1", refstub.fetch, args=(r,)), torch.ones(4))
# and a reference of ours goes there
mine = rpc.RRef(7)
eq(rpc.rpc_sync("go1", refstub.fetch, args=(mine,)), 7)
eq(rpc.rpc_sync("go1", refstub.keep, args=(mine,)), True)
back = rpc.rpc_sync("go1", refstub.kept)
eq(back.to_here(), 7)
assert back.is_owner()
n = rpc.rpc_sync("go1", refstub.nested, args=(r,))
teq(n[0].to_here(), torch.ones(4))
rpc.rpc_sync("go1", refstub.drop)
del r, slow, c, bad, b, mine, back, n
gc.collect()
`), goWorker("go1", refHandlers()))
		w.run()
		eventually(t, w.agents["go1"], "num_owner_rrefs", 0)
		w.stop()
	})
}

// eventually waits for a debug value.
func eventually(t *testing.T, a *rpc.Agent, key string, want int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		got := a.DebugInfo()[key]
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s of %s is %d, want %d: %+v", key, a.Name(), got, want, a.References())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestPyTorchOwnsForGo(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		w := start(t, tr, refSettings(set), torchWorker("py0", `
assert refinfo()["num_owner_rrefs"] == "0" and refinfo()["num_forks"] == "0", refinfo()
`), goWorker("go1", refHandlers()))
		a, ctx := w.agents["go1"], testContext(t)
		ref, err := rpc.Remote[*tensor.Tensor](ctx, a, "py0", "pyrefs.make", 3)
		if err != nil {
			t.Fatal(err)
		}
		x, err := ref.Fetch(ctx)
		if err != nil || x.Numel() != 3 {
			t.Fatalf("fetch: %v, %v", x, err)
		}
		if failed := ref.Confirmed(ctx); failed != nil || !ref.ConfirmedByOwner() || ref.IsOwner() || ref.Owner().Name != "py0" {
			t.Fatalf("state of the reference: %v", failed)
		}
		thing, err := rpc.Remote[any](ctx, a, "py0", "pyrefs.thing", 5)
		if err != nil {
			t.Fatal(err)
		}
		if n, failed := rpc.CallMethod[int](ctx, thing, "get", rpc.Kw{"k": 2}); failed != nil || n != 7 {
			t.Fatalf("get: %v, %v", n, failed)
		}
		if _, failed := rpc.CallMethod[any](ctx, thing, "set", 9); failed != nil {
			t.Fatal(failed)
		}
		got, err := rpc.RemoteMethod[int](ctx, thing, "get")
		if err != nil {
			t.Fatal(err)
		}
		if n, failed := got.Fetch(ctx); failed != nil || n != 9 {
			t.Fatalf("remote get: %v, %v", n, failed)
		}
		var remote *rpc.RemoteError
		if _, failed := rpc.CallMethod[any](ctx, thing, "fail"); !errors.As(failed, &remote) || remote.Kind != "ValueError" {
			t.Fatalf("fail: %v", failed)
		}
		bad, err := rpc.Remote[any](ctx, a, "py0", "pyrefs.fail", "badly made")
		if err != nil {
			t.Fatal(err)
		}
		if _, failed := bad.Fetch(ctx); !errors.As(failed, &remote) || remote.Kind != "ValueError" || remote.Message != "badly made" {
			t.Fatalf("fetch of a failed creation: %v", failed)
		}
		slow, err := rpc.Remote[int](ctx, a, "py0", "pyrefs.slow", 6)
		if err != nil {
			t.Fatal(err)
		}
		if n, failed := slow.Fetch(ctx); failed != nil || n != 6 {
			t.Fatalf("slow: %v, %v", n, failed)
		}
		builtin, err := rpc.Remote[*tensor.Tensor](ctx, a, "py0", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", x, x)
		if err != nil {
			t.Fatal(err)
		}
		if y, failed := builtin.Fetch(ctx); failed != nil || y.Numel() != 3 {
			t.Fatalf("builtin: %v, %v", y, failed)
		}
		// Given back to its owner, and kept there.
		if y, failed := rpc.Call[*tensor.Tensor](ctx, a, "py0", "pyrefs.fetch", ref); failed != nil || y.Numel() != 3 {
			t.Fatalf("fetch there: %v, %v", y, failed)
		}
		// The owner gives one away in a result.
		given, err := rpc.Call[*rpc.Ref[int]](ctx, a, "py0", "pyrefs.own", 11)
		if err != nil {
			t.Fatal(err)
		}
		if n, failed := given.Fetch(ctx); failed != nil || n != 11 {
			t.Fatalf("given: %v, %v", n, failed)
		}
		// An object of ours, held there.
		own, err := rpc.NewRef(a, 13)
		if err != nil {
			t.Fatal(err)
		}
		if n, failed := rpc.Call[int](ctx, a, "py0", "pyrefs.fetch", own); failed != nil || n != 13 {
			t.Fatalf("own: %v, %v", n, failed)
		}
		// PyTorch never calls a reference confirmed that its owner registered by itself.
		if _, failed := rpc.Call[bool](ctx, a, "py0", "pyrefs.keep", own); failed != nil {
			t.Fatalf("keep: %v", failed)
		}
		home, err := rpc.Call[*rpc.Ref[int]](ctx, a, "py0", "pyrefs.give", own)
		if err != nil || !home.IsOwner() {
			t.Fatalf("home: %v", err)
		}
		if n, failed := home.LocalValue(ctx); failed != nil || n != 13 {
			t.Fatalf("local value: %v, %v", n, failed)
		}
		if _, failed := rpc.Call[any](ctx, a, "py0", "pyrefs.drop"); failed != nil {
			t.Fatal(failed)
		}
		eventually(t, a, "num_forks", 0)
		for _, c := range []interface{ Close() error }{ref, thing, got, bad, slow, builtin, given, own, home} {
			_ = c.Close()
		}
		if _, failed := ref.Fetch(ctx); !errors.Is(failed, rpc.ErrRefClosed) {
			t.Fatalf("fetch after close: %v", failed)
		}
		eventually(t, a, "num_confirmed_users", 0)
		eventually(t, a, "num_pending_futures", 0)
		w.run()
		w.stop()
	})
}

// TestThirdParties passes references through three workers, with Go in every place.
func TestThirdParties(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		w := start(t, tr, refSettings(set), torchWorker("py0", `
import refstub, pyrefs
# owner go1, from us to py2
r = rpc.remote("go1", refstub.tensor, args=(4,))
teq(rpc.rpc_sync("py2", pyrefs.fetch, args=(r,)), torch.ones(4))
eq(rpc.rpc_sync("py2", pyrefs.keep, args=(r,)), True)
# owner py2, from us to go1
s = rpc.remote("py2", pyrefs.make, args=(5,))
teq(rpc.rpc_sync("go1", refstub.fetch, args=(s,)), torch.ones(5))
eq(rpc.rpc_sync("go1", refstub.keep, args=(s,)), True)
del s
gc.collect()
k = rpc.rpc_sync("go1", refstub.kept)
teq(k.to_here(), torch.ones(5))
rpc.rpc_sync("go1", refstub.drop)
rpc.rpc_sync("py2", pyrefs.drop)
del r, k
gc.collect()
`), goWorker("go1", refHandlers()), torchWorker("py2", "pass"))
		a, ctx := w.agents["go1"], testContext(t)
		w.run()
		// Owner py0, from go1 to py2.
		ref, err := rpc.Remote[*tensor.Tensor](ctx, a, "py0", "pyrefs.make", 6)
		if err != nil {
			t.Fatal(err)
		}
		if x, failed := rpc.Call[*tensor.Tensor](ctx, a, "py2", "pyrefs.fetch", ref); failed != nil || x.Numel() != 6 {
			t.Fatalf("fetch by py2: %v, %v", x, failed)
		}
		if ok, failed := rpc.Call[bool](ctx, a, "py2", "pyrefs.keep", ref); failed != nil || !ok {
			t.Fatal(failed)
		}
		_ = ref.Close()
		again, err := rpc.Call[*rpc.Ref[*tensor.Tensor]](ctx, a, "py2", "pyrefs.give", mustRemote(t, a, "py0"))
		if err != nil {
			t.Fatal(err)
		}
		if x, failed := again.Fetch(ctx); failed != nil || x.Numel() != 2 {
			t.Fatalf("again: %v, %v", x, failed)
		}
		_ = again.Close()
		if _, failed := rpc.Call[any](ctx, a, "py2", "pyrefs.drop"); failed != nil {
			t.Fatal(failed)
		}
		eventually(t, a, "num_owner_rrefs", 0)
		eventually(t, a, "num_pending_children", 0)
		w.stop()
	})
}

func mustRemote(t *testing.T, a *rpc.Agent, to string) *rpc.Ref[*tensor.Tensor] {
	t.Helper()
	ref, err := rpc.Remote[*tensor.Tensor](context.Background(), a, to, "pyrefs.make", 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ref.Close() })
	return ref
}
