// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"fmt"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Coalesce runs the collectives that fill adds as one operation. They must be of one kind, with one operator or root, and
// their tensors must have one element type.
//
// It corresponds to torch.distributed's _coalescing_manager(async_ops=True), which takes the first operator for all of them.
func (g *Group) Coalesce(ctx context.Context, fill func(c *Coalescer), opts ...OpOption) *Work {
	if g == nil {
		return refused(errNil)
	}
	c := &Coalescer{kind: OpUnknown}
	if fill != nil {
		fill(c)
	}
	if c.err != nil {
		return failed(c.kind, c.err)
	}
	switch c.kind {
	case OpAllReduce:
		return g.AllReduceCoalesced(ctx, c.outs, c.op, opts...)
	case OpAllGatherInto:
		return g.AllGatherIntoCoalesced(ctx, c.outs, c.ins, opts...)
	case OpReduceScatterInto:
		return g.ReduceScatterIntoCoalesced(ctx, c.outs, c.ins, c.op, opts...)
	case OpBroadcast:
		return g.broadcastFlat(ctx, c.outs, c.root, opts)
	default:
		return failed(c.kind, cohort.New("group: coalesce", cohort.InvalidArgument, "no operations"))
	}
}

// Coalescer collects operations for [Group.Coalesce].
type Coalescer struct {
	kind      OpType
	op        ReduceOp
	root      cohort.Rank
	outs, ins []*tensor.Tensor
	err       error
}

// AllReduce adds an all-reduce.
func (c *Coalescer) AllReduce(t *tensor.Tensor, op ReduceOp) { c.add(OpAllReduce, op, 0, t, nil) }

// AllGatherInto adds an all-gather.
func (c *Coalescer) AllGatherInto(out, in *tensor.Tensor) { c.add(OpAllGatherInto, Sum, 0, out, in) }

// ReduceScatterInto adds a reduce-scatter.
func (c *Coalescer) ReduceScatterInto(out, in *tensor.Tensor, op ReduceOp) {
	c.add(OpReduceScatterInto, op, 0, out, in)
}

// Broadcast adds a broadcast. PyTorch's scope has none; its ranks take part with _broadcast_coalesced of one bucket.
func (c *Coalescer) Broadcast(t *tensor.Tensor, root cohort.Rank) {
	c.add(OpBroadcast, Sum, root, t, nil)
}

func (c *Coalescer) add(kind OpType, op ReduceOp, root cohort.Rank, out, in *tensor.Tensor) {
	const name = "group: coalesce"
	switch {
	case c.err != nil:
	case len(c.outs) == 0:
		c.kind, c.op, c.root = kind, op, root
	case c.kind != kind:
		c.err = cohort.Newf(name, cohort.InvalidArgument, "operation %d is %v, the first is %v: a scope takes one kind",
			len(c.outs), kind, c.kind)
	case c.op != op:
		c.err = cohort.Newf(name, cohort.InvalidArgument, "operation %d has the operator %v, the first has %v: a scope takes one",
			len(c.outs), op, c.op)
	case c.root != root:
		c.err = cohort.Newf(name, cohort.InvalidArgument, "operation %d has the root %d, the first has %d: a scope takes one",
			len(c.outs), root, c.root)
	}
	c.outs, c.ins = append(c.outs, out), append(c.ins, in)
}

// String says what is coalesced.
func (c *Coalescer) String() string {
	return fmt.Sprintf("coalescer of %d %v operations", len(c.outs), c.kind)
}

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
