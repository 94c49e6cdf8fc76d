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

// Shape describes the shape of a tensor in 16 bytes, so that every message of a collective can carry it and two ranks can
// compare theirs: the sizes themselves where they fit, which is nearly always, else their number and a hash. The zero
// value has no opinion.
type Shape struct{ lo, hi uint64 }

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

// Words returns the shape as two words, and ShapeFrom puts them together again.
func (s Shape) Words() (lo, hi uint64) { return s.lo, s.hi }

// ShapeFrom is the inverse of Words. Any two words are a shape; one that no tensor has is only printed oddly.
func ShapeFrom(lo, hi uint64) Shape { return Shape{lo, hi} }

// Known reports whether the shape has an opinion.
func (s Shape) Known() bool { return s != Shape{} }

// Hash folds the shape into 47 bits, zero only for the zero value.
func (s Shape) Hash() uint64 {
	if !s.Known() {
		return 0
	}
	h := (s.lo ^ s.hi*0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd
	h ^= h >> 29
	h *= 0xc4ceb9fe1a85ec53
	return max(h>>17, 1)
}

// String writes the shape as PyTorch does, as far as it is known.
func (s Shape) String() string {
	if !s.Known() {
		return "[?]"
	}
	if s.lo&0xff == shapeHashed {
		return fmt.Sprintf("[%d sizes #%08x]", s.lo>>8&0xffffffff, s.hi&0xffffffff)
	}
	var room [16]byte
	binary.LittleEndian.PutUint64(room[:], s.lo)
	binary.LittleEndian.PutUint64(room[8:], s.hi)
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
