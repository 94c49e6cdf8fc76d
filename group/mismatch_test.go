// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// call is one collective as a rank calls it.
type call struct {
	kind   OpType
	shape  []int
	dtype  tensor.DType
	op     ReduceOp
	root   cohort.Rank
	uneven bool
}

func (c call) on(ctx context.Context, g *Group) *Work {
	one := func() *tensor.Tensor { return tensor.Must(tensor.New(c.dtype, c.shape...)) }
	list := func() []*tensor.Tensor {
		var ts []*tensor.Tensor
		for range g.Size() {
			ts = append(ts, one())
		}
		return ts
	}
	atRoot := func() []*tensor.Tensor {
		if g.Rank() != c.root {
			return nil
		}
		return list()
	}
	all := tensor.Must(tensor.New(c.dtype, append([]int{g.Size()}, c.shape...)...))
	var opts []OpOption
	if c.uneven {
		opts = append(opts, Uneven())
	}
	switch c.kind {
	case OpAllReduce:
		return g.AllReduce(ctx, one(), c.op)
	case OpBroadcast:
		return g.Broadcast(ctx, one(), c.root)
	case OpReduce:
		return g.Reduce(ctx, one(), c.op, c.root)
	case OpAllGather:
		return g.AllGather(ctx, list(), one())
	case OpAllGatherInto:
		return g.AllGatherInto(ctx, all, one())
	case OpGather:
		return g.Gather(ctx, atRoot(), one(), c.root, opts...)
	case OpScatter:
		return g.Scatter(ctx, one(), atRoot(), c.root, opts...)
	case OpReduceScatter:
		return g.ReduceScatter(ctx, one(), list(), c.op)
	case OpReduceScatterInto:
		return g.ReduceScatterInto(ctx, one(), all, c.op)
	case OpAllToAll:
		return g.AllToAll(ctx, list(), list())
	case OpAllToAllInto:
		return g.AllToAllInto(ctx, all, tensor.Must(tensor.New(c.dtype, append([]int{g.Size()}, c.shape...)...)), nil, nil)
	default:
		return g.Barrier(ctx)
	}
}

// differences are the ways in which one rank may call something else.
func differences(c call) map[string]call {
	odd := map[string]call{}
	other := c
	other.kind = OpBarrier
	if c.kind == OpBarrier {
		other.kind = OpAllReduce
	}
	odd["kind"] = other
	if c.kind == OpBarrier {
		return odd
	}
	other = c
	other.dtype = tensor.Int32
	odd["dtype"] = other
	other = c
	other.shape = []int{c.shape[0] + 1, c.shape[1]}
	odd["size"] = other
	switch c.kind {
	case OpAllReduce, OpReduce, OpReduceScatter, OpReduceScatterInto:
		other = c
		other.op = Max
		odd["operator"] = other
	}
	switch c.kind {
	case OpBroadcast, OpReduce, OpGather, OpScatter:
		other = c
		other.root = 0
		odd["root"] = other
	}
	switch c.kind {
	case OpGather, OpScatter:
		other = c
		other.uneven = true
		odd["uneven"] = other
	}
	switch c.kind {
	case OpAllReduce, OpBroadcast, OpReduce, OpAllGather, OpGather, OpScatter, OpReduceScatter:
		other = c
		other.shape = []int{c.shape[1], c.shape[0]}
		odd["shape"] = other
	}
	return odd
}

// TestEveryMismatchOnEveryRank lets one rank call something else than the others, in every way that all ranks must agree in,
// and looks at the error of each rank: it names both sides, and it is the error of that very call.
//
// There is one exception: operations with a root, over TCP or of little data. Their data flows one way, and a rank is done when it has
// sent or received its part. That another rank differs it could only know if it waited for something that flows back, twice the
// steps of every such operation. A rank whose part was right gets the error in a later call that waits for all.
func TestEveryMismatchOnEveryRank(t *testing.T) {
	t.Parallel()
	kinds := []OpType{
		OpAllReduce, OpBroadcast, OpReduce, OpAllGather, OpAllGatherInto, OpGather, OpScatter, OpReduceScatter, OpReduceScatterInto,
		OpAllToAll, OpAllToAllInto, OpBarrier,
	}
	sizes := map[string][]int{"small": {2, 3}, "large": {300, 400}}
	for _, transport := range []Transport{TCP, SharedMemory} {
		for _, kind := range kinds {
			for size, shape := range sizes {
				base := call{kind: kind, shape: shape, dtype: tensor.Float32, op: Sum, root: 1}
				for what, odd := range differences(base) {
					for _, ranks := range map[string][]int{"small": {2, 5}, "large": {3}}[size] {
						name := fmt.Sprintf("%s/%v/%s/%s/ranks=%d", transport, kind, what, size, ranks)
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							mismatch(t, transport, ranks, base, odd)
						})
					}
				}
			}
		}
	}
}

func mismatch(t *testing.T, transport Transport, ranks int, base, odd call) {
	t.Helper()
	who := ranks - 1 // the one that differs
	groups := newWorld(t, ranks, WithTransport(transport))
	ctx := ctxOf(t)
	errs := make([]error, ranks)
	oneWay := slices.Contains([]OpType{OpBroadcast, OpReduce, OpGather, OpScatter}, base.kind) && (transport == TCP || base.shape[0] < 100)
	_ = each(ranks, func(r int) error {
		c := base
		if r == who {
			c = odd
		}
		errs[r] = c.on(ctx, groups[r]).Wait(ctx)
		if errs[r] == nil && oneWay {
			errs[r] = groups[r].Barrier(ctx).Wait(ctx)
		}
		return nil
	})
	for r, err := range errs {
		if !errors.Is(err, cohort.Mismatch) {
			t.Errorf("rank %d: %v", r, err)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, fmt.Sprintf("rank %d ", who)) || strings.Count(text, "rank ") < 2 {
			t.Errorf("rank %d: %q does not name both sides", r, text)
		}
	}
}

// TestShapesAreFreeWhereTheyMeanNothing: what PyTorch does not compare is not compared here.
func TestShapesAreFreeWhereTheyMeanNothing(t *testing.T) {
	shape := func(r int) []int { return [][]int{{2, 3}, {3, 2}, {6}}[r] }
	of := func(dims ...int) *tensor.Tensor { return tensor.Must(tensor.New(tensor.Float32, dims...)) }
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 3, WithTransport(transport))
			ctx := ctxOf(t)
			must(t, each(3, func(r int) error {
				g := groups[r]
				in := of(shape(r)...)
				if err := g.AllGatherInto(ctx, of(18), in).Wait(ctx); err != nil {
					return fmt.Errorf("all_gather_into: %w", err)
				}
				if err := g.ReduceScatterInto(ctx, in, of(18), Sum).Wait(ctx); err != nil {
					return fmt.Errorf("reduce_scatter: %w", err)
				}
				if err := g.AllReduceCoalesced(ctx, []*tensor.Tensor{in, of(2)}, Sum).Wait(ctx); err != nil {
					return fmt.Errorf("all_reduce_coalesced: %w", err)
				}
				if err := g.AllToAllInto(ctx, of(18), of(3, 6), nil, nil).Wait(ctx); err != nil {
					return fmt.Errorf("all_to_all: %w", err)
				}
				// Uneven blocks: each rank has its own shape.
				var outs []*tensor.Tensor
				for i := range 3 {
					outs = append(outs, of(i+1, 2))
				}
				if transport != Gloo {
					if err := g.AllGather(ctx, outs, of(r+1, 2)).Wait(ctx); err != nil {
						return fmt.Errorf("all_gather: %w", err)
					}
				}
				var blocks []*tensor.Tensor
				if r == 2 {
					blocks = outs
				}
				if err := g.Gather(ctx, blocks, of(r+1, 2), 2, Uneven()).Wait(ctx); err != nil {
					return fmt.Errorf("gather: %w", err)
				}
				if err := g.Scatter(ctx, of(r+1, 2), blocks, 2, Uneven()).Wait(ctx); err != nil {
					return fmt.Errorf("scatter: %w", err)
				}
				// Messages have no shape.
				w := g.Send(ctx, in, cohort.Rank((r+1)%3), 0)
				if err := g.Recv(ctx, of(6), cohort.Rank((r+2)%3), 0).Wait(ctx); err != nil {
					return err
				}
				return w.Wait(ctx)
			}))
		})
	}
}

// TestDetailComparesFlatBuffers: with WithDetail they are compared too.
func TestDetailComparesFlatBuffers(t *testing.T) {
	for _, transport := range []Transport{TCP, SharedMemory} {
		groups := newWorld(t, 2, WithTransport(transport), WithDetail())
		ctx := ctxOf(t)
		err := each(2, func(r int) error {
			in := tensor.Must(tensor.New(tensor.Float32, 2+r, 3-r))
			return groups[r].AllGatherInto(ctx, tensor.Must(tensor.New(tensor.Float32, 12)), in).Wait(ctx)
		})
		if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "[2, 3]") || !strings.Contains(err.Error(), "[3, 2]") {
			t.Errorf("%s: %v", transport, err)
		}
	}
}
