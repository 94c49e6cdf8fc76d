// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

func TestEveryOperation(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{1, 2, 3} {
			t.Run(string(transport)+"/"+strconv.Itoa(size), func(t *testing.T) {
				groups := newWorld(t, size, WithTransport(transport))
				ctx := ctxOf(t)
				must(t, each(size, func(r int) error {
					g := groups[r]
					n := size
					if g.Size() > 1 && g.Transport() != transport {
						t.Errorf("transport %s", g.Transport())
					}
					want := func(name string, got, want any) {
						if d := cmp.Diff(want, got); d != "" {
							t.Errorf("%s on rank %d:\n%s", name, r, d)
						}
					}
					fill := func(v func(rank int) int64) []int64 {
						list := make([]int64, n)
						for i := range list {
							list[i] = v(i)
						}
						return list
					}
					total := int64(n * (n + 1) / 2)
					x := from(int64(r+1), 10*int64(r+1))
					if err := g.AllReduce(ctx, x, Sum).Wait(ctx); err != nil {
						return err
					}
					want("all_reduce", values[int64](t, x), []int64{total, 10 * total})

					a, b := from(int64(r)), from(int64(2*r), int64(3*r))
					if err := g.AllReduceCoalesced(ctx, []*tensor.Tensor{a, b}, Max).Wait(ctx); err != nil {
						return err
					}
					want("coalesced", append(values[int64](t, a), values[int64](t, b)...),
						[]int64{int64(n - 1), int64(2 * (n - 1)), int64(3 * (n - 1))})

					x = from(int64(r))
					if err := g.Broadcast(ctx, x, cohort.Rank(n-1)).Wait(ctx); err != nil {
						return err
					}
					want("broadcast", values[int64](t, x), []int64{int64(n - 1)})

					x = from(int64(r + 1))
					if err := g.Reduce(ctx, x, Sum, cohort.Rank(n-1)).Wait(ctx); err != nil {
						return err
					}
					if r == n-1 {
						want("reduce", values[int64](t, x), []int64{total})
					}

					outs := make([]*tensor.Tensor, n)
					for i := range outs {
						outs[i] = from(int64(-1))
					}
					if err := g.AllGather(ctx, outs, from(int64(r))).Wait(ctx); err != nil {
						return err
					}
					var got []int64
					for _, o := range outs {
						got = append(got, values[int64](t, o)...)
					}
					want("all_gather", got, fill(func(i int) int64 { return int64(i) }))

					all, e := AllGatherSlice(ctx, g, []int64{int64(r * r)})
					if e != nil {
						return e
					}
					want("all_gather_into", all, fill(func(i int) int64 { return int64(i * i) }))

					var list []*tensor.Tensor
					if r == 0 {
						list = outs
					}
					if err := g.Gather(ctx, list, from(int64(r+5)), 0).Wait(ctx); err != nil {
						return err
					}
					if r == 0 {
						got = nil
						for _, o := range outs {
							got = append(got, values[int64](t, o)...)
						}
						want("gather", got, fill(func(i int) int64 { return int64(i + 5) }))
					}

					list = nil
					if r == n-1 {
						for i := range n {
							list = append(list, from(int64(7*i)))
						}
					}
					x = from(int64(0))
					if err := g.Scatter(ctx, x, list, cohort.Rank(n-1)).Wait(ctx); err != nil {
						return err
					}
					want("scatter", values[int64](t, x), []int64{int64(7 * r)})

					part, e := ReduceScatterSlice(ctx, g, fill(func(i int) int64 { return int64(i + r) }), Sum)
					if e != nil {
						return e
					}
					want("reduce_scatter_tensor", part, []int64{int64(r*n) + total - int64(n)})

					list = nil
					for i := range n {
						list = append(list, from(int64(i*r)))
					}
					x = from(int64(0))
					if err := g.ReduceScatter(ctx, x, list, Max).Wait(ctx); err != nil {
						return err
					}
					want("reduce_scatter", values[int64](t, x), []int64{int64(r * (n - 1))})

					if err := g.AllToAll(ctx, outs, list).Wait(ctx); err != nil {
						return err
					}
					got = nil
					for _, o := range outs {
						got = append(got, values[int64](t, o)...)
					}
					want("all_to_all", got, fill(func(i int) int64 { return int64(i * r) }))

					swapped, e := AllToAllSlice(ctx, g, fill(func(i int) int64 { return int64(100*r + i) }))
					if e != nil {
						return e
					}
					want("all_to_all_single", swapped, fill(func(i int) int64 { return int64(100*i + r) }))

					if err := g.Barrier(ctx).Wait(ctx); err != nil {
						return err
					}
					if err := g.MonitoredBarrier(ctx); err != nil {
						return err
					}
					return g.Barrier(ctx).Wait(ctx)
				}))
			})
		}
	}
}

func TestUnevenOperations(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			const size = 3
			groups := newWorld(t, size, WithTransport(transport))
			ctx := ctxOf(t)
			must(t, each(size, func(r int) error {
				g := groups[r]
				var outs []*tensor.Tensor
				for i := range size {
					outs = append(outs, tensor.Must(tensor.New(tensor.Float32, i)))
				}
				in := tensor.Must(tensor.Full(tensor.Float32, float64(r), r))
				if err := g.AllGather(ctx, outs, in).Wait(ctx); err != nil {
					return err
				}
				if got := values[float32](t, outs[2]); !slices.Equal(got, []float32{2, 2}) {
					t.Errorf("all_gather: %v", got)
				}
				// Rank r sends i+1 elements to rank i, so rank r receives r+1 from each.
				send := make([]int32, 0, 6)
				for i := range size {
					for range i + 1 {
						send = append(send, int32(10*r+i))
					}
				}
				recv := make([]int32, 3*(r+1))
				w := g.AllToAllInto(ctx, from(recv...), from(send...), []int{r + 1, r + 1, r + 1}, []int{1, 2, 3})
				if err := w.Wait(ctx); err != nil {
					return err
				}
				out, err := w.Result()
				if err != nil {
					return err
				}
				var want []int32
				for i := range size {
					for range r + 1 {
						want = append(want, int32(10*i+r))
					}
				}
				if got := values[int32](t, out[0]); !slices.Equal(got, want) {
					t.Errorf("all_to_all on rank %d: %v, want %v", r, got, want)
				}
				return nil
			}))
		})
	}
}

// TestUnevenMustBeSaid: the root of a gather or scatter has tensors of different sizes only with the option.
func TestUnevenMustBeSaid(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	var list []*tensor.Tensor
	for i := range 2 {
		list = append(list, tensor.Must(tensor.New(tensor.Float32, i+1)))
	}
	for _, w := range []*Work{groups[0].Gather(ctx, list, list[0], 0), groups[0].Scatter(ctx, list[0], list, 0)} {
		if err := w.Wait(ctx); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "Uneven") {
			t.Error(err)
		}
	}
}

// TestPartsOfOneTensor gathers into, and scatters from, the rows of one tensor, which are used in place; the input may be one
// of them. A Work that is used again must not touch the list that was given before.
func TestPartsOfOneTensor(t *testing.T) {
	const size, n = 3, 40_000
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, size, WithTransport(transport))
			ctx := ctxOf(t)
			must(t, each(size, func(r int) error {
				g := groups[r]
				var w *Work
				for _, row := range []int{-1, r, (r + 1) % size} { // a tensor of its own, the own row, another row
					all := tensor.Must(tensor.New(tensor.Float32, size, n))
					rows := make([]*tensor.Tensor, size)
					for i := range rows {
						rows[i] = tensor.Must(all.Select(0, i))
					}
					in := tensor.Must(tensor.New(tensor.Float32, n))
					if row >= 0 {
						in = rows[row]
					}
					must(t, in.CopyFrom(from(slices.Repeat([]float32{float32(10 + r)}, n)...)))
					w = g.AllGather(ctx, rows, in, Reuse(w))
					if err := w.Wait(ctx); err != nil {
						return err
					}
					for i, x := range rows {
						if got := values[float32](t, x); got[0] != float32(10+i) || got[n-1] != float32(10+i) {
							t.Errorf("rank %d, input %d: row %d is %v", r, row, i, got[0])
						}
					}
					before := slices.Clone(rows)
					out := tensor.Must(tensor.New(tensor.Float32, n))
					w = g.AllReduce(ctx, out, Sum, Reuse(w))
					if err := w.Wait(ctx); err != nil {
						return err
					}
					if !slices.Equal(rows, before) {
						t.Errorf("a Work that was used again changed the list of an earlier operation")
					}
					if g.Transport() != Gloo {
						if err := g.ReduceScatter(ctx, out, rows, Sum).Wait(ctx); err != nil {
							return err
						}
						if got := values[float32](t, out); got[0] != float32(size*(10+r)) || got[n-1] != float32(size*(10+r)) {
							t.Errorf("rank %d: reduced to %v", r, got[0])
						}
					}
					ins := rows
					if r != 1 {
						ins = nil
					}
					if err := g.Scatter(ctx, out, ins, 1).Wait(ctx); err != nil {
						return err
					}
					if got := values[float32](t, out); got[0] != float32(10+r) || got[n-1] != float32(10+r) {
						t.Errorf("rank %d got %v", r, got[0])
					}
				}
				return nil
			}))
		})
	}
}

func TestNonContiguousTensors(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	must(t, each(2, func(r int) error {
		m := tensor.Must(tensor.From([]float32{1, 2, 3, 4, 5, 6}, 2, 3))
		view := tensor.Must(m.Transpose(0, 1))
		if err := groups[r].AllReduce(ctx, view, Sum).Wait(ctx); err != nil {
			return err
		}
		if got := values[float32](t, m); !slices.Equal(got, []float32{2, 4, 6, 8, 10, 12}) {
			t.Errorf("all_reduce of a transposed view: %v", got)
		}
		column := tensor.Must(m.Select(1, 1))
		if r == 0 {
			return groups[r].Send(ctx, column, 1, 3).Wait(ctx)
		}
		room := tensor.Must(tensor.Must(tensor.New(tensor.Float32, 2, 2)).Select(1, 0))
		if err := groups[r].Recv(ctx, room, 0, 3).Wait(ctx); err != nil {
			return err
		}
		if got := values[float32](t, room); !slices.Equal(got, []float32{4, 10}) {
			t.Errorf("received %v", got)
		}
		return nil
	}))
}
