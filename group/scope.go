// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"fmt"

	"github.com/cohort-dist/cohort"
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
