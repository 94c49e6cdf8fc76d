// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

func TestSelfAdd(t *testing.T) {
	w := start(t, 2)
	w.every(func(n *node) error {
		for _, fn := range adders {
			later := rpc.Async[any](w.ctx, n.Agent, n.Self().Name, fn, addArgs(fn, ones(2, 2), ones(2, 2))...)
			sum, err := rpc.Call[any](w.ctx, n.Agent, n.Self().Name, fn, addArgs(fn, ones(2, 2), ones(2, 2))...)
			if err != nil {
				return err
			}
			other, err := later.Await(w.ctx)
			if err = errors.Join(err, double.check(sum, 2), double.check(other, 2)); err != nil {
				return fmt.Errorf("%s: %w", fn, err)
			}
		}
		return nil
	})
}

// Arguments and results of a call to oneself are copies, as those of any other call.
func TestSelfCallCopies(t *testing.T) {
	w := start(t, 1)
	x := ones(2)
	back, err := rpc.Call[*tensor.Tensor](w.ctx, w.nodes[0].Agent, name(0), "t.echo", x)
	must(t, err)
	must(t, back.Fill(7))
	if !tensor.Equal(x, ones(2)) {
		t.Errorf("the caller's tensor became %v", x)
	}
}

func TestSendToRank(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			to, err := n.WorkerByID(cohort.Rank((n.rank + 1) % worldSize))
			if err != nil {
				return err
			}
			for _, mode := range modes {
				for _, fn := range adders {
					sum, err := mode.call(w.ctx, n.Agent, to.Name, fn, addArgs(fn, p.make(), p.make())...)
					if err != nil {
						return fmt.Errorf("%s of %s: %w", mode.name, fn, err)
					}
					if err := p.check(sum, 2); err != nil {
						return fmt.Errorf("%s of %s: %w", mode.name, fn, err)
					}
				}
			}
			for _, none := range []int{worldSize, -1, 1 << 20} {
				if info, err := n.WorkerByID(cohort.Rank(none)); checkErr(err, cohort.NotFound) != nil {
					return fmt.Errorf("worker %d: %v, %w", none, info, err)
				}
			}
			return nil
		})
	})
}

// modes are the three ways to call a function.
var modes = []struct {
	name string
	call func(ctx context.Context, a *rpc.Agent, to, fn string, args ...any) (any, error)
}{
	{"sync", func(ctx context.Context, a *rpc.Agent, to, fn string, args ...any) (any, error) {
		return rpc.Call[any](ctx, a, to, fn, args...)
	}},
	{"async", func(ctx context.Context, a *rpc.Agent, to, fn string, args ...any) (any, error) {
		return rpc.Async[any](ctx, a, to, fn, args...).Await(ctx)
	}},
	{"remote", func(ctx context.Context, a *rpc.Agent, to, fn string, args ...any) (any, error) {
		ref, err := rpc.Remote[any](ctx, a, to, fn, args...)
		if err != nil {
			return nil, err
		}
		defer func() { _ = ref.Close() }()
		return ref.Fetch(ctx)
	}},
}

func TestDestinations(t *testing.T) {
	w := start(t, worldSize)
	for _, c := range []struct {
		how string
		to  func(n *node) (string, error)
	}{
		{"name", func(n *node) (string, error) { return w.next(n), nil }},
		{"id", func(n *node) (string, error) {
			info, err := n.WorkerByID(cohort.Rank((n.rank + 1) % worldSize))
			return info.Name, err
		}},
		{"info", func(n *node) (string, error) {
			info, err := n.Worker(w.next(n))
			return info.Name, err
		}},
	} {
		t.Run(c.how, func(t *testing.T) {
			w.every(func(n *node) error {
				to, err := c.to(n)
				if err != nil {
					return err
				}
				here, err := rpc.Call[string](w.ctx, n.Agent, to, "t.here")
				if err != nil || here != w.next(n) {
					return fmt.Errorf("%q was reached, want %q: %w", here, w.next(n), err)
				}
				size := n.rank + 1
				sum, err := rpc.Call[*tensor.Tensor](w.ctx, n.Agent, to, addSchema, ones(size, size), ones(size, size), 1)
				if err != nil || !tensor.Equal(sum, filled(2, size, size)) {
					return fmt.Errorf("the sum is %v: %w", sum, err)
				}
				return nil
			})
		})
	}
}

// A builtin operator with a tensor and a number.
func TestScalarAdd(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		size := n.rank + 1
		sum, err := rpc.Call[*tensor.Tensor](w.ctx, n.Agent, w.next(n),
			"aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", ones(size, size), size, 1)
		if err != nil || !tensor.Equal(sum, filled(float64(1+size), size, size)) {
			return fmt.Errorf("got %v, %w", sum, err)
		}
		return nil
	})
}

func TestAsyncAdd(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		size := n.rank + 1
		f := rpc.Async[*tensor.Tensor](w.ctx, n.Agent, w.next(n), addSchema, ones(size, size), ones(size, size), 1)
		sum, err := f.Await(w.ctx)
		if err != nil || !tensor.Equal(sum, filled(2, size, size)) {
			return fmt.Errorf("got %v, %w", sum, err)
		}
		return nil
	})
}

func TestNonzero(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error { // all elements but one on the diagonal
		var elements []float32
		var where []int64
		for i := range worldSize * worldSize {
			row, column := i/worldSize, i%worldSize
			if row == n.rank && column == n.rank {
				elements = append(elements, 0)
				continue
			}
			elements, where = append(elements, 1), append(where, int64(row), int64(column))
		}
		at, err := rpc.Call[*tensor.Tensor](w.ctx, n.Agent, w.next(n), "t.nonzero",
			tensor.Must(tensor.From(elements, worldSize, worldSize)))
		if want := tensor.Must(tensor.From(where, len(where)/2, 2)); err != nil || !tensor.Equal(at, want) {
			return fmt.Errorf("got %v, want %v: %w", at, want, err)
		}
		return nil
	})
}

func TestMultiRPC(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			for i := range 20 { // other values each time
				x := i + n.rank + 1
				sum, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), addSchema, p.scaled(x), p.scaled(x), 1)
				if err != nil {
					return err
				}
				if err := p.check(sum, 2*x); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestExpectedSource(t *testing.T) {
	w := start(t, worldSize)
	var mu sync.Mutex
	callers := map[string][]string{}
	for _, n := range w.nodes {
		n.reg.MustHandle("t.note", func(_ context.Context, r *rpc.Request) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			callers[n.Name()] = append(callers[n.Name()], r.From.Name)
			if info := r.From; info.Name != name(int(info.ID)) {
				return nil, fmt.Errorf("the caller %v is unknown", info)
			}
			return nil, nil
		})
	}
	w.every(func(n *node) error {
		_, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.note")
		return err
	})
	for rank := range worldSize {
		want := []string{name((rank + worldSize - 1) % worldSize)}
		if got := callers[name(rank)]; !slices.Equal(got, want) {
			t.Errorf("worker %d was called by %v, want %v", rank, got, want)
		}
	}
}

func TestBuiltinFunction(t *testing.T) {
	w := start(t, worldSize)
	for _, n := range w.nodes {
		n.reg.MustHandle("builtins.min", func(list ...int) int { return slices.Min(list) })
	}
	w.every(func(n *node) error {
		least, err := rpc.Call[int](w.ctx, n.Agent, w.next(n), "builtins.min", n.rank+2, n.rank, n.rank+1)
		if err != nil || least != n.rank {
			return fmt.Errorf("got %d, %w", least, err)
		}
		return nil
	})
}

func TestKeywordArguments(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, args := range [][]any{
			{1, 2, 3},
			{rpc.Kw{"a": 1, "b": 2, "c": 3}},
			{1, rpc.Kw{"c": 3, "b": 2}},
		} {
			sum, err := rpc.Call[int](w.ctx, n.Agent, w.next(n), "t.kwargs", args...)
			if err != nil || sum != 6 {
				return fmt.Errorf("%v: %d, %w", args, sum, err)
			}
		}
		return nil
	})
}

// counter is a value with methods: what PyTorch's MyClass is.
type counter struct {
	A int `rpc:"a"`
}

func TestClassConstructor(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.MyClass", func(a int) counter { return counter{a} })
	made, err := rpc.Call[counter](w.ctx, w.nodes[0].Agent, name(1), "t.MyClass", 7)
	if err != nil || made.A != 7 {
		t.Errorf("got %v, %v", made, err)
	}
}

// A method of a value that travels with the call: the value is the first argument.
func TestValueMethod(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t:MyClass.my_instance_method", func(self counter, b int) int { return self.A + b }, rpc.Params("self", "b"))
	sum, err := rpc.Call[int](w.ctx, w.nodes[0].Agent, name(1), "t:MyClass.my_instance_method", counter{2}, rpc.Kw{"b": 5})
	if err != nil || sum != 7 {
		t.Errorf("got %v, %v", sum, err)
	}
}

func TestTypeMethod(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t:MyClass.my_class_method", func(d, e int) int { return d + e }, rpc.Params("d", "e")).
		MustHandle("t:MyClass.my_static_method", func(f int) bool { return f > 10 }, rpc.Params("f"))
	t.Run("class", func(t *testing.T) {
		sum, err := rpc.Call[int](w.ctx, w.nodes[0].Agent, name(1), "t:MyClass.my_class_method", 3, rpc.Kw{"e": 4})
		if err != nil || sum != 7 {
			t.Errorf("got %v, %v", sum, err)
		}
	})
	t.Run("static", func(t *testing.T) {
		for _, f := range []int{9, 10, 11} {
			more, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t:MyClass.my_static_method", f)
			if err != nil || more != (f > 10) {
				t.Errorf("%d: got %v, %v", f, more, err)
			}
		}
	})
}

func TestTwoFunctionsInFlight(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		one := rpc.Async[int](w.ctx, n.Agent, w.next(n), "t.kwargs", 1, 2, 3)
		two := rpc.Async[string](w.ctx, n.Agent, w.next(n), "t.who")
		who, err := two.Await(w.ctx)
		if err != nil || who != n.Name() {
			return fmt.Errorf("%q, %w", who, err)
		}
		sum, err := one.Await(w.ctx)
		if err != nil || sum != 6 {
			return fmt.Errorf("%d, %w", sum, err)
		}
		return nil
	})
	// The first ends only when the second has come.
	second := make(chan struct{})
	w.nodes[1].reg.MustHandle("t.first", func(ctx context.Context) error {
		select {
		case <-second:
			return nil
		case <-ctx.Done():
			return cohort.FromContext(ctx, "t: first")
		}
	}).MustHandle("t.second", func() { close(second) })
	a := w.nodes[0].Agent
	_, err := cohort.All(rpc.Async[any](w.ctx, a, name(1), "t.first"), rpc.Async[any](w.ctx, a, name(1), "t.second")).Await(w.ctx)
	must(t, err)
}

func TestNoResult(t *testing.T) {
	w := start(t, 2)
	none, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.nothing")
	if err != nil || none != nil {
		t.Errorf("got %v, %v", none, err)
	}
}

// A message inside a message: the handler makes a call of its own while it builds its result, and the tensors of both
// stay apart.
func TestPickleInPickle(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.both", func(ctx context.Context, x *tensor.Tensor) ([]any, error) {
		y, err := rpc.Call[*tensor.Tensor](ctx, w.nodes[1].self(), name(0), "t.echo", filled(2, 3))
		return []any{x, y, x}, err
	})
	got, err := rpc.Call[[]*tensor.Tensor](w.ctx, w.nodes[0].Agent, name(1), "t.both", ones(2))
	must(t, err)
	if len(got) != 3 || !tensor.Equal(got[0], ones(2)) || !tensor.Equal(got[1], filled(2, 3)) || !tensor.Equal(got[2], ones(2)) {
		t.Errorf("got %v", got)
	}
}

func TestNestedRPC(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			// The callee calls back to the caller.
			sum, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.nested", n.Name(), p.make(), p.make())
			if err != nil {
				return err
			}
			return p.check(sum, 2)
		})
	})
}

func TestStressLight(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		futures := make([]*cohort.Future[any], 1000)
		for i := range futures {
			futures[i] = rpc.Async[any](w.ctx, n.Agent, w.next(n), "t.echo", i)
		}
		values, err := cohort.All(futures...).Await(w.ctx)
		if err != nil {
			return err
		}
		for i, v := range values {
			if v != int64(i) {
				return fmt.Errorf("call %d was answered with %v", i, v)
			}
		}
		return nil
	})
}

func TestStressHeavy(t *testing.T) {
	stress := func(t *testing.T, fn string, p payload, factor int) {
		t.Helper()
		w := start(t, worldSize)
		w.every(func(n *node) error {
			futures := make([]*cohort.Future[any], 20)
			for i := range futures {
				futures[i] = rpc.Async[any](w.ctx, n.Agent, w.next(n), fn, p.make())
			}
			sums, err := cohort.All(futures...).Await(w.ctx)
			if err != nil {
				return err
			}
			for i, sum := range sums {
				if err := p.check(sum, factor); err != nil {
					return fmt.Errorf("call %d: %w", i, err)
				}
			}
			return nil
		})
	}
	t.Run("dense", func(t *testing.T) { stress(t, "t.heavy", payload{make: func() any { return ones(100, 100) }}, 1024) })
	t.Run("sparse", func(t *testing.T) { stress(t, "t.heavy", payload{make: func() any { return sparse(true) }}, 1024) })
	t.Run("script", func(t *testing.T) {
		stress(t, "__torch__.t.heavy", payload{make: func() any { return ones(100, 100) }}, 1024)
	})
}

// Every kind of value comes back as it was sent.
func TestValues(t *testing.T) {
	w := start(t, 2)
	for _, v := range []any{
		nil, true, int64(-7), 1.5, complex(1, 2), "text ü", []byte("bytes"), py.ByteArray("array"),
		[]any{int64(1), "a", nil},
		py.Tuple{int64(1), py.Tuple{}},
		py.Set{int64(3)},
		py.FrozenSet{"f"},
		&py.Dict{Pairs: []py.Pair{{Key: "k", Value: int64(1)}, {Key: int64(2), Value: "two"}}},
		py.Global{Module: "builtins", Name: "len"},
	} {
		back, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", v)
		if err != nil || !reflect.DeepEqual(back, v) {
			t.Errorf("%#v came back as %#v, %v", v, back, err)
		}
	}
}
