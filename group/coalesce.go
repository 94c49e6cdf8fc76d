// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/gloo/torch"
	"github.com/cohort-dist/cohort/tensor"
)

// Operations on several tensors at once cost one exchange instead of one per tensor. The tensors of a call have one element
// type.

// AllGatherCoalesced is [Group.AllGather] of several tensors in one operation: outs[r][i] gets ins[i] of rank r.
//
// It corresponds to torch.distributed.all_gather_coalesced.
func (g *Group) AllGatherCoalesced(ctx context.Context, outs [][]*tensor.Tensor, ins []*tensor.Tensor, opts ...OpOption) *Work {
	const name = "group: all_gather_coalesced"
	fail := func(err error) *Work { return g.refuse(ctx, OpAllGatherCoalesce, err) }
	if len(outs) != g.size {
		return fail(dist.Newf(name, dist.InvalidArgument, "%d lists of outputs for %d ranks", len(outs), g.size))
	}
	for r, list := range outs {
		if err := g.checkPairs(name, list, ins, 1); err != nil {
			e := asError(err)
			e.Detail = "outputs of rank " + itoa(r) + ": " + e.Detail
			return fail(e)
		}
	}
	w, room, err := g.gatherFlat(name, OpAllGatherCoalesce, ins, opts)
	if err != nil {
		return fail(err)
	}
	w.outputs = append(w.outputs[:0], slices.Concat(outs...)...)
	w.finish = func() error { return unflatten(room, w.outputs) }
	return g.post(ctx, w, 1)
}

// AllGatherIntoCoalesced is [Group.AllGatherInto] of several pairs of tensors in one operation.
//
// It corresponds to all_gather_into_tensor in torch.distributed's _coalescing_manager.
func (g *Group) AllGatherIntoCoalesced(ctx context.Context, outs, ins []*tensor.Tensor, opts ...OpOption) *Work {
	const name = "group: all_gather_into_tensor_coalesced"
	fail := func(err error) *Work { return g.refuse(ctx, OpAllGatherIntoCoalesce, err) }
	if err := g.checkPairs(name, outs, ins, g.size); err != nil {
		return fail(err)
	}
	w, room, err := g.gatherFlat(name, OpAllGatherIntoCoalesce, ins, opts)
	if err != nil {
		return fail(err)
	}
	w.outputs = append(w.outputs[:0], outs...)
	stride := len(w.req.In)
	w.finish = func() error {
		at := 0
		for i, out := range outs {
			n := ins[i].Size()
			whole := make([]byte, 0, out.Size())
			for r := range g.size {
				whole = append(whole, room[r*stride+at:][:n]...)
			}
			if err := setBytes(out, whole); err != nil {
				return err
			}
			at += n
		}
		return nil
	}
	return g.post(ctx, w, 1)
}

// gatherFlat prepares the all-gather of several tensors, one behind the other, and returns the room for those of all ranks.
func (g *Group) gatherFlat(name string, op OpType, ins []*tensor.Tensor, opts []OpOption) (*Work, []byte, error) {
	total := 0
	for _, t := range ins {
		total += t.Numel()
	}
	if err := g.checkTorch(name, op, ins[0].DType(), Sum, total, 1); err != nil {
		return nil, nil, err
	}
	if err := g.checkedCoalesced(name, op); err != nil {
		return nil, nil, err
	}
	flat, err := flatten(ins)
	if err != nil {
		return nil, nil, err
	}
	w := g.newWork(op, opts)
	room := make([]byte, g.size*len(flat))
	w.req.Kind, w.req.DType, w.req.In, w.req.Out = coll.AllGather, g.torch.wireType(ins[0].DType()), flat, room
	return w, room, nil
}

// checkedCoalesced refuses what PyTorch's check of operations does not know: 2.6 and 2.11 refuse it, 2.14 performs it.
func (g *Group) checkedCoalesced(name string, op OpType) error {
	if g.checks == nil || g.peers.Low >= torch.V2_14 || op == OpAllGatherCoalesce {
		return nil
	}
	return refusef(inPython, name, "PyTorch ranks of %v have no %v with %s=DETAIL", g.peers, op, debugEnv)
}

// ReduceScatterIntoCoalesced is [Group.ReduceScatterInto] of several pairs of tensors in one operation.
//
// It corresponds to reduce_scatter_tensor in torch.distributed's _coalescing_manager. With PyTorch ranks it takes a sequence
// number per pair, as there.
func (g *Group) ReduceScatterIntoCoalesced(ctx context.Context, outs, ins []*tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	const name = "group: reduce_scatter_tensor_coalesced"
	fail := func(err error) *Work { return g.refuse(ctx, OpReduceScatterIntoCoalesce, err) }
	if err := g.checkPairs(name, ins, outs, g.size); err != nil {
		return fail(err)
	}
	if err := g.checkReductions(name, OpReduceScatterIntoCoalesce, ins[0], op, len(ins)); err != nil {
		return fail(err)
	}
	if err := g.checkedCoalesced(name, OpReduceScatterIntoCoalesce); err != nil {
		return fail(err)
	}
	w := g.newWork(OpReduceScatterIntoCoalesce, opts)
	w.req.Kind, w.req.Op, w.req.DType = coll.ReduceScatter, toReduce(op), g.torch.wireType(ins[0].DType())
	w.req.Complex = ins[0].DType().Complex()
	w.outputs = append(w.outputs[:0], outs...)
	blocks, err := scatterBlocks(ins, g.size)
	if err != nil {
		return fail(err)
	}
	room := make([]byte, len(blocks)/g.size)
	w.finish = func() error { return unflatten(room, outs) }
	g.tidyBooleans(w, ins[0].DType(), room)
	w.req.In, w.req.Out = blocks, room
	if err := premultiply(name, w, op, ins[0].DType(), opts); err != nil {
		return fail(err)
	}
	if g.torch == torchNone {
		return g.post(ctx, w, 1)
	}
	w.parts = len(ins)
	at := 0
	for i, out := range outs {
		part, err := flatten(ins[i : i+1])
		if err != nil {
			return fail(err)
		}
		to := room[at:][:out.Size()]
		at += out.Size()
		w.steps = append(w.steps, func(ctx context.Context) error {
			r := w.req
			r.In, r.Out, r.Tag = part, to, w.req.Tag+uint32(i) //nolint:gosec // a number of tensors
			return g.engine.Run(ctx, &r)
		})
	}
	return g.post(ctx, w, uint32(len(ins))) //nolint:gosec // a number of tensors
}

// scatterBlocks puts the parts of all tensors for rank 0 one behind the other, then those for rank 1, and so on.
func scatterBlocks(ts []*tensor.Tensor, size int) ([]byte, error) {
	flat, err := flatten(ts)
	if err != nil {
		return nil, err
	}
	blocks := make([]byte, 0, len(flat))
	for r := range size {
		at := 0
		for _, t := range ts {
			n := t.Size() / size
			blocks = append(blocks, flat[at+r*n:][:n]...)
			at += t.Size()
		}
	}
	return blocks, nil
}

// checkPairs checks tensors that belong together: each of large has as many elements as factor of small.
func (g *Group) checkPairs(name string, large, small []*tensor.Tensor, factor int) error {
	if len(small) == 0 || len(large) != len(small) {
		return dist.Newf(name, dist.InvalidArgument, "%d outputs and inputs in all: want as many outputs as inputs, and at least one", len(large)+len(small))
	}
	for i := range small {
		if err := g.checkPair(name, large[i], small[i]); err != nil {
			return err
		}
		if large[i].Numel() != factor*small[i].Numel() {
			return dist.Newf(name, dist.InvalidArgument, "pair %d has tensors of %d and %d elements, want %d times as many in one as in the other",
				i, large[i].Numel(), small[i].Numel(), factor)
		}
	}
	return sameType(name, small)
}

// broadcastFlat broadcasts several tensors of one type, one behind the other.
func (g *Group) broadcastFlat(ctx context.Context, ts []*tensor.Tensor, root int, opts []OpOption) *Work {
	const name = "group: broadcast_coalesced"
	fail := func(err error) *Work { return g.refuse(ctx, OpBroadcast, err) }
	if len(ts) == 0 {
		return fail(dist.New(name, dist.InvalidArgument, "no tensors"))
	}
	for _, t := range ts {
		if err := g.checkTensor(name, t); err != nil {
			return fail(err)
		}
	}
	if err := sameType(name, ts); err != nil {
		return fail(err)
	}
	data, err := flatten(ts)
	if err != nil {
		return fail(err)
	}
	dt := ts[0].DType()
	flat, err := tensor.FromStorage(tensor.WrapStorage(data, "heap", nil), dt, []int{len(data) / dt.Size()}, nil, 0)
	if err != nil {
		return fail(err)
	}
	if err := g.checkMove(name, OpBroadcast, flat, root); err != nil {
		return fail(err)
	}
	w := g.newWork(OpBroadcast, opts)
	w.req.Kind, w.req.Root = coll.Broadcast, root
	w.about(flat)
	if err := g.inout(w, flat); err != nil {
		return fail(err)
	}
	w.outputs = append(w.outputs[:0], ts...)
	if g.rank != root {
		w.finish = func() error { return unflatten(data, ts) }
	}
	return g.post(ctx, w, 1)
}

// BroadcastBucket is the size of the buckets that PyTorch's DistributedDataParallel uses for its first broadcast.
const BroadcastBucket = 250 << 20

// BroadcastCoalesced sends tensors of rank root to all ranks, a bucket of them at a time: consecutive tensors of one element
// type, until they have bucket bytes or more. At most two buckets are on their way at once, which bounds the memory.
//
// It corresponds to torch.distributed._broadcast_coalesced, which DistributedDataParallel starts with.
func (g *Group) BroadcastCoalesced(ctx context.Context, ts []*tensor.Tensor, bucket, root int, opts ...OpOption) error {
	const name, inFlight = "group: broadcast_coalesced", 2
	if err := g.checkRoot(name, root); err != nil {
		return err
	}
	for _, t := range ts {
		if err := g.checkTensor(name, t); err != nil {
			return err
		}
	}
	var works []*Work
	for _, list := range buckets(ts, bucket) {
		if len(works) >= inFlight {
			if err := works[len(works)-inFlight].Wait(ctx); err != nil {
				break // the last wait says so again
			}
		}
		works = append(works, g.broadcastFlat(ctx, list, root, opts))
	}
	return WaitAll(ctx, works...)
}

// buckets groups tensors as PyTorch's compute_bucket_assignment_by_size does with one limit: by element type, and in the order
// of the first tensor of each bucket.
func buckets(ts []*tensor.Tensor, limit int) [][]*tensor.Tensor {
	type bucket struct{ size, at int }
	open := map[tensor.DType]*bucket{}
	var lists [][]*tensor.Tensor // one is begun when its first tensor comes, so they are in that order
	for _, t := range ts {
		b := open[t.DType()]
		if b == nil {
			b = &bucket{at: len(lists)}
			open[t.DType()] = b
			lists = append(lists, nil)
		}
		lists[b.at] = append(lists[b.at], t)
		if b.size += t.Size(); b.size >= limit {
			delete(open, t.DType())
		}
	}
	return lists
}
