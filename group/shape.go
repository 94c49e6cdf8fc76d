// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/tensor"
)

// What ranks must agree on beside the bytes follows PyTorch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL), which compares one
// tensor per operation: the one that all ranks have in common. Where PyTorch compares nothing (coalesced tensors,
// all-to-all, messages) shapes are free here too. So they are in the operations on flat buffers, whose shapes have no
// meaning of their own, unless the group was made with [WithDetail].

// about takes the shape of t as the one that all ranks must have.
func (w *Work) about(t *tensor.Tensor) {
	w.subject[0] = t
	w.req.Shape = coll.ShapeOf(t)
}

// flat names the tensors of an operation on flat buffers.
func (w *Work) flat(g *Group, ts ...*tensor.Tensor) {
	copy(w.subject[:], ts)
	if g.config.detail {
		w.req.Shape = coll.ShapeOf(ts[0])
	}
}

// blocks takes the shape that the blocks of all ranks have at the root; it has none to compare when they differ.
func (w *Work) blocks(ts []*tensor.Tensor) {
	w.req.Shape = coll.Shape{}
	if sameShape(ts) {
		w.req.Shape = coll.ShapeOf(ts[0])
	}
}

func sameShape(ts []*tensor.Tensor) bool {
	for _, t := range ts[1:] {
		if t.Dims() != ts[0].Dims() {
			return false
		}
		for i := range t.Dims() {
			if t.Dim(i) != ts[0].Dim(i) {
				return false
			}
		}
	}
	return true
}
