// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

func TestTensors(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, dt := range []tensor.DType{
			tensor.Float32, tensor.Float64, tensor.Int64, tensor.Uint8, tensor.Bool, tensor.BFloat16,
			tensor.Complex64,
		} {
			x := tensor.Must(tensor.Full(dt, 1, n.rank+1, 3))
			y, err := rpc.Call[*tensor.Tensor](w.ctx, n.Agent, w.next(n), "t.echo", x)
			if err != nil || !tensor.Equal(x, y) || x.DType() != y.DType() {
				return fmt.Errorf("%v: %v, %w", dt, y, err)
			}
		}
		return nil
	})
}

func TestTensorsMultiAsync(t *testing.T) {
	w := start(t, 2)
	futures := make([]*cohort.Future[*tensor.Tensor], 100)
	for i := range futures {
		futures[i] = rpc.Async[*tensor.Tensor](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(i, i), ones(i, i))
	}
	for i, f := range futures {
		sum, err := f.Await(w.ctx)
		if err != nil || !tensor.Equal(sum, filled(2, i, i)) {
			t.Fatalf("call %d: %v, %v", i, sum, err)
		}
	}
}

func TestTensorsInContainer(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, 2)
		type box struct {
			Tensors []any
		}
		w.nodes[1].reg.MustHandle("t.nest", func(a struct {
			List   []any
			Class  box
			Lookup map[string]any
		},
		) (box, error) {
			var out box
			for _, x := range append(append(a.List, a.Class.Tensors...), a.Lookup["x"]) {
				sum, err := add(x, x)
				if err != nil {
					return out, err
				}
				out.Tensors = append(out.Tensors, sum)
			}
			return out, nil
		})
		got, err := rpc.Call[box](w.ctx, w.nodes[0].Agent, name(1), "t.nest",
			[]any{p.make(), p.make()}, box{[]any{p.make()}}, map[string]any{"x": p.make()})
		must(t, err)
		if len(got.Tensors) != 4 {
			t.Fatalf("got %d tensors", len(got.Tensors))
		}
		for _, sum := range got.Tensors {
			must(t, p.check(sum, 2))
		}
	})
}

// A view arrives as a view of the same elements: with its strides, whatever they are, at the callee and back.
func TestStridedView(t *testing.T) {
	all := tensor.Must(tensor.From([]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 3, 4))
	columns := tensor.Must(all.Slice(1, 1, 3, 1))
	for _, transport := range []string{rpc.TransportCohort, rpc.TransportUV} {
		w := start(t, 2, rpc.WithTransports(transport))
		w.nodes[1].reg.MustHandle("t.view", func(view, dense *tensor.Tensor) (*tensor.Tensor, error) {
			if view.IsContiguous() || !dense.IsContiguous() || !tensor.Equal(view, dense) {
				return nil, rpc.Raise("ValueError", "a view %v with strides %v, dense %v with %v", view, view.Strides(), dense,
					dense.Strides())
			}
			return view, nil
		})
		for _, view := range []*tensor.Tensor{columns, tensor.Must(columns.Transpose(0, 1))} {
			back, err := rpc.Call[*tensor.Tensor](w.ctx, w.nodes[0].Agent, name(1), "t.view", view, tensor.Must(view.Contiguous()))
			must(t, err)
			if !tensor.Equal(view, back) || back.IsContiguous() || !slices.Equal(back.Strides(), view.Strides()) {
				t.Errorf("%s: got %v with strides %v, want %v with %v", transport, back, back.Strides(), view, view.Strides())
			}
		}
	}
}

// A row of a large matrix costs about a row on the wire.
func TestViewAsResult(t *testing.T) {
	const rows, columns, bytes = 100, 200, 100 * 200 * 4
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.view", func(i int) (*tensor.Tensor, error) {
		big, err := tensor.Full(tensor.Float32, float64(i), 10*rows, columns)
		if err != nil {
			return nil, err
		}
		return big.Narrow(0, 0, rows)
	})
	before := w.nodes[0].Stats()[name(1)].BytesReceived
	views := make([]*cohort.Future[*tensor.Tensor], 5)
	for i := range views {
		views[i] = rpc.Async[*tensor.Tensor](w.ctx, w.nodes[0].Agent, name(1), "t.view", i)
	}
	for i, view := range views {
		got, err := view.Await(w.ctx)
		if err != nil || !tensor.Equal(got, filled(float64(i), rows, columns)) {
			t.Errorf("view %d: %v, %v", i, got, err)
		}
	}
	if cost := w.nodes[0].Stats()[name(1)].BytesReceived - before; cost > 5*bytes+8192 {
		t.Errorf("five views of %d bytes cost %d", bytes, cost)
	}
}

// What cannot be sent is refused at once, by a clear error, and the workers go on.
func TestUnsendableValue(t *testing.T) {
	w := start(t, 2, rpc.WithConcurrency(4))
	w.nodes[1].reg.MustHandle("t.channel", func() any { return make(chan int) })
	a := w.nodes[0].Agent
	check := func(t *testing.T, fn string, args ...any) {
		t.Helper()
		for range 20 { // longer than the pool
			for _, mode := range modes {
				within(t, soon, mode.name, func() {
					if v, err := mode.call(w.ctx, a, name(1), fn, args...); err == nil || !strings.Contains(err.Error(), "chan int") {
						t.Fatalf("%s: %v, %v", mode.name, v, err)
					}
				})
			}
		}
		if sum, err := rpc.Call[int](w.ctx, a, name(1), "t.kwargs", 1, 2, 3); err != nil || sum != 6 {
			t.Errorf("the worker does not go on: %v, %v", sum, err)
		}
	}
	t.Run("argument", func(t *testing.T) { check(t, "t.echo", make(chan int)) })
	t.Run("result", func(t *testing.T) { check(t, "t.channel") })
}
