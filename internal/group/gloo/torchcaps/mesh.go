// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"slices"

	"github.com/cohort-dist/cohort"
)

// Rows lists the groups of a device mesh with these sizes, for each dimension in the order in which all ranks make them; nil where
// the world's own group serves.
func (order meshOrder) Rows(mesh []int) [][][]cohort.Rank {
	world := 1
	for _, n := range mesh {
		world *= n
	}
	all := make([][][]cohort.Rank, len(mesh))
	for d, size := range mesh {
		// PyTorch takes the default group for a mesh of one dimension, and in 2.14 for any dimension that all ranks are in.
		if size == world && (order == FirstFirst || len(mesh) == 1) {
			continue
		}
		// The sizes and the strides of the other dimensions, the slowest first.
		var sizes, strides []int
		stride, own := world, 0
		for i, n := range mesh {
			stride /= n
			if i == d {
				own = stride
			}
			sizes, strides = append(sizes, n), append(strides, stride)
		}
		if order == LastFirst { // the dimension changes places with the last one
			end := len(sizes) - 1
			sizes[d], sizes[end] = sizes[end], sizes[d]
			strides[d], strides[end] = strides[end], strides[d]
			sizes, strides = sizes[:end], strides[:end]
		} else {
			sizes, strides = slices.Delete(sizes, d, d+1), slices.Delete(strides, d, d+1)
		}
		for i := range world / size {
			start := 0
			for k, n := range slices.Backward(sizes) {
				start += i % n * strides[k]
				i /= n
			}
			row := make([]cohort.Rank, size)
			for j := range row {
				row[j] = cohort.Rank(start + j*own)
			}
			all[d] = append(all[d], row)
		}
	}
	return all
}
