// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// descriptor is what a rank was asked to do, in 24 bytes, so that two of them and the step fit one cache line.
type descriptor struct {
	head  uint64 // kind, operator, type, flags: a byte each; then the tag
	size  uint64 // bytes of the rank's own buffer, as sizeOf defines it
	extra uint64 // root in the low 16 bits, a hash of the counts above
}

const (
	flagInline = 1 << 24 // the data is in the slot
	flagDirect = 1 << 25 // the buffer lies in the segment, at the offset in the first word of the send table
	flagCounts = 1 << 26 // the rank gave counts

	maskKind  = 0xff
	maskOp    = 0xff << 8
	maskDType = 0xff << 16
	maskTag   = 0xffffffff << 32
	maskRoot  = 0xffff
)

// rule says what must agree between the ranks of a kind beside the kind and the tag.
type rule struct {
	head  uint64
	size  bool
	extra uint64
}

var rules = [...]rule{
	coll.AllReduce:     {maskOp | maskDType, true, 0},
	coll.Broadcast:     {maskDType, true, maskRoot},
	coll.Reduce:        {maskOp | maskDType, true, maskRoot},
	coll.AllGather:     {maskDType, true, 0},
	coll.AllGatherV:    {maskDType, false, ^uint64(maskRoot)},
	coll.Gather:        {maskDType, false, maskRoot},
	coll.Scatter:       {maskDType, false, maskRoot},
	coll.ReduceScatter: {maskOp | maskDType, true, ^uint64(maskRoot)},
	coll.AllToAll:      {maskDType, false, 0},
	coll.Barrier:       {},
}

func describe(r *coll.Request, size int, flags uint64) descriptor {
	d := descriptor{size: uint64(size)} //nolint:gosec // a length
	d.head = uint64(r.Kind) | uint64(r.Op)<<8 | uint64(r.DType)<<16 | flags | uint64(r.Tag)<<32
	d.extra = uint64(r.Root) & maskRoot //nolint:gosec // in range: validated
	switch r.Kind {
	case coll.AllGatherV:
		d.extra |= hashCounts(r.OutCounts) &^ maskRoot
	case coll.ReduceScatter:
		d.extra |= hashCounts(r.InCounts) &^ maskRoot
	default:
	}
	return d
}

// hashCounts is FNV-1a over the counts; equal counts are the same as none.
func hashCounts(counts []int) uint64 {
	even := true
	h := uint64(14695981039346656037)
	for _, c := range counts {
		even = even && c == counts[0]
		for range 8 {
			h = (h ^ uint64(c&0xff)) * 1099511628211
			c >>= 8
		}
	}
	if even {
		return 0
	}
	return h
}

// agrees reports whether two ranks were asked to do the same.
func (d *descriptor) agrees(o *descriptor) bool {
	kind := d.head & maskKind
	if (d.head^o.head)&(maskKind|maskTag) != 0 || kind >= uint64(len(rules)) {
		return false
	}
	r := &rules[kind]
	return (d.head^o.head)&r.head == 0 && (!r.size || d.size == o.size) && (d.extra^o.extra)&r.extra == 0
}

// String describes the request in words.
func (d *descriptor) String() string {
	kind, op, dt := coll.Kind(d.head&0xff), reduce.Op(d.head>>8&0xff), tensor.DType(d.head>>16&0xff)
	if int(kind) >= len(rules) {
		return fmt.Sprintf("unknown operation %d", kind)
	}
	s := kind.String() + "("
	r := rules[kind]
	if r.head&maskOp != 0 && op.Valid() {
		s += op.String() + ", "
	}
	if r.head&maskDType != 0 {
		s += fmt.Sprintf("%v, %d bytes, ", dt, d.size)
	}
	if r.extra&maskRoot == maskRoot && r.extra == maskRoot {
		s += fmt.Sprintf("root %d, ", d.extra&maskRoot)
	}
	if h := d.extra >> 16; h != 0 {
		s += fmt.Sprintf("uneven counts #%04x, ", h&0xffff)
	}
	return fmt.Sprintf("%stag %d)", s, d.head>>32)
}

func mismatch(op string, a int, x *descriptor, b int, y *descriptor) error {
	return dist.Newf(op, dist.Mismatch, "rank %d called %v, rank %d called %v: all ranks must call the same operations in the same order",
		a, x, b, y)
}
