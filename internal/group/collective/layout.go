// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/tensor"
)

// Counts are the bytes that each of n ranks has in a buffer, or nil where all have the same.

// BlockSize is the length of rank i's block in a buffer of total bytes.
func BlockSize(total int, counts []int, n, i int) int {
	if counts == nil {
		return total / n
	}
	return counts[i]
}

// Block is rank i's block of buf.
func Block(buf []byte, counts []int, n, i int) []byte {
	if counts == nil {
		size := len(buf) / n
		return buf[i*size : (i+1)*size]
	}
	from := 0
	for _, c := range counts[:i] {
		from += c
	}
	return buf[from : from+counts[i]]
}

// fits reports whether a buffer of total bytes is exactly as long as counts say, or divides evenly.
func fits(total int, counts []int, n int) bool {
	if counts == nil {
		return total%n == 0
	}
	if len(counts) != n {
		return false
	}
	for _, c := range counts {
		if c < 0 || c > total {
			return false
		}
		total -= c
	}
	return total == 0
}

// Even reports whether all counts are the same.
func Even(counts []int) bool {
	for _, c := range counts {
		if c != counts[0] {
			return false
		}
	}
	return true
}

// Parts is a buffer of whole elements that is cut into one contiguous part per rank, as evenly as possible.
type Parts struct {
	Total, Elem, Ranks int
}

// Of returns the part of rank i: elements are dealt out evenly, the first ranks take one more.
func (p Parts) Of(i int) (from, to int) {
	count := p.Total / p.Elem
	each, rest := count/p.Ranks, count%p.Ranks
	from = i*each + min(i, rest)
	to = from + each
	if i < rest {
		to++
	}
	return from * p.Elem, to * p.Elem
}

// Longest returns the size of the longest part.
func (p Parts) Longest() int {
	from, to := p.Of(0)
	return to - from
}

// Segment returns segment s of the range [from, to) in pieces of size bytes; it is empty past the end.
func Segment(from, to, size, s int) (int, int) {
	a := min(from+s*size, to)
	return a, min(a+size, to)
}

const (
	// copyPiece is below the size from which Go's copy writes past the processor's cache (1 MiB on amd64).
	copyPiece = 512 << 10
	// copyCached is the largest copy that is meant to stay in the cache: what is larger would only displace what is in use.
	copyCached = 8 << 20
)

// Copy copies src to dst as copy does. A copy of a few MiB stays in the processor's cache, where the message that is made of it,
// or the caller that waits for it, finds it.
func Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n > copyCached {
		return copy(dst, src)
	}
	for at := 0; at < n; at += copyPiece {
		copy(dst[at:min(at+copyPiece, n)], src[at:])
	}
	return n
}

// Shape describes the shape of a tensor in 16 bytes, so that every message of a collective can carry it and two ranks can
// compare theirs: the sizes themselves where they fit, which is nearly always, else their number and a hash. The zero
// value has no opinion. Any two words are a shape; one that no tensor has is only printed oddly.
type Shape struct{ Lo, Hi uint64 }

const (
	shapeRoom   = 15
	shapeHashed = 255 // the first byte of a shape that is too long to be written out
)

// ShapeOf describes the shape of t. It takes no memory.
func ShapeOf(t *tensor.Tensor) Shape {
	var room [16 + binary.MaxVarintLen64]byte
	at, dims := 1, t.Dims()
	for i := 0; i < dims && at <= 1+shapeRoom; i++ {
		at += binary.PutUvarint(room[at:], uint64(t.Dim(i))) //nolint:gosec // a size is not negative
	}
	if at > 1+shapeRoom || dims >= shapeHashed-1 {
		return hashedShape(t)
	}
	room[0] = byte(1 + dims) //nolint:gosec // less than shapeHashed
	return Shape{binary.LittleEndian.Uint64(room[:]), binary.LittleEndian.Uint64(room[8:])}
}

func hashedShape(t *tensor.Tensor) Shape {
	h := uint64(14695981039346656037)
	for i := range t.Dims() {
		d := uint64(t.Dim(i)) //nolint:gosec // a size is not negative
		for shift := 0; shift < 64; shift += 8 {
			h = (h ^ d>>shift&0xff) * 1099511628211
		}
	}
	return Shape{shapeHashed | uint64(t.Dims())<<8, h} //nolint:gosec // not negative
}

// Known reports whether the shape has an opinion.
func (s Shape) Known() bool { return s != Shape{} }

// Hash folds the shape into 47 bits, zero only for the zero value.
func (s Shape) Hash() uint64 {
	if !s.Known() {
		return 0
	}
	h := (s.Lo ^ s.Hi*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	h ^= h >> 29
	h *= 0xc4ceb9fe1a85ec53
	return max(h>>17, 1)
}

// String writes the shape as PyTorch does, as far as it is known.
func (s Shape) String() string {
	if !s.Known() {
		return "[?]"
	}
	if s.Lo&0xff == shapeHashed {
		return fmt.Sprintf("[%d sizes #%08x]", s.Lo>>8&0xffffffff, s.Hi&0xffffffff)
	}
	var room [16]byte
	binary.LittleEndian.PutUint64(room[:], s.Lo)
	binary.LittleEndian.PutUint64(room[8:], s.Hi)
	var b strings.Builder
	b.WriteByte('[')
	rest := room[1:]
	for i := range int(room[0]) - 1 {
		d, n := binary.Uvarint(rest)
		if n <= 0 {
			b.WriteString(" ?")
			break
		}
		rest = rest[n:]
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatUint(d, 10))
	}
	b.WriteByte(']')
	return b.String()
}

// What ranks must agree on beside the bytes follows PyTorch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL), which compares one
// tensor per operation: the one that all ranks have in common. Where PyTorch compares nothing (coalesced tensors,
// all-to-all, messages) shapes are free here too. So they are in the operations on flat buffers, whose shapes have no
// meaning of their own, unless the group was made with WithDetail.

// about takes the shape of t as the one that all ranks must have.
func (c *Call) about(t *tensor.Tensor) {
	c.Subject[0] = t
	c.Request.Shape = ShapeOf(t)
}

// flat names the tensors of an operation on flat buffers.
func (c *Call) flat(g *Group, ts ...*tensor.Tensor) {
	copy(c.Subject[:], ts)
	if g.Detail {
		c.Request.Shape = ShapeOf(ts[0])
	}
}

// blocks takes the shape that the blocks of all ranks have at the root; it has none to compare when they differ.
func (c *Call) blocks(ts []*tensor.Tensor) {
	c.Request.Shape = Shape{}
	if sameShape(ts) {
		c.Request.Shape = ShapeOf(ts[0])
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
