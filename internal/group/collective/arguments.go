// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// AllReduce combines t over all ranks, element by element; every rank gets the same result in t.
func (g *Group) AllReduce(c *Call, t *tensor.Tensor, op reduce.Op) error {
	const name = "group: all_reduce"
	if err := g.checkReduction(name, torchcaps.AllReduce, t, op, g.Size); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Op = AllReduce, op
	c.about(t)
	err := g.inout(c, t)
	if err == nil && (op == reduce.PremulSum || c.Factor.Given) {
		err = premultiply(name, c, op, t.DType())
	}
	if err == nil && t.DType() == tensor.Bool {
		tidyBooleans(c, tensor.Bool, c.Request.Out)
	}
	return err
}

// AllReduceCoalesced is [Group.AllReduce] of several tensors of one element type in one operation.
func (g *Group) AllReduceCoalesced(c *Call, ts []*tensor.Tensor, op reduce.Op) error {
	const name = "group: all_reduce_coalesced"
	if len(ts) == 0 {
		return cohort.New(name, cohort.InvalidArgument, "no tensors")
	}
	for _, t := range ts {
		if err := g.checkReduction(name, torchcaps.AllReduceCoalesced, t, op, g.Size); err != nil {
			return err
		}
	}
	dt := ts[0].DType()
	if err := sameType(name, ts, equal); err != nil {
		// The sum of complex numbers is the sum of their parts, which may then stand among them.
		if op != reduce.Sum && op != reduce.Avg || sameType(name, ts, equalParts) != nil {
			return err
		}
		dt = parts(dt)
	}
	flat, err := flatten(ts)
	if err != nil {
		return err
	}
	c.Request.Kind, c.Request.Op, c.Request.DType, c.Request.Out = AllReduce, op, g.wireType(dt), flat
	c.Outputs = append(c.Outputs[:0], ts...)
	c.Finish = func() error { return unflatten(flat, ts) }
	if err := premultiply(name, c, op, dt); err != nil {
		return err
	}
	tidyBooleans(c, dt, flat)
	return nil
}

// Broadcast sends t of rank root to all ranks.
func (g *Group) Broadcast(c *Call, t *tensor.Tensor, root cohort.Rank) error {
	const name = "group: broadcast"
	if err := g.checkMove(name, torchcaps.Broadcast, t, root); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Root = Broadcast, int(root)
	c.about(t)
	return g.inout(c, t)
}

// Reduce combines t over all ranks; rank root gets the result in t. On other ranks t is unchanged if all ranks are Go;
// with PyTorch ranks it holds partial results afterwards, as in PyTorch.
func (g *Group) Reduce(c *Call, t *tensor.Tensor, op reduce.Op, root cohort.Rank) error {
	const name = "group: reduce"
	if err := g.checkReduction(name, torchcaps.Reduce, t, op, g.Size); err != nil {
		return err
	}
	if err := g.CheckRoot(name, root); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Op, c.Request.Root = Reduce, op, int(root)
	c.about(t)
	err := g.inout(c, t)
	if err == nil {
		err = premultiply(name, c, op, t.DType())
	}
	if err != nil {
		return err
	}
	if g.Rank != root {
		c.Finish = nil
	}
	tidyBooleans(c, t.DType(), c.Request.Out)
	return nil
}

// AllGather collects in of every rank into outs, one tensor per rank. Among Go ranks the sizes may differ from rank to
// rank; each rank must then know all sizes.
func (g *Group) AllGather(c *Call, outs []*tensor.Tensor, in *tensor.Tensor) error {
	const name = "group: all_gather"
	if err := g.checkList(name, "outputs", outs, in, equalParts); err != nil {
		return err
	}
	if outs[g.Rank].NBytes() != in.NBytes() {
		return cohort.Newf(name, cohort.InvalidArgument, "the output of this rank has %d elements of %v, the input %d of %v",
			outs[g.Rank].Numel(), outs[g.Rank].DType(), in.Numel(), in.DType())
	}
	if err := g.checkMove(name, torchcaps.AllGather, in, 0); err != nil {
		return err
	}
	c.Request.Kind = AllGather
	if sameShape(outs) { // as in PyTorch: else the ranks' blocks differ, and so do their shapes
		c.about(in)
	}
	counts, even := byteCounts(outs)
	if !even {
		c.Request.Kind, c.Request.OutCounts = AllGatherV, counts
		if err := g.uneven(name, torchcaps.AllGather); err != nil {
			if g.Peers.High == torchcaps.V1_13 { // which compares what goes in whatever comes out
				return about(err, in)
			}
			return err
		}
	}
	return g.gatherInto(c, outs, in)
}

// AllGatherInto collects in of every rank into one buffer, in the order of ranks.
func (g *Group) AllGatherInto(c *Call, op torchcaps.Op, out, in *tensor.Tensor) error {
	name := "group: " + op.String()
	if err := g.checkPair(name, out, in); err != nil {
		return err
	}
	if out.Numel() != in.Numel()*g.Size {
		return cohort.Newf(name, cohort.InvalidArgument,
			"the output has %d elements, want %d: the input's %d for each of %d ranks", out.Numel(), in.Numel()*g.Size, in.Numel(), g.Size)
	}
	if err := g.checkMove(name, op, in, 0); err != nil {
		return err
	}
	c.Request.Kind = AllGather
	c.flat(g, in)
	if err := g.input(c, in); err != nil {
		return err
	}
	return g.output(c, out, false)
}

// Gather collects in of every rank into outs at rank root; other ranks pass nil.
func (g *Group) Gather(c *Call, outs []*tensor.Tensor, in *tensor.Tensor, root cohort.Rank) error {
	const name = "group: gather"
	if err := g.checkMove(name, torchcaps.Gather, in, root); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Root = Gather, int(root)
	c.about(in)
	if g.Rank != root {
		if outs != nil {
			return cohort.Newf(name, cohort.InvalidArgument, "only the root (rank %d) gives outputs", root)
		}
		return g.input(c, in)
	}
	if err := g.checkList(name, "outputs", outs, in, equal); err != nil {
		return err
	}
	if outs[root].Numel() != in.Numel() {
		return cohort.Newf(name, cohort.InvalidArgument, "the output of this rank has %d elements, the input %d",
			outs[root].Numel(), in.Numel())
	}
	if err := c.sized(g, name, torchcaps.Gather, outs, &c.Request.OutCounts); err != nil {
		return err
	}
	return g.gatherInto(c, outs, in)
}

// Scatter sends one tensor of ins at rank root to each rank, into out; other ranks pass nil as ins.
func (g *Group) Scatter(c *Call, out *tensor.Tensor, ins []*tensor.Tensor, root cohort.Rank) error {
	const name = "group: scatter"
	if err := g.checkMove(name, torchcaps.Scatter, out, root); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Root = Scatter, int(root)
	c.about(out)
	if g.Rank != root && ins != nil {
		return cohort.Newf(name, cohort.InvalidArgument, "only the root (rank %d) gives inputs", root)
	}
	if g.Rank == root {
		if err := g.checkList(name, "inputs", ins, out, equal); err != nil {
			return err
		}
		if ins[root].Numel() != out.Numel() {
			return cohort.Newf(name, cohort.InvalidArgument, "the input for this rank has %d elements, the output %d",
				ins[root].Numel(), out.Numel())
		}
		if err := c.sized(g, name, torchcaps.Scatter, ins, &c.Request.InCounts); err != nil {
			return err
		}
		stored := make([]*tensor.Tensor, len(ins))
		for i, t := range ins {
			stored[i] = g.stored(t)
		}
		in, err := flat(stored, out)
		if err != nil {
			return err
		}
		c.Request.In = in
	}
	if err := g.output(c, g.stored(out), false); err != nil {
		return err
	}
	c.Outputs[0] = out
	return nil
}

// sized notes the sizes and the shape of the blocks that a root has, one for each rank.
func (c *Call) sized(g *Group, name string, op torchcaps.Op, blocks []*tensor.Tensor, counts *[]int) error {
	if sizes, even := byteCounts(blocks); !even {
		*counts = sizes
		if err := c.uneven(g, name, op, sizes); err != nil {
			return err
		}
	}
	c.blocks(blocks)
	return nil
}

// ReduceScatter combines ins over all ranks, one tensor per rank; rank i gets the result of tensor i in out.
func (g *Group) ReduceScatter(c *Call, out *tensor.Tensor, ins []*tensor.Tensor, op reduce.Op) error {
	const name = "group: reduce_scatter"
	if err := g.checkReduction(name, torchcaps.ReduceScatter, out, op, g.Size); err != nil {
		return err
	}
	if err := g.checkList(name, "inputs", ins, out, equal); err != nil {
		return err
	}
	if ins[g.Rank].Numel() != out.Numel() {
		return cohort.Newf(name, cohort.InvalidArgument, "the input for this rank has %d elements, the output %d",
			ins[g.Rank].Numel(), out.Numel())
	}
	in, err := flat(ins, out)
	if err != nil {
		return err
	}
	c.Request.Kind, c.Request.Op, c.Request.In = ReduceScatter, op, in
	if sameShape(ins) {
		c.about(out)
	}
	if counts, even := byteCounts(ins); !even {
		c.Request.InCounts = counts
		if err := g.uneven(name, torchcaps.ReduceScatter); err != nil {
			return err
		}
	}
	if err := g.reduced(c, name, out, op); err != nil {
		return err
	}
	if !g.Peers.None() {
		c.Request.PerBlock, c.Parts = true, g.Size
	}
	return nil
}

// ReduceScatterInto combines in over all ranks; rank i gets the i-th of size equal parts of the result in out.
func (g *Group) ReduceScatterInto(c *Call, out, in *tensor.Tensor, op reduce.Op) error {
	const name = "group: reduce_scatter_tensor"
	if err := g.checkReduction(name, torchcaps.ReduceScatterInto, in, op, g.Size); err != nil {
		return about(err, in, out)
	}
	if err := g.checkPair(name, out, in); err != nil {
		return err
	}
	if in.Numel() != out.Numel()*g.Size {
		return cohort.Newf(name, cohort.InvalidArgument,
			"the input has %d elements, want %d: the output's %d for each of %d ranks", in.Numel(), out.Numel()*g.Size, out.Numel(), g.Size)
	}
	c.Request.Kind, c.Request.Op = ReduceScatter, op
	c.flat(g, in, out)
	if err := g.input(c, in); err != nil {
		return err
	}
	return g.reduced(c, name, out, op)
}

// reduced is the output of a reduction whose input lies elsewhere.
func (g *Group) reduced(c *Call, name string, out *tensor.Tensor, op reduce.Op) error {
	if err := g.output(c, out, false); err != nil {
		return err
	}
	if err := premultiply(name, c, op, out.DType()); err != nil {
		return err
	}
	tidyBooleans(c, out.DType(), c.Request.Out)
	return nil
}

// AllToAll sends ins[i] to rank i and receives from rank i into outs[i].
func (g *Group) AllToAll(c *Call, outs, ins []*tensor.Tensor) error {
	const name = "group: all_to_all"
	if len(ins) != g.Size || len(outs) != g.Size {
		return cohort.Newf(name, cohort.InvalidArgument, "%d inputs and %d outputs for %d ranks", len(ins), len(outs), g.Size)
	}
	if err := g.checkList(name, "inputs", ins, ins[0], equal); err != nil {
		return err
	}
	if err := g.checkList(name, "outputs", outs, ins[0], equal); err != nil {
		return err
	}
	if ins[g.Rank].Numel() != outs[g.Rank].Numel() {
		return cohort.New(name, cohort.InvalidArgument, "the input and the output of this rank have different sizes")
	}
	if err := g.checkMove(name, torchcaps.AllToAll, ins[0], 0); err != nil {
		return err
	}
	flat, err := flatten(ins)
	if err != nil {
		return err
	}
	c.Request.Kind, c.Request.DType, c.Request.In = AllToAll, ins[0].DType(), flat
	inCounts, evenIn := byteCounts(ins)
	outCounts, evenOut := byteCounts(outs)
	if !evenIn || !evenOut || inCounts[0] != outCounts[0] {
		c.Request.InCounts, c.Request.OutCounts = inCounts, outCounts
		if err := g.uneven(name, torchcaps.AllToAll); err != nil {
			return err
		}
	}
	room := make([]byte, sum(outCounts))
	c.Request.Out, c.Outputs = room, append(c.Outputs[:0], outs...)
	c.Finish = func() error { return unflatten(room, outs) }
	return nil
}

// AllToAllInto sends a part of in to every rank and receives a part of out from every rank. Without splits the parts are
// equal; with splits, outSplits[i] and inSplits[i] are the sizes along the first dimension for rank i.
func (g *Group) AllToAllInto(c *Call, out, in *tensor.Tensor, outSplits, inSplits []int) error {
	const name = "group: all_to_all_single"
	if err := g.checkPair(name, out, in); err != nil {
		return err
	}
	if err := g.checkMove(name, torchcaps.AllToAllInto, in, 0); err != nil {
		return err
	}
	c.Request.Kind = AllToAll
	var err error
	if c.Request.InCounts, err = g.splitBytes(name, "input", in, inSplits); err != nil {
		return err
	}
	if c.Request.OutCounts, err = g.splitBytes(name, "output", out, outSplits); err != nil {
		return err
	}
	switch {
	case c.Request.InCounts == nil && c.Request.OutCounts == nil:
		if in.Numel() != out.Numel() {
			return cohort.Newf(name, cohort.InvalidArgument, "equal parts: the input has %d elements, the output %d", in.Numel(),
				out.Numel())
		}
	case c.Request.InCounts == nil:
		c.Request.InCounts = equalCounts(in.NBytes(), g.Size)
	case c.Request.OutCounts == nil:
		c.Request.OutCounts = equalCounts(out.NBytes(), g.Size)
	}
	if c.Request.InCounts != nil && c.Request.InCounts[g.Rank] != c.Request.OutCounts[g.Rank] {
		return cohort.New(name, cohort.InvalidArgument, "this rank's own part has different sizes in the input and the output")
	}
	if err := g.input(c, in); err != nil {
		return err
	}
	return g.output(c, out, false)
}

// Barrier ends when all ranks have reached it.
func (g *Group) Barrier(c *Call) { c.Request.Kind, c.Request.DType = Barrier, tensor.Uint8 }

// checkReduction checks the arguments of an operation that combines. parts is of how many operations it consists that PyTorch ranks run one
// after the other.
func (g *Group) checkReduction(name string, kind torchcaps.Op, t *tensor.Tensor, op reduce.Op, parts int) error {
	if err := g.CheckTensor(name, t); err != nil {
		return err
	}
	withTorch := !g.Peers.None() && op.Valid()
	if withTorch {
		if err := g.checkTorch(name, kind, t.DType(), op, t.Numel(), parts); err != nil {
			return checkedAs(kind, err, t)
		}
	}
	if reduce.Supported(t.DType(), op) {
		return nil
	}
	e := cohort.Newf(name, cohort.InvalidArgument, "%v of %v is not defined", op, t.DType())
	if !withTorch {
		return e
	}
	return checkedAs(kind, &Refusal{Reason: e, Where: torchcaps.AtTheWait}, t)
}

// checkedAs names the tensor of a refused operation where PyTorch's check compares one.
func checkedAs(kind torchcaps.Op, err error, t *tensor.Tensor) error {
	switch kind {
	case torchcaps.AllReduceCoalesced, torchcaps.AllGatherCoalesced, torchcaps.AllGatherIntoCoalesced,
		torchcaps.ReduceScatterIntoCoalesced, torchcaps.AllToAll, torchcaps.AllToAllInto:
		return err
	default:
		return about(err, t)
	}
}

// checkMove checks the arguments of an operation that only moves data.
func (g *Group) checkMove(name string, kind torchcaps.Op, t *tensor.Tensor, root cohort.Rank) error {
	if err := g.CheckTensor(name, t); err != nil {
		return err
	}
	if err := g.CheckRoot(name, root); err != nil {
		return err
	}
	return checkedAs(kind, g.checkTorch(name, kind, t.DType(), reduce.Sum, t.Numel(), 1), t)
}
