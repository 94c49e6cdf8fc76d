// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// plan is one operation: the requests of all ranks and what must be in Out afterwards (nil: unchanged).
type plan struct {
	requests []*collective.Request
	want     [][]byte
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b[:n]
}

func join(blocks ...[]byte) []byte { return bytes.Join(blocks, nil) }

// reduced is the reference: rank order, one pair at a time.
func reduced(blocks [][]byte, dt tensor.DType, op reduce.Op) []byte {
	out := bytes.Clone(blocks[0])
	for _, b := range blocks[1:] {
		reduce.Into(out, b, dt, op)
	}
	if op == reduce.Avg {
		reduce.Divide(out, dt, len(blocks))
	}
	return out
}

// randomPlan draws an operation for n ranks with blocks of up to limit bytes.
func randomPlan(r *rand.Rand, n, limit int, tag uint32) plan {
	types := []tensor.DType{
		tensor.Float32, tensor.Float64, tensor.Int64, tensor.Float16, tensor.BFloat16, tensor.Uint8,
		tensor.Complex128, tensor.Int16,
	}
	dt := types[r.IntN(len(types))]
	ops := []reduce.Op{reduce.Sum, reduce.Product, reduce.Min, reduce.Max, reduce.And, reduce.Avg}
	op := ops[r.IntN(len(ops))]
	for !reduce.Supported(dt, op) {
		op = ops[r.IntN(len(ops))]
	}
	kind := collective.Kind(r.IntN(int(collective.Barrier) + 1))
	root := r.IntN(n)
	length := func() int {
		if r.IntN(8) == 0 {
			return 0
		}
		return r.IntN(limit/dt.Size()+1) * dt.Size()
	}
	p := plan{want: make([][]byte, n)}
	size := length()
	uneven := r.IntN(2) == 0
	// sizes[i][j] is what i has for j.
	sizes := make([][]int, n)
	for i := range sizes {
		sizes[i] = make([]int, n)
		for j := range sizes[i] {
			switch {
			case !uneven && kind != collective.AllGatherV:
				sizes[i][j] = size
			case kind == collective.ReduceScatter && i > 0: // the same on every rank
				sizes[i][j] = sizes[0][j]
			case kind == collective.AllGatherV && j > 0: // one block per rank
				sizes[i][j] = sizes[i][0]
			default:
				sizes[i][j] = length()
			}
		}
	}
	blocks := make([][][]byte, n)
	for i := range blocks {
		blocks[i] = make([][]byte, n)
		for j := range blocks[i] {
			blocks[i][j] = random(r, sizes[i][j])
		}
	}
	column := func(j int) (b [][]byte) {
		for i := range n {
			b = append(b, blocks[i][j])
		}
		return b
	}
	lengths := func(b [][]byte) (c []int) {
		for _, x := range b {
			c = append(c, len(x))
		}
		return c
	}
	for i := range n {
		q := &collective.Request{Kind: kind, Tag: tag, Root: root, DType: dt, Op: op, Timeout: 20 * time.Second}
		p.requests = append(p.requests, q)
		switch kind {
		case collective.AllReduce, collective.Reduce:
			q.Out = bytes.Clone(blocks[i][0][:min(len(blocks[i][0]), size)])
		case collective.Broadcast:
			q.Out = random(r, size)
		case collective.AllGather:
			q.In, q.Out = random(r, size), random(r, n*size)
		case collective.AllGatherV:
			q.In, q.OutCounts = blocks[i][0], lengths(column(0))
			q.Out = make([]byte, len(join(column(0)...)))
			p.want[i] = join(column(0)...)
		case collective.Gather:
			q.In, q.Uneven = blocks[i][root], uneven
			if i == root {
				p.want[i] = join(column(root)...)
				q.Out = make([]byte, len(p.want[i]))
				if uneven {
					q.OutCounts = lengths(column(root))
				}
			}
		case collective.Scatter:
			p.want[i] = blocks[root][i]
			q.Out, q.Uneven = make([]byte, len(p.want[i])), uneven
			if i == root {
				q.In = join(blocks[root]...)
				if uneven {
					q.InCounts = lengths(blocks[root])
				}
			}
		case collective.ReduceScatter:
			p.want[i] = reduced(column(i), dt, op)
			q.In, q.Out = join(blocks[i]...), make([]byte, len(p.want[i]))
			if uneven {
				q.InCounts = sizes[i]
			}
		case collective.AllToAll:
			p.want[i] = join(column(i)...)
			q.In, q.Out = join(blocks[i]...), make([]byte, len(p.want[i]))
			if uneven {
				q.InCounts, q.OutCounts = sizes[i], lengths(column(i))
			}
		case collective.Barrier:
		}
	}
	finish(p, kind, root)
	return p
}

// finish fills in what depends on the final buffers of all ranks.
func finish(p plan, kind collective.Kind, root int) {
	var outs, ins [][]byte
	smallest := -1
	for _, q := range p.requests {
		if smallest < 0 || len(q.Out) < smallest {
			smallest = len(q.Out)
		}
	}
	for _, q := range p.requests {
		if kind == collective.AllReduce || kind == collective.Reduce {
			q.Out = q.Out[:smallest]
		}
		outs, ins = append(outs, q.Out), append(ins, q.In)
	}
	for i, q := range p.requests {
		switch kind {
		case collective.AllReduce:
			p.want[i] = reduced(outs, q.DType, q.Op)
		case collective.Reduce:
			p.want[i] = bytes.Clone(q.Out)
			if i == root {
				p.want[i] = reduced(outs, q.DType, q.Op)
			}
		case collective.Broadcast:
			p.want[i] = bytes.Clone(outs[root])
		case collective.AllGather:
			p.want[i] = join(ins...)
		default:
		}
	}
}

func (p plan) check(t *testing.T, errs []error) {
	t.Helper()
	for i, q := range p.requests {
		if errs[i] != nil {
			t.Fatalf("%v on rank %d: %v", q.Kind, i, errs[i])
		}
		if !bytes.Equal(q.Out, p.want[i]) {
			at := 0
			for at < len(q.Out) && q.Out[at] == p.want[i][at] {
				at++
			}
			t.Fatalf("%v of %v (%v, root %d, %d bytes in, %d out, counts %v %v): rank %d differs at byte %d", q.Kind, q.DType, q.Op, q.Root,
				len(q.In), len(q.Out), q.InCounts, q.OutCounts, i, at)
		}
	}
}

// runInPieces runs a request, with contexts that end early when it is to be interrupted.
func runInPieces(e *Engine, q *collective.Request, interrupt bool, times *atomic.Int64) error {
	if !interrupt {
		return e.Run(context.Background(), q)
	}
	if e.rank == 0 && q.Tag%5 == 0 { // start when another rank was interrupted in the middle of it, however slow the machine is
		for before, tries := times.Load(), 0; times.Load() == before && tries < 10_000; tries++ {
			time.Sleep(time.Millisecond)
		}
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(200))*time.Microsecond)
		err := e.Run(ctx, q)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if errors.As(err, new(*collective.Interrupted)) {
			times.Add(1)
			time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond) // the others wait in the middle of it
		}
	}
}

// TestRandomPlans runs long sequences of random operations of random sizes; the ranks drift apart as they like.
func TestRandomPlans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ranks, slot, area, limit, count int }{
		{1, 0, 0, 100 << 10, 60},
		{-3, 512, 4096, 60 << 10, 60},
		{2, 0, 0, 900 << 10, 60},
		{2, 256, 4096, 40 << 10, 150},
		{3, 1024, 16384, 40 << 10, 150},
		{4, 128, 16384, 60 << 10, 100},
		{5, 512, 1, 30 << 10, 80},
		{8, 4096, 1, 40 << 10, 40},
	} {
		interrupt := c.ranks < 0
		c.ranks = max(c.ranks, -c.ranks)
		t.Run(fmt.Sprintf("%d ranks slot %d area %d interrupted %v", c.ranks, c.slot, c.area, interrupt), func(t *testing.T) {
			t.Parallel()
			engines := world(t, c.ranks, func(cfg *Config) { cfg.Slot, cfg.Area = c.slot, c.area })
			r := rand.New(rand.NewPCG(uint64(c.ranks), uint64(c.area)))
			var plans []plan
			for i := range c.count {
				plans = append(plans, randomPlan(r, c.ranks, []int{32, 3000, c.limit}[r.IntN(3)], uint32(i)))
			}
			var interruptions atomic.Int64
			errs := make([][]error, len(plans))
			for i := range errs {
				errs[i] = make([]error, c.ranks)
			}
			each(engines, func(e *Engine) error {
				for i, p := range plans {
					errs[i][e.rank] = runInPieces(e, p.requests[e.rank], interrupt, &interruptions)
				}
				return nil
			})
			if interrupt && interruptions.Load() == 0 {
				t.Error("nothing was interrupted")
			}
			seen := map[collective.Kind]bool{}
			for i, p := range plans {
				p.check(t, errs[i])
				seen[p.requests[0].Kind] = true
			}
			if len(seen) <= int(collective.Barrier) {
				t.Errorf("the plans cover only %v", seen)
			}
		})
	}
}

// TestBuffersInTheSegment compares the path without copies with the other.
func TestBuffersInTheSegment(t *testing.T) {
	t.Parallel()
	for _, mixed := range []bool{false, true} {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.Reduce} {
			engines := world(t, 3, nil)
			r := rand.New(rand.NewPCG(9, 9))
			outs := make([][]byte, 3)
			errs := each(engines, func(e *Engine) error {
				s, err := e.Alloc(1<<20 + 24)
				if err != nil {
					return err
				}
				outs[e.rank], err = s.Bytes()
				return err
			})
			for i := range outs {
				if errs[i] != nil {
					t.Fatal(errs[i])
				}
				if mixed && i == 1 {
					outs[i] = make([]byte, len(outs[i]))
				}
				copy(outs[i], random(r, len(outs[i])))
			}
			want := reduced(outs, tensor.Int32, reduce.Sum)
			before := bytes.Clone(outs[0])
			errs = each(engines, func(e *Engine) error {
				return e.Run(context.Background(),
					&collective.Request{Kind: kind, Root: 2, DType: tensor.Int32, Op: reduce.Sum, Out: outs[e.rank]})
			})
			for i := range outs {
				if errs[i] != nil {
					t.Fatal(errs[i])
				}
				if kind == collective.AllReduce || i == 2 {
					if !bytes.Equal(outs[i], want) {
						t.Errorf("%v mixed=%v: rank %d differs", kind, mixed, i)
					}
				}
			}
			if kind == collective.Reduce && !bytes.Equal(outs[0], before) {
				t.Error("reduce changed a buffer that is not the root's")
			}
		}
	}
}

// TestWordsInDescriptors moves a few bytes again and again: up to eight travel in the descriptor, more in the slot, and no round
// sees those of another.
func TestWordsInDescriptors(t *testing.T) {
	t.Parallel()
	const ranks, rounds = 3, 1200
	engines := world(t, ranks, nil)
	for rank, err := range each(engines, func(e *Engine) error {
		for round := range rounds {
			n, root := 1+round/4%(wordRoom+2), round%ranks
			of := func(rank int) []byte { // what a rank has in this round
				b := make([]byte, n)
				for i := range b {
					b[i] = byte(round + i*rank)
				}
				return b
			}
			all := join(of(0), of(1), of(2))
			q := &collective.Request{Tag: uint32(round), DType: tensor.Uint8, Op: reduce.Sum, Root: root, Timeout: 20 * time.Second}
			var want []byte
			shows := true
			switch round % 4 {
			case 0:
				q.Kind, q.Out, want = collective.AllReduce, of(e.rank), reduced([][]byte{of(0), of(1), of(2)}, tensor.Uint8, reduce.Sum)
			case 1:
				q.Kind, q.In, q.Out, want = collective.AllGather, of(e.rank), make([]byte, len(all)), all
			case 2:
				q.Kind, q.Out, want = collective.Broadcast, of(e.rank), of(root)
				shows = e.rank == root
			case 3:
				q.Kind, q.In = collective.Gather, of(e.rank)
				if e.rank == root {
					q.Out, want = make([]byte, len(all)), all
				}
				shows = e.rank != root
			}
			word := e.wordOf(q) != nil
			if err := e.Run(context.Background(), q); err != nil {
				return err
			}
			if !bytes.Equal(q.Out, want) || word != (shows && n <= wordRoom) {
				t.Errorf("rank %d, round %d, %v: %v, want %v; in the descriptor: %v", e.rank, round, q.Kind, q.Out, want, word)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestSmallestArea: an area may be smaller than a block of a reduction.
func TestSmallestArea(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{1, 2} {
		engines := world(t, ranks, func(cfg *Config) { cfg.Area = 1 })
		const n = 20 << 10
		for rank, err := range each(engines, func(e *Engine) error {
			storage, err := e.Alloc(n)
			if err != nil {
				return err
			}
			defer storage.Release()
			inSegment, err := storage.Bytes()
			if err != nil {
				return err
			}
			for _, out := range [][]byte{make([]byte, n), inSegment} {
				copy(out, valueOf(1, e.rank, 0, n))
				if err := e.Run(t.Context(), &collective.Request{
					Kind: collective.AllReduce, Tag: 1, DType: tensor.Int32,
					Op: reduce.Max, Out: out, Timeout: 20 * time.Second,
				}); err != nil {
					return err
				}
				if !bytes.Equal(out, valueOf(1, ranks-1, 0, n)) {
					t.Errorf("rank %d: the all-reduce is wrong", e.rank)
				}
			}
			in, out := bytes.Repeat(valueOf(1, e.rank, 0, n), ranks), make([]byte, n)
			if err := e.Run(t.Context(), &collective.Request{
				Kind: collective.ReduceScatter, Tag: 2, DType: tensor.Int32,
				Op: reduce.Max, In: in, Out: out, Timeout: 20 * time.Second,
			}); err != nil {
				return err
			}
			if !bytes.Equal(out, valueOf(1, ranks-1, 0, n)) {
				t.Errorf("rank %d: the reduce-scatter is wrong", e.rank)
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("%d ranks, rank %d: %v", ranks, rank, err)
			}
		}
	}
}
