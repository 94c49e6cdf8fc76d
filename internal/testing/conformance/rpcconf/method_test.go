// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// typeOf is what PyTorch asks an owner for the class of an object.
const typeOf = "torch.distributed.rpc.api._rref_typeof_on_owner"

// cell is a stateful object: PyTorch's MyClass behind a proxy.
type cell struct {
	mu sync.Mutex
	v  int
}

// Add adds and returns the new value.
func (c *cell) Add(by int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.v += by
	return c.v
}

// GetValue returns the value.
func (c *cell) GetValue() int { return c.Add(0) }

// Increment adds and returns nothing.
func (c *cell) Increment(by int) { c.Add(by) }

// AddTo needs nothing of the cell: PyTorch's class and static methods are called through a reference in the same way.
func (*cell) AddTo(t *tensor.Tensor, by float64) (any, error) {
	return add(t, filled(by, t.Shape()...))
}

// SlowAdd adds after a while.
func (c *cell) SlowAdd(ctx context.Context, by int) (int, error) {
	if err := sleep(ctx, 0.5); err != nil {
		return 0, err
	}
	return c.Add(by), nil
}

// AsyncAdd is answered when its future is complete.
func (c *cell) AsyncAdd(by int) *cohort.Future[int] {
	f := cohort.NewPromise[int]()
	time.AfterFunc(5*time.Millisecond, func() { f.Complete(c.Add(by), nil) })
	return f.Future()
}

// box is an object whose methods work on a tensor.
type box struct{ t *tensor.Tensor }

// Size returns the shape.
func (b *box) Size() []int { return b.t.Shape() }

// View returns the tensor in another shape.
func (b *box) View(shape ...int) (*tensor.Tensor, error) { return b.t.View(shape...) }

func (w *world) serveCells() {
	for _, n := range w.nodes {
		n.reg.MustClass("t.Cell", &cell{}).MustClass("t.Box", &box{}).
			MustHandle("t.cell", func(v int) *cell { return &cell{v: v} }).
			MustHandle("t.box", func(t *tensor.Tensor) *box { return &box{t} }).
			MustHandle("t.slow_cell", func(ctx context.Context, v int) (*cell, error) { return &cell{v: v}, sleep(ctx, 0.3) }).
			MustHandle("t.no_cell", func() (*cell, error) { return nil, rpc.Raise("ValueError", "no cell") })
	}
}

// methods are the three ways to call a method through a reference.
func methods[R, T any](ctx context.Context, ref *rpc.Ref[T], method string, args ...any) ([3]R, error) {
	var out [3]R
	var err error
	if out[0], err = rpc.CallMethod[R](ctx, ref, method, args...); err != nil {
		return out, fmt.Errorf("sync: %w", err)
	}
	if out[1], err = rpc.AsyncMethod[R](ctx, ref, method, args...).Await(ctx); err != nil {
		return out, fmt.Errorf("async: %w", err)
	}
	made, err := rpc.RemoteMethod[R](ctx, ref, method, args...)
	if err != nil {
		return out, fmt.Errorf("remote: %w", err)
	}
	defer func() { _ = made.Close() }()
	if out[2], err = made.Fetch(ctx); err != nil {
		return out, fmt.Errorf("remote: %w", err)
	}
	return out, nil
}

func TestUnknownMethod(t *testing.T) {
	w := start(t, 2)
	w.serveCells()
	ref, err := rpc.Remote[*cell](w.ctx, w.nodes[0].Agent, name(1), "t.cell", 1)
	must(t, err)
	_, err = rpc.CallMethod[any](w.ctx, ref, "non_exist")
	wantErr(t, err, cohort.NotFound, "non_exist")
	_, err = rpc.AsyncMethod[any](w.ctx, ref, "non_exist").Await(w.ctx)
	wantErr(t, err, cohort.NotFound, "non_exist")
	made, err := rpc.RemoteMethod[any](w.ctx, ref, "non_exist")
	must(t, err)
	_, err = made.Fetch(w.ctx)
	wantErr(t, err, cohort.NotFound, "non_exist")
	must(t, made.Close())
	must(t, ref.Close())
}

func peerAndSelf(t *testing.T, test func(w *world, to string)) {
	t.Helper()
	for i, where := range []string{"self", "peer"} {
		t.Run(where, func(t *testing.T) {
			w := start(t, 2)
			w.serveCells()
			test(w, name(i))
			w.shutdown()
		})
	}
}

func TestTensorMethods(t *testing.T) {
	peerAndSelf(t, func(w *world, to string) {
		t := w.T
		ref, err := rpc.Remote[*box](w.ctx, w.nodes[0].Agent, to, "t.box", ones(4, 6))
		must(t, err)
		sizes, err := methods[[]int](w.ctx, ref, "size")
		must(t, err)
		views, err := methods[*tensor.Tensor](w.ctx, ref, "View", 8, 3)
		must(t, err)
		for i := range 3 {
			if fmt.Sprint(sizes[i]) != "[4 6]" || !tensor.Equal(views[i], ones(8, 3)) {
				t.Errorf("%s: %v, %v", modes[i].name, sizes[i], views[i])
			}
		}
		must(t, ref.Close())
	})
}

func TestRefReuse(t *testing.T) {
	w := start(t, 2)
	w.serveCells()
	ref, err := rpc.Remote[*box](w.ctx, w.nodes[0].Agent, name(1), "t.box", filled(5, 2, 2))
	must(t, err)
	for range 10 { // several methods in turn, each in every way
		sizes, err := methods[[]int](w.ctx, ref, "size")
		must(t, err)
		for i, shape := range [][]int{{1, 4}, {4, 1}, {4}} {
			args := []any{}
			for _, d := range shape {
				args = append(args, d)
			}
			views, err := methods[*tensor.Tensor](w.ctx, ref, "View", args...)
			must(t, err)
			for k, view := range views {
				if fmt.Sprint(sizes[i]) != "[2 2]" || !tensor.Equal(view, filled(5, shape...)) {
					t.Fatalf("%s: %v, %v", modes[k].name, sizes[i], view)
				}
			}
		}
	}
	must(t, ref.Close())
	w.shutdown()
}

func TestStatefulObject(t *testing.T) {
	peerAndSelf(t, func(w *world, to string) {
		t := w.T
		ref, err := rpc.Remote[*cell](w.ctx, w.nodes[0].Agent, to, "t.cell", 7)
		must(t, err)
		got, err := methods[int](w.ctx, ref, "Add", 1)
		if err != nil || got != [3]int{8, 9, 10} {
			t.Errorf("got %v, %v", got, err)
		}
		got, err = methods[int](w.ctx, ref, "get_value")
		if err != nil || got != [3]int{10, 10, 10} {
			t.Errorf("got %v, %v", got, err)
		}
		none, err := methods[any](w.ctx, ref, "increment", 1)
		if err != nil || none != [3]any{} {
			t.Errorf("got %v, %v", none, err)
		}
		got, err = methods[int](w.ctx, ref, "get_value")
		if err != nil || got != [3]int{13, 13, 13} {
			t.Errorf("got %v, %v", got, err)
		}
		for size := 2; size <= 4; size++ {
			sums, err := methods[*tensor.Tensor](w.ctx, ref, "add_to", ones(size, size), 2)
			must(t, err)
			for i, sum := range sums {
				if !tensor.Equal(sum, filled(3, size, size)) {
					t.Errorf("%s: %v", modes[i].name, sum)
				}
			}
		}
		must(t, ref.Close())
	})
}

func TestAsyncMethod(t *testing.T) {
	w := start(t, 2)
	w.serveCells()
	ref, err := rpc.Remote[*cell](w.ctx, w.nodes[0].Agent, name(1), "t.cell", 0)
	must(t, err)
	t.Run("sync", func(t *testing.T) {
		if v, err := rpc.CallMethod[int](w.ctx, ref, "async_add", 1); err != nil || v != 1 {
			t.Errorf("got %v, %v", v, err)
		}
	})
	t.Run("async", func(t *testing.T) {
		if v, err := rpc.AsyncMethod[int](w.ctx, ref, "async_add", 1).Await(w.ctx); err != nil || v != 2 {
			t.Errorf("got %v, %v", v, err)
		}
	})
	t.Run("remote", func(t *testing.T) {
		made, err := rpc.RemoteMethod[int](w.ctx, ref, "async_add", 1)
		must(t, err)
		if v, err := made.Fetch(w.ctx); err != nil || v != 3 {
			t.Errorf("got %v, %v", v, err)
		}
		must(t, made.Close())
	})
	must(t, ref.Close())
	w.shutdown()
}

// The class of an object: asked at the owner, as PyTorch's proxies do.
func TestRefType(t *testing.T) {
	w := start(t, 2)
	w.serveCells()
	a := w.nodes[0].Agent
	ask := func(t *testing.T, to, fn string, args ...any) (py.Global, error) {
		t.Helper()
		ref, err := rpc.Remote[any](w.ctx, a, to, fn, args...)
		must(t, err)
		defer func() { _ = ref.Close() }()
		later := rpc.Async[py.Global](w.ctx, a, to, typeOf, ref)
		got, err := rpc.Call[py.Global](w.ctx, a, to, typeOf, ref)
		other, otherErr := later.Await(w.ctx)
		if other != got || cohort.CodeOf(err) != cohort.CodeOf(otherErr) {
			t.Errorf("%v, %v at once, %v, %v as a future", got, err, other, otherErr)
		}
		return got, err
	}
	want := py.Global{Module: "t", Name: "Cell"}
	t.Run("peer", func(t *testing.T) {
		if got, err := ask(t, name(1), "t.cell", 1); err != nil || got != want {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := ask(t, name(1), "t.kwargs", 1, 2, 3); err != nil || got.Name != "int" {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := ask(t, name(1), addSchema, ones(2), ones(2), 1); err != nil || got != (py.Global{Module: "torch", Name: "Tensor"}) {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("owner", func(t *testing.T) {
		if got, err := ask(t, name(0), "t.cell", 1); err != nil || got != want {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("error", func(t *testing.T) {
		_, err := ask(t, name(1), "t.no_cell")
		wantErr(t, err, cohort.Remote, "no cell")
	})
	t.Run("slow", func(t *testing.T) {
		started := time.Now()
		got, err := ask(t, name(1), "t.slow_cell", 1)
		if err != nil || got != want || time.Since(started) < 250*time.Millisecond {
			t.Errorf("got %v, %v after %v", got, err, time.Since(started))
		}
	})
	w.shutdown()
}

func TestTypeTimeout(t *testing.T) {
	w := start(t, 2)
	w.serveCells()
	a := w.nodes[0].Agent
	ref, err := rpc.Remote[any](w.ctx, a, name(1), "t.slow_cell", 1)
	must(t, err)
	ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
	defer cancel()
	t.Run("blocking", func(t *testing.T) {
		_, err = rpc.Call[py.Global](ctx, a, name(1), typeOf, ref)
		wantErr(t, err, cohort.DeadlineExceeded)
	})
	t.Run("future", func(t *testing.T) {
		_, err = rpc.Async[py.Global](ctx, a, name(1), typeOf, ref).Await(w.ctx) //nolint:contextcheck // the call ends, not the wait
		wantErr(t, err, cohort.DeadlineExceeded)
	})
	got, err := rpc.Call[py.Global](w.ctx, a, name(1), typeOf, ref)
	if err != nil || got.Name != "Cell" {
		t.Errorf("with enough time: %v, %v", got, err)
	}
	must(t, ref.Close())
	w.shutdown()
}

func TestMethodTimeout(t *testing.T) {
	w := start(t, 2)
	w.serveCells()
	ref, err := rpc.Remote[*cell](w.ctx, w.nodes[0].Agent, name(1), "t.cell", 1)
	must(t, err)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err = rpc.CallMethod[int](short(), ref, "slow_add", 1)
	wantErr(t, err, cohort.DeadlineExceeded)
	_, err = rpc.AsyncMethod[int](short(), ref, "slow_add", 1).Await(w.ctx)
	wantErr(t, err, cohort.DeadlineExceeded)
	made, err := rpc.RemoteMethod[int](w.ctx, ref, "slow_add", 1)
	must(t, err)
	_, err = made.Fetch(short())
	wantErr(t, err, cohort.DeadlineExceeded)
	if v, err := made.Fetch(w.ctx); err != nil || v != 2 { // the two that timed out were cancelled
		t.Errorf("got %v, %v", v, err)
	}
	must(t, made.Close())
	must(t, ref.Close())
	w.shutdown()
}
