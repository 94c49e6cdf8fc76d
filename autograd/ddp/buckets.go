// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"slices"

	"github.com/cohort-dist/cohort/tensor"
)

// PyTorch's sizes of buckets: the first is small, so that reductions begin early.
const (
	DefaultFirstBucket = 1 << 20
	DefaultBucket      = 25 << 20
	unlimited          = int(^uint(0) >> 1)
)

// piece is what the assignment looks at: the type and the bytes of a parameter, and whether its gradients are sparse.
type piece struct {
	dtype  tensor.DType
	bytes  int
	sparse bool
}

// assign puts parameters into buckets of one element type each. A bucket is closed when it has reached its limit; the
// k-th bucket of a type has the k-th limit, the rest the last. A sparse gradient has a bucket of its own. order says in
// which order parameters come; nil is their own, and then the buckets are sorted by their first parameter. It is
// torch.distributed._compute_bucket_assignment_by_size.
func assign(pieces []piece, limits, order []int) [][]int {
	type open struct {
		dtype   tensor.DType
		indices []int
		bytes   int
		limit   int
	}
	var opens []*open // in order of appearance, so that the result does not depend on chance
	var out [][]int
	own := order == nil
	if own {
		order = make([]int, len(pieces))
		for i := range order {
			order[i] = i
		}
	}
	for _, i := range order {
		if pieces[i].sparse {
			out = append(out, []int{i})
			continue
		}
		at := slices.IndexFunc(opens, func(o *open) bool { return o.dtype == pieces[i].dtype })
		if at < 0 {
			at = len(opens)
			opens = append(opens, &open{dtype: pieces[i].dtype})
		}
		o := opens[at]
		o.indices = append(o.indices, i)
		o.bytes += pieces[i].bytes
		if o.bytes >= limits[o.limit] {
			out = append(out, o.indices)
			o.indices, o.bytes, o.limit = nil, 0, min(o.limit+1, len(limits)-1)
		}
	}
	for _, o := range opens {
		if len(o.indices) > 0 {
			out = append(out, o.indices)
		}
	}
	if own {
		slices.SortStableFunc(out, func(a, b []int) int { return slices.Min(a) - slices.Min(b) })
	}
	return out
}
