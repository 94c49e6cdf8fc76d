// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Operations on several tensors at once cost one exchange instead of one per tensor. The tensors of a call have one element
// type.

// AllGatherCoalesced is [Group.AllGather] of several tensors in one operation: outs[r][i] gets ins[i] of rank r.
//
// It corresponds to torch.distributed.all_gather_coalesced.
func (g *Group) AllGatherCoalesced(ctx context.Context, outs [][]*tensor.Tensor, ins []*tensor.Tensor, opts ...OpOption) *Work {
	w := g.newWork(OpAllGatherCoalesced, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllGatherCoalesced(&w.call, outs, ins))
}

// AllGatherIntoCoalesced is [Group.AllGatherInto] of several pairs of tensors in one operation.
//
// It corresponds to all_gather_into_tensor in torch.distributed's _coalescing_manager.
func (g *Group) AllGatherIntoCoalesced(ctx context.Context, outs, ins []*tensor.Tensor, opts ...OpOption) *Work {
	w := g.newWork(OpAllGatherIntoCoalesced, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllGatherIntoCoalesced(&w.call, outs, ins))
}

// ReduceScatterIntoCoalesced is [Group.ReduceScatterInto] of several pairs of tensors in one operation.
//
// It corresponds to reduce_scatter_tensor in torch.distributed's _coalescing_manager. With PyTorch ranks it takes a sequence
// number per pair, as there.
func (g *Group) ReduceScatterIntoCoalesced(ctx context.Context, outs, ins []*tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	w := g.newWork(OpReduceScatterIntoCoalesced, opts)
	return g.run(ctx, w, g.argsOf(ctx).ReduceScatterIntoCoalesced(&w.call, outs, ins, reduce.Op(op)))
}

// broadcastFlat broadcasts several tensors of one type, one behind the other.
func (g *Group) broadcastFlat(ctx context.Context, ts []*tensor.Tensor, root cohort.Rank, opts []OpOption) *Work {
	w := g.newWork(OpBroadcast, opts)
	return g.run(ctx, w, g.argsOf(ctx).BroadcastCoalesced(&w.call, ts, root))
}

// BroadcastBucket is the size of the buckets that PyTorch's DistributedDataParallel uses for its first broadcast.
const BroadcastBucket = 250 << 20

// BroadcastCoalesced sends tensors of rank root to all ranks, a bucket of them at a time: consecutive tensors of one element
// type, until they have bucket bytes or more. At most two buckets are on their way at once, which bounds the memory.
//
// It corresponds to torch.distributed._broadcast_coalesced, which DistributedDataParallel starts with.
func (g *Group) BroadcastCoalesced(ctx context.Context, ts []*tensor.Tensor, bucket int, root cohort.Rank, opts ...OpOption) error {
	if g == nil {
		return errNil
	}
	const name, inFlight = "group: broadcast_coalesced", 2
	if err := g.args.CheckRoot(name, root); err != nil {
		return err
	}
	for _, t := range ts {
		if err := g.args.CheckTensor(name, t); err != nil {
			return err
		}
	}
	buckets := collective.Buckets(ts, bucket)
	p := parted{Group: g, name: name, left: len(buckets)}
	var works []*Work
	for i, list := range buckets {
		if i >= inFlight && p.wait(ctx, works[i-inFlight]) != nil {
			break // the last wait says so again
		}
		works = append(works, p.posts(g.broadcastFlat(ctx, list, root, opts)))
	}
	var first error
	for _, w := range works[max(0, len(works)-inFlight):] {
		if err := p.wait(ctx, w); err != nil && first == nil {
			first = err
		}
	}
	return first
}
