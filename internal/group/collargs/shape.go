// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collargs

import (
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/tensor"
)

// What ranks must agree on beside the bytes follows PyTorch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL), which compares one
// tensor per operation: the one that all ranks have in common. Where PyTorch compares nothing (coalesced tensors,
// all-to-all, messages) shapes are free here too. So they are in the operations on flat buffers, whose shapes have no
// meaning of their own, unless the group was made with WithDetail.

// about takes the shape of t as the one that all ranks must have.
func (c *Call) about(t *tensor.Tensor) {
	c.Subject[0] = t
	c.Request.Shape = collective.ShapeOf(t)
}

// flat names the tensors of an operation on flat buffers.
func (c *Call) flat(g *Group, ts ...*tensor.Tensor) {
	copy(c.Subject[:], ts)
	if g.Detail {
		c.Request.Shape = collective.ShapeOf(ts[0])
	}
}

// blocks takes the shape that the blocks of all ranks have at the root; it has none to compare when they differ.
func (c *Call) blocks(ts []*tensor.Tensor) {
	c.Request.Shape = collective.Shape{}
	if sameShape(ts) {
		c.Request.Shape = collective.ShapeOf(ts[0])
	}
}

// sameShape compares shapes as PyTorch sees them, which has the parts of complex numbers as a last dimension.
func sameShape(ts []*tensor.Tensor) bool {
	for _, t := range ts[1:] {
		if dims(t) != dims(ts[0]) {
			return false
		}
		for i := range dims(t) {
			if dim(t, i) != dim(ts[0], i) {
				return false
			}
		}
	}
	return true
}

func dims(t *tensor.Tensor) int {
	if t.DType().Complex() {
		return t.Dims() + 1
	}
	return t.Dims()
}

func dim(t *tensor.Tensor, i int) int {
	if i == t.Dims() {
		return 2
	}
	return t.Dim(i)
}
