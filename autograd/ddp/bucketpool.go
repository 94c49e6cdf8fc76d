// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"slices"

	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
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

// bucket is the gradients that are reduced together, or one sparse gradient.
type bucket struct {
	params  []int
	data    *tensor.Tensor   // nil for a sparse gradient
	sparse  *tensor.Sparse   // of this pass
	views   []*tensor.Tensor // by position in params
	index   int
	pending int
	wait    wait
}

// place says where the gradient of a parameter lies.
type place struct{ bucket, position int }

// pools are all buckets, in the order of their reduction, and where the gradients lie in them.
type bucketPool struct {
	buckets []*bucket
	places  []place // by parameter
}

// newBucketPool makes the memory of buckets.
func newBucketPool(g *group.Group, params []nn.Param, pieces []piece, buckets [][]int) (bucketPool, error) {
	s := bucketPool{buckets: make([]*bucket, len(buckets)), places: make([]place, len(params))}
	for i, members := range buckets {
		b := &bucket{params: members, index: i}
		s.buckets[i] = b
		if k := members[0]; pieces[k].sparse {
			s.places[k] = place{i, 0}
			continue
		}
		n := 0
		for _, k := range members {
			n += params[k].Value.Data().Numel()
		}
		var err error
		if b.data, err = g.NewTensor(pieces[members[0]].dtype, n); err != nil { // the shared segment may be full
			if b.data, err = tensor.New(pieces[members[0]].dtype, n); err != nil {
				return bucketPool{}, err
			}
		}
		at := 0
		for j, k := range members {
			t := params[k].Value.Data()
			view, err := b.data.Narrow(0, at, t.Numel())
			if err != nil {
				return bucketPool{}, err
			}
			if view, err = view.View(t.Shape()...); err != nil {
				return bucketPool{}, err
			}
			b.views = append(b.views, view)
			s.places[k] = place{i, j}
			at += t.Numel()
		}
	}
	return s, nil
}

// of returns the bucket of a parameter, and the position of its gradient in it.
func (s *bucketPool) of(i int) (*bucket, int) {
	p := s.places[i]
	return s.buckets[p.bucket], p.position
}

// view is the memory of a parameter's gradient, or nil for a sparse one.
func (s *bucketPool) view(i int) *tensor.Tensor {
	if len(s.buckets) == 0 {
		return nil
	}
	b, position := s.of(i)
	if b.data == nil {
		return nil
	}
	return b.views[position]
}

// reset makes the buckets ready for the next pass.
func (s *bucketPool) reset() {
	for _, b := range s.buckets {
		b.pending, b.wait, b.sparse = len(b.params), nil, nil
	}
}

// release gives back the memory.
func (s *bucketPool) release() {
	for _, b := range s.buckets {
		if b.data != nil {
			b.data.Storage().Release()
		}
	}
}
