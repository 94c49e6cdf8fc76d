// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// AllReduce combines t over all ranks, element by element; every rank gets the same result in t.
//
// It corresponds to torch.distributed.all_reduce(async_op=True).
func (g *Group) AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	const name = "group: all_reduce"
	if err := g.checkReduction(name, OpAllReduce, t, op); err != nil {
		return g.refuse(ctx, OpAllReduce, err)
	}
	w := g.newWork(OpAllReduce, opts)
	w.req.Kind, w.req.Op = coll.AllReduce, toReduce(op)
	w.about(t)
	err := g.inout(w, t)
	if err == nil {
		err = premultiply(name, w, op, t.DType(), opts)
	}
	if err != nil {
		return g.refuse(ctx, OpAllReduce, err)
	}
	g.tidyBooleans(w, t.DType(), w.req.Out)
	return g.post(ctx, w, 1)
}

// AllReduceCoalesced is [Group.AllReduce] of several tensors of one element type in one operation.
//
// It corresponds to torch.distributed.all_reduce_coalesced.
func (g *Group) AllReduceCoalesced(ctx context.Context, ts []*tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	const name = "group: all_reduce_coalesced"
	fail := func(err error) *Work { return g.refuse(ctx, OpAllReduceCoalesce, err) }
	if len(ts) == 0 {
		return fail(dist.New(name, dist.InvalidArgument, "no tensors"))
	}
	for _, t := range ts {
		if err := g.checkReduction(name, OpAllReduceCoalesce, t, op); err != nil {
			return fail(err)
		}
	}
	if err := sameType(name, ts); err != nil {
		return fail(err)
	}
	flat, err := flatten(ts)
	if err != nil {
		return fail(err)
	}
	w := g.newWork(OpAllReduceCoalesce, opts)
	w.req.Kind, w.req.Op, w.req.DType, w.req.Out = coll.AllReduce, toReduce(op), g.torch.wireType(ts[0].DType()), flat
	w.outputs = append(w.outputs[:0], ts...)
	w.finish = func() error { return unflatten(flat, ts) }
	if err := premultiply(name, w, op, ts[0].DType(), opts); err != nil {
		return fail(err)
	}
	g.tidyBooleans(w, ts[0].DType(), flat)
	return g.post(ctx, w, 1)
}

// Broadcast sends t of rank root to all ranks.
//
// It corresponds to torch.distributed.broadcast.
func (g *Group) Broadcast(ctx context.Context, t *tensor.Tensor, root int, opts ...OpOption) *Work {
	const name = "group: broadcast"
	if err := g.checkMove(name, OpBroadcast, t, root); err != nil {
		return g.refuse(ctx, OpBroadcast, err)
	}
	w := g.newWork(OpBroadcast, opts)
	w.req.Kind, w.req.Root = coll.Broadcast, root
	w.about(t)
	if err := g.inout(w, t); err != nil {
		return g.refuse(ctx, OpBroadcast, err)
	}
	return g.post(ctx, w, 1)
}

// Reduce combines t over all ranks; rank root gets the result in t. On other ranks t is unchanged if all ranks are Go;
// with PyTorch ranks it holds partial results afterwards, as in PyTorch.
//
// It corresponds to torch.distributed.reduce.
func (g *Group) Reduce(ctx context.Context, t *tensor.Tensor, op ReduceOp, root int, opts ...OpOption) *Work {
	const name = "group: reduce"
	if err := g.checkReduction(name, OpReduce, t, op); err != nil {
		return g.refuse(ctx, OpReduce, err)
	}
	if err := g.checkRoot(name, root); err != nil {
		return g.refuse(ctx, OpReduce, err)
	}
	w := g.newWork(OpReduce, opts)
	w.req.Kind, w.req.Op, w.req.Root = coll.Reduce, toReduce(op), root
	w.about(t)
	err := g.inout(w, t)
	if err == nil {
		err = premultiply(name, w, op, t.DType(), opts)
	}
	if err != nil {
		return g.refuse(ctx, OpReduce, err)
	}
	if g.rank != root {
		w.finish = nil
	}
	g.tidyBooleans(w, t.DType(), w.req.Out)
	return g.post(ctx, w, 1)
}

// AllGather collects in of every rank into outs, one tensor per rank. Among Go ranks the sizes may differ from rank to
// rank; each rank must then know all sizes.
//
// It corresponds to torch.distributed.all_gather.
func (g *Group) AllGather(ctx context.Context, outs []*tensor.Tensor, in *tensor.Tensor, opts ...OpOption) *Work {
	const name = "group: all_gather"
	fail := func(err error) *Work { return g.refuse(ctx, OpAllGather, err) }
	if err := g.checkList(name, "outputs", outs, in); err != nil {
		return fail(err)
	}
	if outs[g.rank].Numel() != in.Numel() {
		return fail(dist.Newf(name, dist.InvalidArgument, "the output of this rank has %d elements, the input %d", outs[g.rank].Numel(), in.Numel()))
	}
	if err := g.checkMove(name, OpAllGather, in, 0); err != nil {
		return fail(err)
	}
	w := g.newWork(OpAllGather, opts)
	w.req.Kind = coll.AllGather
	if sameShape(outs) { // as in PyTorch: else the ranks' blocks differ, and so do their shapes
		w.about(in)
	}
	counts, even := byteCounts(outs)
	if !even {
		w.req.Kind, w.req.OutCounts = coll.AllGatherV, counts
		if err := g.torch.uneven(name, w.op); err != nil {
			if g.torch == torch113 { // which compares what goes in whatever comes out
				return fail(about(err, in))
			}
			return fail(err)
		}
	}
	if err := g.gatherInto(w, outs, in); err != nil {
		return fail(err)
	}
	return g.post(ctx, w, 1)
}

// AllGatherInto collects in of every rank into one buffer, in the order of ranks.
//
// It corresponds to torch.distributed.all_gather_into_tensor.
func (g *Group) AllGatherInto(ctx context.Context, out, in *tensor.Tensor, opts ...OpOption) *Work {
	return g.allGatherInto(ctx, OpAllGatherInto, out, in, opts)
}

func (g *Group) allGatherInto(ctx context.Context, op OpType, out, in *tensor.Tensor, opts []OpOption) *Work {
	name := "group: " + op.String()
	fail := func(err error) *Work { return g.refuse(ctx, op, err) }
	if err := g.checkPair(name, out, in); err != nil {
		return fail(err)
	}
	if out.Numel() != in.Numel()*g.size {
		return fail(dist.Newf(name, dist.InvalidArgument, "the output has %d elements, want %d: the input's %d for each of %d ranks", out.Numel(), in.Numel()*g.size, in.Numel(), g.size))
	}
	if err := g.checkMove(name, op, in, 0); err != nil {
		return fail(err)
	}
	w := g.newWork(op, opts)
	w.req.Kind = coll.AllGather
	w.flat(g, in)
	if err := g.input(w, in); err != nil {
		return fail(err)
	}
	if err := g.output(w, out, false); err != nil {
		return fail(err)
	}
	return g.post(ctx, w, 1)
}

// Gather collects in of every rank into outs at rank root; other ranks pass nil. Among Go ranks sizes may differ.
//
// It corresponds to torch.distributed.gather.
func (g *Group) Gather(ctx context.Context, outs []*tensor.Tensor, in *tensor.Tensor, root int, opts ...OpOption) *Work {
	const name = "group: gather"
	fail := func(err error) *Work { return g.refuse(ctx, OpGather, err) }
	if err := g.checkMove(name, OpGather, in, root); err != nil {
		return fail(err)
	}
	w := g.newWork(OpGather, opts)
	w.req.Kind, w.req.Root = coll.Gather, root
	w.about(in)
	if g.rank != root {
		if outs != nil {
			return fail(dist.Newf(name, dist.InvalidArgument, "only the root (rank %d) gives outputs", root))
		}
		if err := g.input(w, in); err != nil {
			return fail(err)
		}
		return g.post(ctx, w, 1)
	}
	if err := g.checkList(name, "outputs", outs, in); err != nil {
		return fail(err)
	}
	if outs[root].Numel() != in.Numel() {
		return fail(dist.Newf(name, dist.InvalidArgument, "the output of this rank has %d elements, the input %d", outs[root].Numel(), in.Numel()))
	}
	if counts, even := byteCounts(outs); !even {
		w.req.OutCounts = counts
		if err := g.torch.uneven(name, w.op); err != nil {
			return fail(err)
		}
	}
	w.blocks(outs)
	if err := g.gatherInto(w, outs, in); err != nil {
		return fail(err)
	}
	return g.post(ctx, w, 1)
}

// Scatter sends one tensor of ins at rank root to each rank, into out; other ranks pass nil as ins. Among Go ranks sizes may
// differ.
//
// It corresponds to torch.distributed.scatter.
func (g *Group) Scatter(ctx context.Context, out *tensor.Tensor, ins []*tensor.Tensor, root int, opts ...OpOption) *Work {
	const name = "group: scatter"
	fail := func(err error) *Work { return g.refuse(ctx, OpScatter, err) }
	if err := g.checkMove(name, OpScatter, out, root); err != nil {
		return fail(err)
	}
	w := g.newWork(OpScatter, opts)
	w.req.Kind, w.req.Root = coll.Scatter, root
	w.about(out)
	if g.rank != root && ins != nil {
		return fail(dist.Newf(name, dist.InvalidArgument, "only the root (rank %d) gives inputs", root))
	}
	if g.rank == root {
		if err := g.checkList(name, "inputs", ins, out); err != nil {
			return fail(err)
		}
		if ins[root].Numel() != out.Numel() {
			return fail(dist.Newf(name, dist.InvalidArgument, "the input for this rank has %d elements, the output %d", ins[root].Numel(), out.Numel()))
		}
		if counts, even := byteCounts(ins); !even {
			w.req.InCounts = counts
			if err := g.torch.uneven(name, w.op); err != nil {
				return fail(err)
			}
		}
		w.blocks(ins)
		in, err := flat(ins, out)
		if err != nil {
			return fail(err)
		}
		w.req.In = in
	}
	if err := g.output(w, out, false); err != nil {
		return fail(err)
	}
	return g.post(ctx, w, 1)
}

// ReduceScatter combines ins over all ranks, one tensor per rank; rank i gets the result of tensor i in out.
//
// It corresponds to torch.distributed.reduce_scatter, which gloo has from PyTorch 2.8 on.
func (g *Group) ReduceScatter(ctx context.Context, out *tensor.Tensor, ins []*tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	const name = "group: reduce_scatter"
	fail := func(err error) *Work { return g.refuse(ctx, OpReduceScatter, err) }
	if err := g.checkReduction(name, OpReduceScatter, out, op); err != nil {
		return fail(err)
	}
	if err := g.checkList(name, "inputs", ins, out); err != nil {
		return fail(err)
	}
	if ins[g.rank].Numel() != out.Numel() {
		return fail(dist.Newf(name, dist.InvalidArgument, "the input for this rank has %d elements, the output %d", ins[g.rank].Numel(), out.Numel()))
	}
	in, err := flat(ins, out)
	if err != nil {
		return fail(err)
	}
	w := g.newWork(OpReduceScatter, opts)
	w.req.Kind, w.req.Op, w.req.In = coll.ReduceScatter, toReduce(op), in
	if sameShape(ins) {
		w.about(out)
	}
	if counts, even := byteCounts(ins); !even {
		w.req.InCounts = counts
		if err := g.torch.uneven(name, w.op); err != nil {
			return fail(err)
		}
	}
	if err := g.output(w, out, false); err != nil {
		return fail(err)
	}
	if err := premultiply(name, w, op, out.DType(), opts); err != nil {
		return fail(err)
	}
	if g.torch == torchNone {
		return g.post(ctx, w, 1)
	}
	w.req.PerBlock, w.parts = true, g.size
	g.tidyBooleans(w, out.DType(), w.req.Out)
	return g.post(ctx, w, uint32(g.size)) //nolint:gosec // a number of ranks
}

// ReduceScatterInto combines in over all ranks; rank i gets the i-th of size equal parts of the result in out.
//
// It corresponds to torch.distributed.reduce_scatter_tensor. PyTorch up to 2.8 sums whatever the operator is, so with
// such ranks only [Sum] is allowed.
func (g *Group) ReduceScatterInto(ctx context.Context, out, in *tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	const name = "group: reduce_scatter_tensor"
	fail := func(err error) *Work { return g.refuse(ctx, OpReduceScatterInto, err) }
	if err := g.checkReduction(name, OpReduceScatterInto, in, op); err != nil {
		return fail(about(err, in, out))
	}
	if err := g.checkPair(name, out, in); err != nil {
		return fail(err)
	}
	if in.Numel() != out.Numel()*g.size {
		return fail(dist.Newf(name, dist.InvalidArgument, "the input has %d elements, want %d: the output's %d for each of %d ranks", in.Numel(), out.Numel()*g.size, out.Numel(), g.size))
	}
	w := g.newWork(OpReduceScatterInto, opts)
	w.req.Kind, w.req.Op = coll.ReduceScatter, toReduce(op)
	w.flat(g, in, out)
	if err := g.input(w, in); err != nil {
		return fail(err)
	}
	if err := g.output(w, out, false); err != nil {
		return fail(err)
	}
	if err := premultiply(name, w, op, out.DType(), opts); err != nil {
		return fail(err)
	}
	g.tidyBooleans(w, out.DType(), w.req.Out)
	return g.post(ctx, w, 1)
}

// AllToAll sends ins[i] to rank i and receives from rank i into outs[i].
//
// It corresponds to torch.distributed.all_to_all, which gloo has from PyTorch 2.12 on, for tensors of one size: with others use
// [Group.AllToAllInto].
func (g *Group) AllToAll(ctx context.Context, outs, ins []*tensor.Tensor, opts ...OpOption) *Work {
	const name = "group: all_to_all"
	fail := func(err error) *Work { return g.refuse(ctx, OpAllToAll, err) }
	if len(ins) != g.size || len(outs) != g.size {
		return fail(dist.Newf(name, dist.InvalidArgument, "%d inputs and %d outputs for %d ranks", len(ins), len(outs), g.size))
	}
	if err := g.checkList(name, "inputs", ins, ins[0]); err != nil {
		return fail(err)
	}
	if err := g.checkList(name, "outputs", outs, ins[0]); err != nil {
		return fail(err)
	}
	if ins[g.rank].Numel() != outs[g.rank].Numel() {
		return fail(dist.New(name, dist.InvalidArgument, "the input and the output of this rank have different sizes"))
	}
	if err := g.checkMove(name, OpAllToAll, ins[0], 0); err != nil {
		return fail(err)
	}
	flat, err := flatten(ins)
	if err != nil {
		return fail(err)
	}
	w := g.newWork(OpAllToAll, opts)
	w.req.Kind, w.req.DType, w.req.In = coll.AllToAll, ins[0].DType(), flat
	inCounts, evenIn := byteCounts(ins)
	outCounts, evenOut := byteCounts(outs)
	if !evenIn || !evenOut || inCounts[0] != outCounts[0] {
		w.req.InCounts, w.req.OutCounts = inCounts, outCounts
		if err := g.torch.uneven(name, w.op); err != nil {
			return fail(err)
		}
	}
	room := make([]byte, sum(outCounts))
	w.req.Out, w.outputs = room, append(w.outputs[:0], outs...)
	w.finish = func() error { return unflatten(room, outs) }
	return g.post(ctx, w, 1)
}

// AllToAllInto sends a part of in to every rank and receives a part of out from every rank. Without splits the parts are
// equal; with splits, outSplits[i] and inSplits[i] are the sizes along the first dimension for rank i.
//
// It corresponds to torch.distributed.all_to_all_single.
func (g *Group) AllToAllInto(ctx context.Context, out, in *tensor.Tensor, outSplits, inSplits []int, opts ...OpOption) *Work {
	const name = "group: all_to_all_single"
	fail := func(err error) *Work { return g.refuse(ctx, OpAllToAllInto, err) }
	if err := g.checkPair(name, out, in); err != nil {
		return fail(err)
	}
	if err := g.checkMove(name, OpAllToAllInto, in, 0); err != nil {
		return fail(err)
	}
	w := g.newWork(OpAllToAllInto, opts)
	w.req.Kind = coll.AllToAll
	var err error
	if w.req.InCounts, err = g.splitBytes(name, "input", in, inSplits); err != nil {
		return fail(err)
	}
	if w.req.OutCounts, err = g.splitBytes(name, "output", out, outSplits); err != nil {
		return fail(err)
	}
	switch {
	case w.req.InCounts == nil && w.req.OutCounts == nil:
		if in.Numel() != out.Numel() {
			return fail(dist.Newf(name, dist.InvalidArgument, "equal parts: the input has %d elements, the output %d", in.Numel(), out.Numel()))
		}
	case w.req.InCounts == nil:
		w.req.InCounts = equalCounts(in.Size(), g.size)
	case w.req.OutCounts == nil:
		w.req.OutCounts = equalCounts(out.Size(), g.size)
	}
	if w.req.InCounts != nil && w.req.InCounts[g.rank] != w.req.OutCounts[g.rank] {
		return fail(dist.New(name, dist.InvalidArgument, "this rank's own part has different sizes in the input and the output"))
	}
	if err := g.input(w, in); err != nil {
		return fail(err)
	}
	if err := g.output(w, out, false); err != nil {
		return fail(err)
	}
	return g.post(ctx, w, 1)
}

// Barrier ends when all ranks have reached it. It corresponds to torch.distributed.barrier.
func (g *Group) Barrier(ctx context.Context, opts ...OpOption) *Work {
	w := g.newWork(OpBarrier, opts)
	w.req.Kind, w.req.DType = coll.Barrier, tensor.Uint8
	return g.post(ctx, w, 1)
}

// newWork returns a Work for a new operation, with the options applied.
func (g *Group) newWork(op OpType, opts []OpOption) *Work {
	if len(opts) == 0 {
		return &Work{op: op, source: NoSource}
	}
	var w *Work
	var timeout time.Duration
	for _, o := range opts {
		switch o := o.(type) { // without a call through the interface, which would put the configuration on the heap
		case reuseOption:
			w = o.work
		case timeoutOption:
			timeout = time.Duration(o)
		}
	}
	if w == nil || !w.completed.Load() {
		w = new(Work)
	} else {
		w.recycle()
	}
	w.op, w.source, w.timeout = op, NoSource, timeout
	return w
}

// checkReduction checks the arguments of an operation that combines.
func (g *Group) checkReduction(name string, kind OpType, t *tensor.Tensor, op ReduceOp) error {
	return g.checkReductions(name, kind, t, op, g.size)
}

// checkReductions is checkReduction of an operation of so many parts, of which PyTorch ranks run one after the other.
func (g *Group) checkReductions(name string, kind OpType, t *tensor.Tensor, op ReduceOp, parts int) error {
	if err := g.checkTensor(name, t); err != nil {
		return err
	}
	known := toReduce(op).Valid()
	if known {
		if err := g.checkTorch(name, kind, t.DType(), op, t.Numel(), parts); err != nil {
			return checkedAs(kind, err, t)
		}
	}
	if reduce.Supported(t.DType(), toReduce(op)) {
		return nil
	}
	e := dist.Newf(name, dist.InvalidArgument, "%v of %v is not defined", op, t.DType())
	if g.torch == torchNone || !known {
		return e
	}
	return checkedAs(kind, &refusal{reason: e, where: atTheWait}, t)
}

// checkedAs names the tensor of a refused operation where PyTorch's check compares one.
func checkedAs(kind OpType, err error, t *tensor.Tensor) error {
	switch kind {
	case OpAllReduceCoalesce, OpAllGatherCoalesce, OpAllGatherIntoCoalesce, OpReduceScatterIntoCoalesce, OpAllToAll, OpAllToAllInto:
		return err
	default:
		return about(err, t)
	}
}

// checkMove checks the arguments of an operation that only moves data.
func (g *Group) checkMove(name string, kind OpType, t *tensor.Tensor, root int) error {
	if err := g.checkTensor(name, t); err != nil {
		return err
	}
	if err := g.checkRoot(name, root); err != nil {
		return err
	}
	return checkedAs(kind, g.checkTorch(name, kind, t.DType(), Sum, t.Numel(), 1), t)
}
