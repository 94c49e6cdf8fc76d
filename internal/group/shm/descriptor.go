// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"unsafe"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// descriptor is what a rank was asked to do, in 24 bytes, so that it fits one cache line with the step.
type descriptor struct {
	head  uint64 // kind, operator, type, flags: a byte each; then the tag
	size  uint64 // bytes of the rank's own buffer, as sizeOf defines it; or the data itself, see wordAt
	extra uint64 // root in the low 16 bits, above it a hash: of the counts where they are uneven, else of the shape
}

const (
	flagInline = 1 << 24 // the data is in the slot, or in the descriptor: see wordAt
	flagDirect = 1 << 25 // the buffer lies in the segment, at the offset in the first word of the send table
	flagCounts = 1 << 26 // the rank gave counts
	flagUneven = 1 << 27 // the blocks of a gather or scatter may differ in size

	// What a rank shows to all others, if it is up to wordRoom bytes, is where the size would be, and the size is in four bits from
	// here on, so that the others find everything in one cache line.
	wordAt   = 28
	wordRoom = 8
	maskWord = 0xf << wordAt

	maskKind  = 0xff
	maskOp    = 0xff << 8
	maskDType = 0xff << 16
	maskTag   = 0xffffffff << 32
	maskRoot  = 0xffff
	maskHash  = ^uint64(maskRoot)
	bitCounts = 1 << 63 // the hash is one of uneven counts
)

// rule lists what must agree between the ranks of a kind beside the kind, the tag and uneven counts.
type rule struct {
	head  uint64
	size  bool
	root  bool
	shape bool // of all ranks; in gather and scatter it is compared with the root's
}

var rules = [...]rule{
	collective.AllReduce:     {head: maskOp | maskDType, size: true, shape: true},
	collective.Broadcast:     {head: maskDType, size: true, root: true, shape: true},
	collective.Reduce:        {head: maskOp | maskDType, size: true, root: true, shape: true},
	collective.AllGather:     {head: maskDType, size: true, shape: true},
	collective.AllGatherV:    {head: maskDType},
	collective.Gather:        {head: maskDType | flagUneven, root: true},
	collective.Scatter:       {head: maskDType | flagUneven, root: true},
	collective.ReduceScatter: {head: maskOp | maskDType, size: true, shape: true},
	collective.AllToAll:      {head: maskDType},
	collective.Barrier:       {},
}

// describe makes the descriptor of a request; word is the data that it carries, if any.
func describe(r *collective.Request, size int, flags uint64, word []byte) descriptor {
	d := descriptor{size: uint64(size)} //nolint:gosec // a length
	d.head = uint64(r.Kind) | uint64(r.Op)<<8 | uint64(r.DType)<<16 | flags | uint64(r.Tag)<<32
	if r.Uneven {
		d.head |= flagUneven
	}
	if n := len(word); n > 0 {
		d.head |= uint64(n) << wordAt
		copy(d.word(n), word)
	}
	d.extra = uint64(r.Root) & maskRoot //nolint:gosec // in range: validated
	hash := uint64(0)
	switch r.Kind {
	case collective.AllGatherV:
		hash = hashCounts(r.OutCounts)
	case collective.ReduceScatter:
		hash = hashCounts(r.InCounts)
	default:
	}
	if hash == 0 {
		hash = r.Shape.Hash() << 16 // 47 bits
	}
	d.extra |= hash & maskHash
	return d
}

// word is the data of n bytes in a descriptor.
func (d *descriptor) word(n int) []byte { return (*[wordRoom]byte)(unsafe.Pointer(&d.size))[:n] } //nolint:gosec // eight bytes

// bytes is the size of the rank's own buffer.
func (d *descriptor) bytes() uint64 {
	if n := d.head & maskWord >> wordAt; n != 0 {
		return n
	}
	return d.size
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
	return h | bitCounts
}

// agrees reports whether two ranks were asked to do the same.
func (d *descriptor) agrees(o *descriptor) bool {
	kind := d.head & maskKind
	if (d.head^o.head)&(maskKind|maskTag) != 0 || kind >= uint64(len(rules)) {
		return false
	}
	r := &rules[kind]
	switch {
	case (d.head^o.head)&r.head != 0, r.size && d.bytes() != o.bytes(), r.root && (d.extra^o.extra)&maskRoot != 0:
		return false
	case (d.extra|o.extra)&bitCounts != 0:
		return (d.extra^o.extra)&maskHash == 0
	}
	return !r.shape || d.sameShape(o)
}

// sameShape reports whether two shapes are equal, or one has no opinion.
func (d *descriptor) sameShape(o *descriptor) bool {
	a, b := d.extra&maskHash, o.extra&maskHash
	return a == b || a == 0 || b == 0
}

// rooted reports whether shapes are compared with the root's only.
func (d *descriptor) rooted() bool {
	k := collective.Kind(d.head & maskKind)
	return k == collective.Gather || k == collective.Scatter
}

// words describes the request of a rank with this shape.
func (d *descriptor) words(shape collective.Shape) string {
	kind, op, dt := collective.Kind(d.head&0xff), reduce.Op(d.head>>8&0xff), tensor.DType(d.head>>16&0xff)
	if int(kind) >= len(rules) {
		return fmt.Sprintf("unknown operation %d", kind)
	}
	s := kind.String() + "("
	r := rules[kind]
	if r.head&maskOp != 0 && op.Valid() {
		s += op.String() + ", "
	}
	if r.head&maskDType != 0 {
		s += fmt.Sprintf("%v, ", dt)
		if d.extra&bitCounts == 0 && d.extra&maskHash != 0 && shape.Hash()<<16 == d.extra&maskHash {
			s += "shape " + shape.String() + ", "
		} else {
			s += fmt.Sprintf("%d bytes, ", d.bytes())
		}
	}
	if d.head&flagUneven != 0 {
		s += "uneven, "
	}
	if r.root {
		s += fmt.Sprintf("root %d, ", d.extra&maskRoot)
	}
	if d.extra&bitCounts != 0 {
		s += fmt.Sprintf("uneven counts #%04x, ", d.extra>>16&0xffff)
	}
	return fmt.Sprintf("%stag %d)", s, d.head>>32)
}

// String describes the request where the shape is not at hand.
func (d *descriptor) String() string { return d.words(collective.Shape{}) }
