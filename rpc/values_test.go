// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// TestElementTypes sends every element type between Go workers. On PyTorch's transport the kind of the other side is unknown,
// so the later ones go only to a worker that has sent one, or with WithElementTypes.
func TestElementTypes(t *testing.T) {
	made := tensor.Must(tensor.Of([]uint16{1, 2}))
	reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x }).MustHandle("v.made", func() *tensor.Tensor { return made })
	for _, c := range []struct {
		name string
		open bool
		opts []Option
	}{
		{"cohort", true, nil},
		{"uv", false, []Option{WithTransports(TransportUV)}},
		{"uv, told", true, []Option{WithTransports(TransportUV), WithElementTypes(tensor.Uint16)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			agents := world(t, 2, true, func(int) *Registry { return reg }, c.opts...)
			ctx := testContext(t)
			for dt := range tensor.DType(23) {
				if !dt.Valid() {
					continue
				}
				x := tensor.Must(tensor.Full(dt, 1, 2, 3))
				if y, err := Call[*tensor.Tensor](ctx, agents[0], "w1", "v.echo", x); err != nil || !tensor.Equal(x, y) {
					t.Errorf("%v: %v, %v", dt, y, err)
				}
			}
			for _, x := range []any{made, &tensor.Sparse{
				Shape: []int{4}, Indices: tensor.Must(tensor.From([]int64{0, 1}, 1, 2)),
				Values: made,
			}} {
				if _, err := Call[any](ctx, agents[0], "w1", "v.echo", x); (err == nil) != c.open ||
					err != nil && !errors.Is(err, cohort.NotSupported) {
					t.Errorf("%T as an argument: %v", x, err)
				}
			}
			if y, err := Call[*tensor.Tensor](ctx, agents[0], "w1", "v.made"); (err == nil) != c.open ||
				err == nil && !tensor.Equal(made, y) {
				t.Errorf("as a result: %v, %v", y, err)
			}
			shutdown(t, agents)
		})
	}
	if _, err := Join(testContext(t), store.NewMemory(), "w", WithElementTypes(99)); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("no element type: %v", err)
	}
}

// A handler that takes one struct can be called with that struct, a pointer to it, a dict, its fields by position or by
// name; at another worker and at this one, to call and to create.
func TestStructArgument(t *testing.T) {
	type layer struct{ Width int }
	type config struct {
		Name   string
		Layers []layer
		Rate   float64
	}
	type options struct{ Extra map[string]int }
	reg := NewRegistry().
		MustHandle("s.value", func(_ context.Context, c config) (int, error) { return c.Layers[0].Width, nil }).
		MustHandle("s.pointer", func(_ context.Context, c *config) (int, error) { return c.Layers[0].Width, nil }).
		MustHandle("s.plain", func(c config) int { return c.Layers[0].Width }).
		MustHandle("s.map", func(o options) int { return o.Extra["width"] })
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 2, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		c := config{Name: "net", Layers: []layer{{8}}}
		for _, to := range []string{"w1", "w0"} {
			check := func(fn string, args ...any) {
				t.Helper()
				if n, err := Call[int](ctx, agents[0], to, fn, args...); err != nil || n != 8 {
					t.Errorf("%s%v: %v, %v", fn, args, n, err)
				}
				ref, err := Remote[int](ctx, agents[0], to, fn, args...)
				if err != nil {
					t.Fatal(err)
				}
				if n, err := ref.Fetch(ctx); err != nil || n != 8 {
					t.Errorf("object of %s%v: %v, %v", fn, args, n, err)
				}
				_ = ref.Close()
			}
			for _, fn := range []string{"s.value", "s.pointer", "s.plain"} {
				check(fn, c)
				check(fn, &c)
				check(fn, map[string]any{"layers": []layer{{8}}})
			}
			check("s.value", "net", []layer{{8}})
			check("s.value", Kw{"layers": []layer{{8}}})
			check("s.map", map[string]int{"width": 8}) // not the struct, but its first field
			check("s.map", options{map[string]int{"width": 8}})
		}
		shutdown(t, agents)
	})
}

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

// TestSharedValuesStayShared sends a value of which each level mentions the one below it twice to a handler that sends it
// back, over both transports: it is a few hundred bytes on the wire, and 2^60 leaves if it is written out.
func TestSharedValuesStayShared(t *testing.T) {
	for name, opts := range map[string][]Option{"cohort": nil, "uv": {WithTransports(TransportUV)}} {
		t.Run(name, func(t *testing.T) {
			agents := world(t, 2, true, func(int) *Registry {
				return NewRegistry().MustHandle("expand.echo", func(v any) any { return v })
			}, opts...)
			ctx := testContext(t)
			var v any = []any{"leaf"}
			for range 60 {
				v = []any{v, v}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			got, err := Call[any](ctx, agents[0], "w1", "expand.echo", v)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d bytes were allocated", used)
			}
			for range 60 {
				list, ok := got.([]any)
				if !ok || len(list) != 2 {
					t.Fatalf("a level is a %T", got)
				}
				got = list[1]
			}
		})
	}
}

// TestCallToSelfCopiesLikeAWire sends views and a sparse tensor to the worker itself: they are copies, and what shared its
// memory before shares it after.
func TestCallToSelfCopiesLikeAWire(t *testing.T) {
	var seen []*tensor.Tensor
	reg := NewRegistry().MustHandle("v.echo", func(x any) any { return x }).
		MustHandle("v.see", func(xs []*tensor.Tensor) { seen = xs })
	agents := world(t, 1, false, func(int) *Registry { return reg })
	ctx := testContext(t)
	x := tensor.Must(tensor.From([]float32{1, 2, 3, 4, 5, 6}, 2, 3))
	row := tensor.Must(x.Select(0, 1))
	turned := tensor.Must(x.Transpose(0, 1))
	check := func(what string, got []*tensor.Tensor) {
		t.Helper()
		for i, want := range []*tensor.Tensor{row, turned} {
			if !tensor.Equal(got[i], want) || !slices.Equal(got[i].Strides(), want.Strides()) || got[i].Offset() != want.Offset() {
				t.Errorf("%s: tensor %d: %v, strides %v, offset %d", what, i, got[i], got[i].Strides(), got[i].Offset())
			}
		}
		if got[0].Storage() != got[1].Storage() || got[0].Storage() == x.Storage() || got[0].Storage().Len() != x.Storage().Len() {
			t.Errorf("%s: the views do not share one copy", what)
		}
	}
	got, err := Call[[]*tensor.Tensor](ctx, agents[0], "w0", "v.echo", []*tensor.Tensor{row, turned})
	if err != nil {
		t.Fatal(err)
	}
	check("call", got)
	ref, err := Remote[any](ctx, agents[0], "w0", "v.see", []*tensor.Tensor{row, turned})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = ref.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	check("remote", seen)
	_ = ref.Close()
	sparse := &tensor.Sparse{
		Shape: []int{2, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 2, 0}, 2, 2)),
		Values: tensor.Must(tensor.From([]float32{3, 4}, 2)),
	}
	back, err := Call[*tensor.Sparse](ctx, agents[0], "w0", "v.echo", sparse)
	if err != nil || !tensor.Equal(back.Values, sparse.Values) || !tensor.Equal(back.Indices, sparse.Indices) {
		t.Fatalf("sparse: %v, %v", back, err)
	}
	if back.Values.Storage() == sparse.Values.Storage() {
		t.Error("a sparse tensor is not copied")
	}
}
