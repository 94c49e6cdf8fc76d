// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// The tests of this file are those that PyTorch runs with NCCL alone, here with the tensors of a CPU.

// blocks are the rows of each rank where rank i has i+1 of them, and their number.
func blocks(size int) (rows []int, total int) {
	for i := range size {
		rows = append(rows, i+1)
		total += i + 1
	}
	return rows, total
}

// parts cuts a tensor into blocks of rows.
func parts(t *tensor.Tensor, rows []int) ([]*tensor.Tensor, error) {
	var list []*tensor.Tensor
	at := 0
	for _, n := range rows {
		part, err := t.Narrow(0, at, n)
		if err != nil {
			return nil, err
		}
		list = append(list, part)
		at += n
	}
	return list, nil
}

// TestAllGatherV: the ranks' blocks have different sizes and are parts of one tensor.
func TestAllGatherV(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		rows, total := blocks(g.Size())
		out := cube(total, float32(-1))
		outs, err := parts(out, rows)
		if err != nil {
			return err
		}
		if err := g.AllGather(ctx, outs, full(float32(g.Rank()), rows[g.Rank()], total, total)).Wait(ctx); err != nil {
			return err
		}
		return rowsOf(out, func(r cohort.Rank) float32 { return float32(r) }, func(r int) int { return rows[r] }, g.Size())
	})
}

// TestReduceScatterV: the same of a sum that is dealt out.
func TestReduceScatterV(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		rows, total := blocks(g.Size())
		in := cube(total, float32(10))
		ins, err := parts(in, rows)
		if err != nil {
			return err
		}
		mine := rows[g.Rank()]
		if err := ins[g.Rank()].Fill(float32(2)); err != nil {
			return err
		}
		out := full(float32(-1), mine, total, total)
		if err := g.ReduceScatter(ctx, out, ins, group.Sum).Wait(ctx); err != nil {
			return err
		}
		return wantAll("sum", out, float32(2+10*(g.Size()-1)), mine, total, total)
	})
}

// TestFlatShapes: a tensor for all ranks has their parts one behind the other or in a dimension of their own.
func TestFlatShapes(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		n, me := g.Size(), int(g.Rank())
		for _, shape := range [][]int{{2 * n, 2}, {n, 2, 2}} {
			out := full(float32(-1), shape...)
			if err := g.AllGatherInto(ctx, out, full(float32(me), 2, 2)).Wait(ctx); err != nil {
				return err
			}
			if err := rowsOf(out, func(r cohort.Rank) float32 { return float32(r) }, func(int) int { return shape[0] / n }, n); err != nil {
				return err
			}
		}
		for _, shape := range [][]int{{2 * n}, {n, 2}} {
			numbers := make([]int64, 2*n)
			for i := range numbers {
				numbers[i] = int64(i)
			}
			out := full(int64(0), 2)
			if err := g.ReduceScatterInto(ctx, out, tensor.Must(tensor.From(numbers, shape...)), group.Sum).Wait(ctx); err != nil {
				return err
			}
			if want := tensor.Must(tensor.From([]int64{int64(2 * me * n), int64((2*me + 1) * n)}, 2)); !tensor.Equal(out, want) {
				return fmt.Errorf("reduce_scatter_tensor of %v: %v, want %v", shape, out, want)
			}
		}
		return nil
	})
}

// TestBoolReductions: products and minima of booleans are true where all are, sums and maxima where one is. A reduction to rank 0 leaves
// the other ranks' tensors as they were.
func TestBoolReductions(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		even := g.Rank()%2 == 0
		for _, c := range []struct {
			op       group.ReduceOp
			in, want bool
		}{
			{group.Product, even, false},
			{group.Product, true, true},
			{group.Min, even, false},
			{group.Min, true, true},
			{group.Sum, even, true},
			{group.Sum, true, true},
			{group.Max, even, true},
			{group.Max, false, false},
		} {
			x, y := full(c.in, 2), full(c.in, 2)
			if err := group.WaitAll(ctx, g.AllReduce(ctx, x, c.op), g.Reduce(ctx, y, c.op, 0)); err != nil {
				return err
			}
			left := c.in
			if g.Rank() == 0 {
				left = c.want
			}
			if err := errors.Join(wantAll("all_reduce", x, c.want), wantAll("reduce", y, left)); err != nil {
				return fmt.Errorf("%v of %v: %w", c.op, c.in, err)
			}
		}
		return nil
	})
}

// TestBoolAllGather: booleans arrive as they were, and what goes in stays.
func TestBoolAllGather(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		of := func(rank int) *tensor.Tensor { return tensor.Must(tensor.From([]bool{rank%2 == 0, true}, 2)) }
		in := of(int(g.Rank()))
		var outs []*tensor.Tensor
		for range g.Size() {
			outs = append(outs, full(false, 2))
		}
		if err := g.AllGather(ctx, outs, in).Wait(ctx); err != nil {
			return err
		}
		for r, out := range outs {
			if !tensor.Equal(out, of(r)) {
				return fmt.Errorf("%v of rank %d", out, r)
			}
		}
		if !tensor.Equal(in, of(int(g.Rank()))) {
			return fmt.Errorf("the input is %v", in)
		}
		return nil
	})
}

// exchange sends a cube to one rank and receives one from another, in one batch.
func exchange(ctx context.Context, g *group.Group, to, from cohort.Rank) error {
	n := g.Size()
	out := cube(n, float32(-1))
	works := g.Batch(ctx, []group.P2POp{
		{Op: group.OpSend, Tensor: cube(n, float32(g.Rank())), Peer: to},
		{Op: group.OpRecv, Tensor: out, Peer: from},
	})
	if err := group.WaitAll(ctx, works...); err != nil {
		return err
	}
	return wantAll(fmt.Sprint("from rank ", from), out, float32(from))
}

// TestBatchRing: every rank sends to the next one.
func TestBatchRing(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		n := cohort.Rank(g.Size())
		return exchange(ctx, g, (g.Rank()+1)%n, (g.Rank()+n-1)%n)
	})
}

// TestBatchOfSome: ranks 1 and 2 exchange a batch, and the others do nothing.
func TestBatchOfSome(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		if g.Rank() == 1 || g.Rank() == 2 {
			return exchange(ctx, g, 3-g.Rank(), 3-g.Rank())
		}
		return nil
	})
}

// TestMonitoredBarrierHang: ranks that hang in a collective of one group do not reach the barrier of another, which names them.
func TestMonitoredBarrierHang(t *testing.T) {
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all=", all), func(t *testing.T) {
			for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
				t.Run(string(transport), func(t *testing.T) { hang(t, transport, all) })
			}
		})
	}
}

func hang(t *testing.T, transport group.Transport, all bool) {
	t.Helper()
	over, looked, seen := make(chan struct{}), make(chan struct{}, worldSize-1), make(chan struct{})
	runOver(t, transport, worldSize, func(ctx context.Context, world *group.Group) error {
		g, err := world.NewGroup(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		x := full(float32(g.Rank()), 10)
		if err = g.AllReduce(ctx, x, group.Sum).Wait(ctx); err != nil {
			return err
		}
		if g.Rank() != 0 {
			w := g.AllReduce(ctx, x, group.Sum, group.WithTimeout(30*time.Second))
			<-over
			ended, failure := w.Completed(), w.Err()
			looked <- struct{}{}
			<-seen // no rank leaves before all have read: that would end the collective
			if ended {
				return fmt.Errorf("a collective without rank 0 ended: %w", failure)
			}
			return nil
		}
		opts := []group.OpOption{group.WithTimeout(200 * time.Millisecond)}
		if all {
			opts = append(opts, group.WaitAllRanks())
		}
		err = world.MonitoredBarrier(ctx, opts...)
		close(over)
		for range worldSize - 1 {
			<-looked
		}
		close(seen)
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Rank != 1 {
			return fmt.Errorf("%w, want rank 1", err)
		}
		return names(err, "ranks 1, 2 and 3 did not reach the barrier")
	})
}
