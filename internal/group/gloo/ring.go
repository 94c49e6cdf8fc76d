// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/tensor"
)

// maxSegment is the largest segment of gloo's ring algorithms.
const maxSegment = 1 << 20

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func roundUp(a, b int) int { return ceilDiv(a, b) * b }

// ring is how gloo cuts a buffer for its ring algorithms. All ranks compute the same numbers.
type ring struct {
	total    int // bytes
	segment  int // bytes of a segment
	segments int // a multiple of the number of ranks
	per      int // segments of one rank
}

// allReduceRing is the cut of all-reduce.
func allReduceRing(total, elem, size int) ring {
	limit := elem * max(1, maxSegment/elem)
	n := roundUp(max(ceilDiv(total, limit), 2*size), size)
	return ring{total: total, segments: n, per: n / size, segment: roundUp(ceilDiv(total, n), elem)}
}

// reduceRing is the cut of reduce, which differs.
func reduceRing(total, elem, size int) ring {
	seg := roundUp(min(ceilDiv(total, 2*size), elem*(maxSegment/elem)), elem)
	n := roundUp(max(ceilDiv(total, seg), 2*size), size)
	return ring{total: total, segments: n, per: n / size, segment: seg}
}

// at returns the bytes of segment i counted from the start of rank first's part; empty if it lies behind the end.
func (g ring) at(buf []byte, first, i int) []byte {
	off := (first*g.per + i) * g.segment % (g.segments * g.segment)
	if off >= g.total {
		return nil
	}
	return buf[off:min(off+g.segment, g.total)]
}

// The op indexes of the two steps in flight.
const (
	ringRecv = 0
	ringSend = 2
)

// reduceSteps runs steps of the reduce-scatter half: data flows from rank r+1 to rank r-1; what arrives is combined into
// buf. Two steps are in flight.
func (x *run) reduceSteps(g ring, buf []byte, slot uint64, steps int) error {
	tmp := x.temp(2 * g.segment)
	from, to := x.mod(x.rank+1), x.mod(x.rank-1)
	for i := range steps + 2 {
		half := i & 1
		if i >= 2 {
			if dst := g.at(buf, x.rank+2, i-2); len(dst) > 0 {
				if err := x.waitRecv(ringRecv + half); err != nil {
					return err
				}
				x.engine.into(dst, x.ops[ringRecv+half].Buf, x.req.DType, x.req.Op)
			}
			if len(g.at(buf, x.rank+1, i-2)) > 0 {
				if err := x.waitSend(ringSend + half); err != nil {
					return err
				}
			}
		}
		if i < steps {
			if dst := g.at(buf, x.rank+2, i); len(dst) > 0 {
				x.recv(ringRecv+half, from, slot, tmp[half*g.segment:][:len(dst)])
			}
			if src := g.at(buf, x.rank+1, i); len(src) > 0 {
				x.send(ringSend+half, to, slot, src)
			}
		}
	}
	return nil
}

// gatherSteps runs the all-gather half: finished segments go round.
func (x *run) gatherSteps(g ring, buf []byte, slot uint64, steps int) error {
	from, to := x.mod(x.rank+1), x.mod(x.rank-1)
	for i := range steps + 2 {
		half := i & 1
		if i >= 2 {
			if len(g.at(buf, x.rank+1, i-2)) > 0 {
				if err := x.waitRecv(ringRecv + half); err != nil {
					return err
				}
			}
			if len(g.at(buf, x.rank, i-2)) > 0 {
				if err := x.waitSend(ringSend + half); err != nil {
					return err
				}
			}
		}
		if i < steps {
			if dst := g.at(buf, x.rank+1, i); len(dst) > 0 {
				x.recv(ringRecv+half, from, slot, dst)
			}
			if src := g.at(buf, x.rank, i); len(src) > 0 {
				x.send(ringSend+half, to, slot, src)
			}
		}
	}
	return nil
}

// allReduce is gloo's ring on buf, in place.
func (x *run) allReduce(buf []byte, tag uint32) error {
	if len(buf) == 0 || x.size == 1 {
		return nil
	}
	slot := gloowire.Slot(gloowire.AllReduce, tag)
	g := allReduceRing(len(buf), x.req.DType.Size(), x.size)
	if err := x.reduceSteps(g, buf, slot, g.segments-g.per); err != nil {
		return err
	}
	return x.gatherSteps(g, buf, slot, g.segments-g.per)
}

// reduce is gloo's reduce: the reduce-scatter half with steps up to segments-2 (more than needed for large buffers, but
// peers count on them), then every rank sends its part to the root. gloo leaves partial sums in the other ranks'
// buffers; here they work on a copy.
func (x *run) reduce() error {
	r := x.req
	if len(r.Out) == 0 {
		return nil
	}
	if x.size == 1 {
		x.average(r.Out)
		return nil
	}
	buf, slot := r.Out, x.slot(gloowire.Reduce)
	g := reduceRing(len(buf), r.DType.Size(), x.size)
	if x.rank != r.Root {
		// One piece of scratch memory serves the copy and the two halves of reduceSteps.
		whole := x.temp(2*g.segment + len(buf))
		buf = whole[2*g.segment:]
		copy(buf, r.Out)
	}
	if err := x.reduceSteps(g, buf, slot, g.segments-2); err != nil {
		return err
	}
	part := func(rank int) []byte {
		off := rank * g.per * g.segment
		if off >= len(buf) {
			return nil
		}
		return buf[off:min(off+g.per*g.segment, len(buf))]
	}
	const first = 4 // behind the ops of reduceSteps
	if x.rank != r.Root {
		if own := part(x.rank); len(own) > 0 {
			x.send(first, r.Root, slot, own)
			return x.waitSend(first)
		}
		return nil
	}
	n := first
	for peer := range x.size {
		if dst := part(peer); peer != x.rank && len(dst) > 0 {
			x.recv(n, peer, slot, dst)
			n++
		}
	}
	for i := first; i < n; i++ {
		if err := x.waitRecv(i); err != nil {
			return err
		}
	}
	x.average(r.Out)
	return nil
}

// reduceScatter is what PyTorch 2.x does on gloo: an all-reduce of the whole input, of which each rank keeps its part; for a list
// of inputs one all-reduce of each.
func (x *run) reduceScatter() error {
	r := x.req
	buf := make([]byte, len(r.In)) // as long as the operation; the scratch memory holds the segments
	copy(buf, r.In)
	if r.PerBlock {
		for i := range x.size {
			if err := x.allReduce(collective.Block(buf, r.InCounts, x.size, i), r.Tag+uint32(i)); err != nil {
				return err
			}
		}
	} else if err := x.allReduce(buf, r.Tag); err != nil {
		return err
	}
	copy(r.Out, collective.Block(buf, r.InCounts, x.size, x.rank))
	x.average(r.Out)
	if r.DType == tensor.Bool { // PyTorch's copy of a sum of bools makes it 0 or 1 here, and only here
		for i, b := range r.Out {
			r.Out[i] = min(b, 1)
		}
	}
	return nil
}
