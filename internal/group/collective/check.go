// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
)

// Check refuses a request of rank in a group of size ranks whose buffers do not fit each other, before anything is sent. The
// group has checked it too; but a wrong length here would corrupt another process. where stands in front of errors.
func (r *Request) Check(where string, rank, size int) error {
	var bad string
	switch {
	case int(r.Kind) >= len(kindNames):
		return cohort.Newf(where+"run", cohort.NotSupported, "operation %d", r.Kind)
	case r.Root < 0 || r.Root >= size:
		return cohort.Newf(where+r.Kind.String(), cohort.InvalidArgument, "root %d of %d ranks", r.Root, size)
	case r.InCounts != nil && len(r.InCounts) != size, r.OutCounts != nil && len(r.OutCounts) != size:
		return cohort.Newf(where+r.Kind.String(), cohort.InvalidArgument, "%d and %d counts for %d ranks", len(r.InCounts), len(r.OutCounts), size)
	case (r.Kind == Gather || r.Kind == Scatter) && !r.Uneven && (!Even(r.InCounts) || !Even(r.OutCounts)):
		bad = "has uneven blocks without saying so"
	case r.Kind.Reduces() && !reduce.Supported(r.DType, r.Op):
		return cohort.Newf(where+r.Kind.String(), cohort.NotSupported, "%v of %v is not defined", r.Op, r.DType)
	case r.Kind.Reduces() && !r.wholeElements():
		bad = "is not whole elements of " + r.DType.String()
	case !r.lengthsFit(rank, size):
		bad = "does not fit"
	default:
		return nil
	}
	return cohort.Newf(where+r.Kind.String(), cohort.InvalidArgument, "%d bytes in (counts %v) and %d bytes out (counts %v) for %d ranks: %s",
		len(r.In), r.InCounts, len(r.Out), r.OutCounts, size, bad)
}

func (r *Request) wholeElements() bool {
	size := r.DType.Size()
	if (len(r.In)|len(r.Out))%size != 0 {
		return false
	}
	for _, c := range r.InCounts {
		if c%size != 0 {
			return false
		}
	}
	return true
}

// lengthsFit reports whether the buffers have the lengths that the kind asks for.
func (r *Request) lengthsFit(rank, size int) bool {
	root := r.Root == rank
	in := func() int { return BlockSize(len(r.In), r.InCounts, size, rank) }
	out := func() int { return BlockSize(len(r.Out), r.OutCounts, size, rank) }
	switch r.Kind {
	case AllGather:
		return len(r.Out) == size*len(r.In)
	case AllGatherV:
		return r.OutCounts != nil && fits(len(r.Out), r.OutCounts, size) && out() == len(r.In)
	case Gather:
		return !root || fits(len(r.Out), r.OutCounts, size) && out() == len(r.In)
	case Scatter:
		return !root || fits(len(r.In), r.InCounts, size) && in() == len(r.Out)
	case ReduceScatter:
		return fits(len(r.In), r.InCounts, size) && in() == len(r.Out)
	case AllToAll:
		return fits(len(r.In), r.InCounts, size) && fits(len(r.Out), r.OutCounts, size) && in() == out()
	case AllReduce, Broadcast, Reduce, Barrier:
	}
	return true
}
