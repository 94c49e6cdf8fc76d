// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"errors"
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Operations on several tensors at once cost one exchange instead of one per tensor. The tensors of a call have one element
// type.

// AllGatherCoalesced is [Group.AllGather] of several tensors in one operation: outs[r][i] gets ins[i] of rank r.
func (g *Group) AllGatherCoalesced(c *Call, outs [][]*tensor.Tensor, ins []*tensor.Tensor) error {
	const name = "group: all_gather_coalesced"
	if len(outs) != g.Size {
		return cohort.Newf(name, cohort.InvalidArgument, "%d lists of outputs for %d ranks", len(outs), g.Size)
	}
	for r, list := range outs {
		if err := g.checkPairs(name, list, ins, 1); err != nil {
			e, _ := errors.AsType[*cohort.Error](err)
			e.Detail = "outputs of rank " + strconv.Itoa(r) + ": " + e.Detail
			return e
		}
	}
	room, err := g.gatherFlat(name, c, torchcaps.AllGatherCoalesced, ins)
	if err != nil {
		return err
	}
	c.Outputs = append(c.Outputs[:0], slices.Concat(outs...)...)
	c.Finish = func() error { return unflatten(room, c.Outputs) }
	return nil
}

// AllGatherIntoCoalesced is [Group.AllGatherInto] of several pairs of tensors in one operation.
func (g *Group) AllGatherIntoCoalesced(c *Call, outs, ins []*tensor.Tensor) error {
	const name = "group: all_gather_into_tensor_coalesced"
	if err := g.checkPairs(name, outs, ins, g.Size); err != nil {
		return err
	}
	room, err := g.gatherFlat(name, c, torchcaps.AllGatherIntoCoalesced, ins)
	if err != nil {
		return err
	}
	c.Outputs = append(c.Outputs[:0], outs...)
	stride := len(c.Request.In)
	c.Finish = func() error {
		at := 0
		for i, out := range outs {
			n := ins[i].NBytes()
			whole := make([]byte, 0, out.NBytes())
			for r := range g.Size {
				whole = append(whole, room[r*stride+at:][:n]...)
			}
			if err := setBytes(out, whole); err != nil {
				return err
			}
			at += n
		}
		return nil
	}
	return nil
}

// gatherFlat prepares the all-gather of several tensors, one behind the other, and returns the room for those of all ranks.
func (g *Group) gatherFlat(name string, c *Call, op torchcaps.Op, ins []*tensor.Tensor) ([]byte, error) {
	total := 0
	for _, t := range ins {
		total += t.Numel()
	}
	if err := g.checkTorch(name, op, ins[0].DType(), reduce.Sum, total, 1); err != nil {
		return nil, err
	}
	if err := g.checkedCoalesced(name, op); err != nil {
		return nil, err
	}
	flat, err := flatten(ins)
	if err != nil {
		return nil, err
	}
	room := make([]byte, g.Size*len(flat))
	c.Request.Kind, c.Request.DType, c.Request.In, c.Request.Out = AllGather, g.wireType(ins[0].DType()), flat, room
	return room, nil
}

// checkedCoalesced refuses what PyTorch's check of operations does not know: versions up to 2.11 refuse it, 2.14 performs it. In between it
// came in pieces: 2.12 and 2.13 perform an all-gather without the check, or with it.
func (g *Group) checkedCoalesced(name string, op torchcaps.Op) error {
	if !g.Checked || g.Peers.Low >= torchcaps.V2_14 || op == torchcaps.AllGatherCoalesced {
		return nil
	}
	if g.Peers.High >= torchcaps.V2_12 {
		return refusef(torchcaps.Nowhere, name, "%v with %s=DETAIL depends on the version of PyTorch, %s", op, DebugVariable,
			g.Peers.Unsure())
	}
	return refusef(torchcaps.InPython, name, "PyTorch ranks of %v have no %v with %s=DETAIL", g.Peers, op, DebugVariable)
}

// ReduceScatterIntoCoalesced is [Group.ReduceScatterInto] of several pairs of tensors in one operation.
// With PyTorch ranks it takes a sequence number per pair, as there.
func (g *Group) ReduceScatterIntoCoalesced(c *Call, outs, ins []*tensor.Tensor, op reduce.Op) error {
	const name = "group: reduce_scatter_tensor_coalesced"
	if err := g.checkPairs(name, ins, outs, g.Size); err != nil {
		return err
	}
	if err := g.checkReduction(name, torchcaps.ReduceScatterIntoCoalesced, ins[0], op, len(ins)); err != nil {
		return err
	}
	if err := g.checkedCoalesced(name, torchcaps.ReduceScatterIntoCoalesced); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Op = ReduceScatter, op
	g.elements(c, ins[0].DType())
	c.Outputs = append(c.Outputs[:0], outs...)
	blocks, err := scatterBlocks(ins, g.Size)
	if err != nil {
		return err
	}
	room := make([]byte, len(blocks)/g.Size)
	c.Finish = func() error { return unflatten(room, outs) }
	tidyBooleans(c, ins[0].DType(), room)
	c.Request.In, c.Request.Out = blocks, room
	if err := premultiply(name, c, op, ins[0].DType()); err != nil {
		return err
	}
	if g.Peers.None() {
		return nil
	}
	c.Parts = len(ins)
	at := 0
	for i, out := range outs {
		part, err := flatten(ins[i : i+1])
		if err != nil {
			return err
		}
		c.Pieces = append(c.Pieces, piece{In: part, Out: room[at:][:out.NBytes()]})
		at += out.NBytes()
	}
	return nil
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
			n := t.NBytes() / size
			blocks = append(blocks, flat[at+r*n:][:n]...)
			at += t.NBytes()
		}
	}
	return blocks, nil
}

// checkPairs checks tensors that belong together: each of large has as many elements as factor of small.
func (g *Group) checkPairs(name string, large, small []*tensor.Tensor, factor int) error {
	if len(small) == 0 || len(large) != len(small) {
		return cohort.Newf(name, cohort.InvalidArgument,
			"%d outputs and inputs in all: want as many outputs as inputs, and at least one", len(large)+len(small))
	}
	for i := range small {
		if err := g.checkPair(name, large[i], small[i]); err != nil {
			return err
		}
		if large[i].Numel() != factor*small[i].Numel() {
			return cohort.Newf(name, cohort.InvalidArgument,
				"pair %d has tensors of %d and %d elements, want %d times as many in one as in the other",
				i, large[i].Numel(), small[i].Numel(), factor)
		}
	}
	return sameType(name, small, equal)
}

// BroadcastCoalesced broadcasts several tensors of one type, one behind the other.
func (g *Group) BroadcastCoalesced(c *Call, ts []*tensor.Tensor, root cohort.Rank) error {
	const name = "group: broadcast_coalesced"
	if len(ts) == 0 {
		return cohort.New(name, cohort.InvalidArgument, "no tensors")
	}
	for _, t := range ts {
		if err := g.CheckTensor(name, t); err != nil {
			return err
		}
	}
	if err := sameType(name, ts, equal); err != nil {
		return err
	}
	data, err := flatten(ts)
	if err != nil {
		return err
	}
	dt := ts[0].DType()
	flat, err := tensor.FromStorage(tensor.WrapStorage(data, "heap", nil), dt, []int{len(data) / dt.Size()}, nil, 0)
	if err != nil {
		return err
	}
	if err := g.checkMove(name, torchcaps.Broadcast, flat, root); err != nil {
		return err
	}
	c.Request.Kind, c.Request.Root = Broadcast, int(root)
	c.about(flat)
	if err := g.inout(c, flat); err != nil {
		return err
	}
	c.Outputs = append(c.Outputs[:0], ts...)
	if g.Rank != root {
		c.Finish = func() error { return unflatten(data, ts) }
	}
	return nil
}

// Buckets groups tensors as PyTorch's compute_bucket_assignment_by_size does with one limit: by element type, and in the order
// of the first tensor of each bucket.
func Buckets(ts []*tensor.Tensor, limit int) [][]*tensor.Tensor {
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
		if b.size += t.NBytes(); b.size >= limit {
			delete(open, t.DType())
		}
	}
	return lists
}

// Objects of any length travel in two parts: their sizes, then their bytes, one behind the other or each filled up to the largest.

// Announced adds up the sizes of objects that a rank has announced, and refuses more than most bytes: no memory is taken for them.
func Announced(name string, from cohort.Rank, sizes []int64, most int64) (int, error) {
	total := int64(0)
	for _, n := range sizes {
		if n < 0 || n > most || total+n > most {
			err := cohort.Newf(name, cohort.TooLarge, "rank %d announces an object of %d bytes, at most %d are taken", from, n, most)
			err.Rank = from
			return 0, err
		}
		total += n
	}
	return int(total), nil
}

// Padded fills an object up to so many bytes.
func Padded(object []byte, size int) []byte {
	b := make([]byte, size)
	copy(b, object)
	return b
}

// Unpad returns the objects in blocks that were filled up to stride bytes each.
func Unpad(all []byte, stride int, sizes []int64) [][]byte {
	objects := make([][]byte, len(sizes))
	for i, n := range sizes {
		at := i * stride
		objects[i] = all[at : at+int(n) : at+int(n)]
	}
	return objects
}

// Cut cuts data into objects of the given sizes.
func Cut(objects [][]byte, data []byte, sizes []int64) {
	for i, n := range sizes {
		objects[i] = data[:n:n]
		data = data[n:]
	}
}
