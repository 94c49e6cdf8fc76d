// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Engines work on contiguous bytes. This file takes tensors apart and puts them together again.

// inout makes t the buffer that an operation works on in place. A tensor that is not contiguous is copied there and back.
func (g *Group) inout(c *Call, t *tensor.Tensor) error {
	buffer := t
	if !t.IsContiguous() {
		buffer = g.stored(t)
	}
	if err := g.output(c, buffer, true); err != nil {
		return err
	}
	c.Outputs[0] = t
	return nil
}

// stored returns t with its dimensions in the order of memory if that makes it contiguous and other ranks are PyTorch, else t itself.
// PyTorch reduces, broadcasts and scatters a transposed tensor in the order of its memory, because it looks at nothing but its
// address and size. Ranks whose tensors have the same layout therefore agree, as long as all of them do so.
func (g *Group) stored(t *tensor.Tensor) *tensor.Tensor {
	if g.Peers.None() || t.IsContiguous() {
		return t
	}
	shape, strides := t.Shape(), t.Strides()
	dims := make([]int, len(shape))
	for i := range dims {
		dims[i] = i
	}
	slices.SortStableFunc(dims, func(a, b int) int { return strides[b] - strides[a] })
	inShape, inStrides := make([]int, len(dims)), make([]int, len(dims))
	for i, d := range dims {
		inShape[i], inStrides[i] = shape[d], strides[d]
	}
	s, err := tensor.FromStorage(t.Storage(), t.DType(), inShape, inStrides, t.Offset())
	if err != nil || !s.IsContiguous() { // it has gaps, or elements that are there more than once
		return t
	}
	return s
}

// output makes t the buffer that results go to. With keep its content goes in first.
func (g *Group) output(c *Call, t *tensor.Tensor, keep bool) error {
	g.elements(c, t.DType())
	c.Outputs = append(c.Outputs[:0], t)
	if t.IsContiguous() {
		buf, err := t.Bytes()
		c.Request.Out = buf
		return err
	}
	var flat *tensor.Tensor
	var err error
	if keep {
		flat, err = t.Clone()
	} else {
		flat, err = tensor.New(t.DType(), t.Shape()...)
	}
	if err != nil {
		return err
	}
	if c.Request.Out, err = flat.Bytes(); err != nil {
		return err
	}
	c.Finish = func() error { return t.CopyFrom(flat) }
	return nil
}

// input makes t the buffer that an operation reads.
func (g *Group) input(c *Call, t *tensor.Tensor) error {
	g.elements(c, t.DType())
	flat, err := t.Contiguous()
	if err != nil {
		return err
	}
	c.Request.In, err = flat.Bytes()
	return err
}

// gatherInto makes one buffer of all outputs. Where they are parts of one tensor, one behind the other in memory, they are
// used in place; else the blocks are copied to them in the end.
func (g *Group) gatherInto(c *Call, outs []*tensor.Tensor, in *tensor.Tensor) error {
	if err := g.input(c, in); err != nil {
		return err
	}
	c.Outputs = append(c.Outputs[:0], outs...)
	if room := span(outs); room != nil && (in.Storage() != outs[0].Storage() || in.IsContiguous() && in.Offset() == outs[g.Rank].Offset()) {
		c.Request.Out = room
		return nil
	}
	total := 0
	for _, t := range outs {
		total += t.NBytes()
	}
	room := make([]byte, total)
	c.Request.Out = room
	c.Finish = func() error { return unflatten(room, outs) }
	return nil
}

// span returns the memory of tensors that are parts of one storage, one behind the other; nil if they are not.
func span(ts []*tensor.Tensor) []byte {
	at := ts[0].Offset()
	for _, t := range ts {
		if t.Storage() != ts[0].Storage() || t.DType() != ts[0].DType() || t.Offset() != at || !t.IsContiguous() {
			return nil
		}
		at += t.Numel()
	}
	data, err := ts[0].Storage().Bytes()
	if err != nil {
		return nil
	}
	size := ts[0].DType().Size()
	return data[ts[0].Offset()*size : at*size : at*size]
}

// tidyBooleans makes true one again after booleans were added as bytes.
func tidyBooleans(c *Call, dt tensor.DType, buf []byte) {
	if dt != tensor.Bool {
		return
	}
	finish := c.Finish
	c.Finish = func() error {
		for i, b := range buf {
			if b > 1 {
				buf[i] = 1
			}
		}
		if finish != nil {
			return finish()
		}
		return nil
	}
}

// flat returns tensors one behind the other: as they are where that is how they stand in memory and out is somewhere else,
// else as a copy.
func flat(ts []*tensor.Tensor, out *tensor.Tensor) ([]byte, error) {
	if room := span(ts); room != nil && out.Storage() != ts[0].Storage() {
		return room, nil
	}
	return flatten(ts)
}

// flatten copies tensors one behind the other.
func flatten(ts []*tensor.Tensor) ([]byte, error) {
	total := 0
	for _, t := range ts {
		total += t.NBytes()
	}
	flat := make([]byte, 0, total)
	for _, t := range ts {
		c, err := t.Contiguous()
		if err != nil {
			return nil, err
		}
		b, err := c.Bytes()
		if err != nil {
			return nil, err
		}
		flat = append(flat, b...)
	}
	return flat, nil
}

// unflatten copies a buffer back to the tensors that it was made of.
func unflatten(flat []byte, ts []*tensor.Tensor) error {
	for _, t := range ts {
		n := t.NBytes()
		if err := setBytes(t, flat[:n]); err != nil {
			return err
		}
		flat = flat[n:]
	}
	return nil
}

// setBytes sets all elements of t from contiguous bytes.
func setBytes(t *tensor.Tensor, data []byte) error {
	if t.IsContiguous() {
		b, err := t.Bytes()
		if err != nil {
			return err
		}
		copy(b, data)
		return nil
	}
	flat, err := tensor.FromStorage(tensor.WrapStorage(data, "heap", nil), t.DType(), t.Shape(), nil, 0)
	if err != nil {
		return err
	}
	return t.CopyFrom(flat)
}

func byteCounts(ts []*tensor.Tensor) (counts []int, even bool) {
	counts = make([]int, len(ts))
	even = true
	for i, t := range ts {
		counts[i] = t.NBytes()
		even = even && counts[i] == counts[0]
	}
	return counts, even
}

func equalCounts(total, n int) []int {
	counts := make([]int, n)
	for i := range counts {
		counts[i] = total / n
	}
	return counts
}

func sum(list []int) int {
	s := 0
	for _, n := range list {
		s += n
	}
	return s
}

// splitBytes turns sizes along the first dimension into bytes; nil stays nil, after a check that equal parts are possible.
func (g *Group) splitBytes(name, which string, t *tensor.Tensor, splits []int) ([]int, error) {
	first := 1
	if t.Dims() > 0 {
		first = t.Dim(0)
	}
	if len(splits) == 0 {
		if first%g.Size != 0 {
			return nil, cohort.Newf(name, cohort.InvalidArgument,
				"the %s's first dimension, %d, cannot be cut into %d equal parts", which, first, g.Size)
		}
		return nil, nil
	}
	if len(splits) != g.Size {
		return nil, cohort.Newf(name, cohort.InvalidArgument, "%d %s splits for %d ranks", len(splits), which, g.Size)
	}
	row := 0
	if first > 0 {
		row = t.NBytes() / first
	}
	total := 0
	counts := make([]int, g.Size)
	for i, s := range splits {
		if s < 0 || s > first {
			return nil, cohort.Newf(name, cohort.InvalidArgument, "%s split %d for rank %d of a first dimension of %d", which, s, i, first)
		}
		counts[i] = s * row
		total += s
	}
	if total != first {
		return nil, cohort.Newf(name, cohort.InvalidArgument, "the %s splits add up to %d, the first dimension is %d", which, total, first)
	}
	return counts, nil
}

// CheckTensor checks that a tensor can be used in the group.
func (g *Group) CheckTensor(name string, t *tensor.Tensor) error {
	if t == nil {
		return cohort.New(name, cohort.InvalidArgument, "no tensor")
	}
	if t.Storage() == nil {
		return cohort.New(name, cohort.InvalidArgument, "the tensor has no memory: it is a zero Tensor")
	}
	if t.Storage().Released() {
		return cohort.New(name, cohort.InvalidArgument, "the tensor's storage was released")
	}
	if dt := t.DType(); g.Peers.None() && !reduce.Supported(dt, reduce.Sum) { // which they have of all that they carry
		return cohort.Newf(name, cohort.NotSupported, "groups do not carry %v; convert the tensor", dt)
	}
	return nil
}

// CheckRoot checks a rank that is the root of an operation.
func (g *Group) CheckRoot(name string, root cohort.Rank) error {
	if root < 0 || int(root) >= g.Size {
		return cohort.Newf(name, cohort.InvalidArgument, "root %d: the group has ranks 0 to %d", root, g.Size-1)
	}
	return nil
}

// checkPair checks an output and an input of one type.
func (g *Group) checkPair(name string, out, in *tensor.Tensor) error {
	if err := g.CheckTensor(name, in); err != nil {
		return err
	}
	if err := g.CheckTensor(name, out); err != nil {
		return err
	}
	if out.DType() != in.DType() {
		return cohort.Newf(name, cohort.InvalidArgument, "the output is %v, the input %v", out.DType(), in.DType())
	}
	return nil
}

// checkList checks one tensor per rank, all of a type that goes with that of like.
func (g *Group) checkList(name, which string, ts []*tensor.Tensor, like *tensor.Tensor, goes func(a, b tensor.DType) bool) error {
	if err := g.CheckTensor(name, like); err != nil {
		return err
	}
	if len(ts) != g.Size {
		return cohort.Newf(name, cohort.InvalidArgument, "%d %s for %d ranks", len(ts), which, g.Size)
	}
	for _, t := range ts {
		if err := g.CheckTensor(name, t); err != nil {
			return err
		}
	}
	if !goes(ts[0].DType(), like.DType()) {
		return cohort.Newf(name, cohort.InvalidArgument, "the %s are %v, not %v", which, ts[0].DType(), like.DType())
	}
	return sameType(name, ts, goes)
}

// equal is for lists whose tensors must have one type.
func equal(a, b tensor.DType) bool { return a == b }

// equalParts is for lists in which complex numbers may stand beside the type of their real and imaginary parts, as PyTorch takes them.
func equalParts(a, b tensor.DType) bool { return parts(a) == parts(b) }

func parts(dt tensor.DType) tensor.DType {
	switch dt {
	case tensor.Complex64:
		return tensor.Float32
	case tensor.Complex128:
		return tensor.Float64
	default:
		return dt
	}
}

func sameType(name string, ts []*tensor.Tensor, goes func(a, b tensor.DType) bool) error {
	for i, t := range ts {
		if !goes(t.DType(), ts[0].DType()) {
			return cohort.Newf(name, cohort.InvalidArgument, "tensor 0 is %v, tensor %d %v", ts[0].DType(), i, t.DType())
		}
	}
	return nil
}
