// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// impl writes the part of a tensor that follows its reference count and other fields of some size.
func impl(before int, kind uint16, count uint64, sizes ...uint64) []byte {
	b := make([]byte, implSize)
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(b[before+off:], v) }
	put(0, uint64(len(sizes)))
	stride := uint64(1)
	for i, size := range slices.Backward(sizes) {
		put(dimsSizes+8*i, size)
		put(dimsStrides+8*i, stride)
		stride *= size
	}
	put(dimsCount, count)
	binary.LittleEndian.PutUint16(b[before+dimsType:], kind)
	return b
}

// TestTensor: the shape of a tensor is found wherever its version of PyTorch has it, and only if its parts agree.
func TestTensor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		impl []byte
		want string
	}{
		{impl(64, 6, 8, 4, 2), "float32[4,2]"},
		{impl(88, 4, 5, 5), "int64[5]"},
		{impl(72, 15, 24, 1, 2, 3, 4, 1), "bfloat16[1,2,3,4,1]"},
		{impl(64, 6, 9, 4, 2), ""},
		{impl(64, 200, 8, 4, 2), ""},
		{impl(64, 6, 1), ""},
		{impl(64, 6, 0, 0), ""},
		{impl(64, 6, 1<<62, 1<<31, 1<<31), ""},
	} {
		for _, at := range []uint64{16, 24} { // a reference alone, or after a flag
			memory := make([]byte, 1<<14)
			binary.LittleEndian.PutUint64(memory[0x100+at:], 0x2000)
			copy(memory[0x2000:], c.impl)
			w := &walker{mem: bytes.NewReader(memory)}
			if got := w.tensor(0x100); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 { // whatever is there
		memory := make([]byte, 1<<14)
		for i := 0; i < len(memory); i += 8 {
			binary.LittleEndian.PutUint64(memory[i:], r.Uint64N(1<<r.UintN(14)))
		}
		_ = (&walker{mem: bytes.NewReader(memory)}).tensor(r.Uint64N(1 << 14))
	}
}
