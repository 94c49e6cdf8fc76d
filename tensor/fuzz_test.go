// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"encoding/binary"
	"testing"
)

// FuzzFromStorage builds tensors from arbitrary geometry: what is accepted can be read, copied and printed.
func FuzzFromStorage(f *testing.F) {
	f.Add(uint8(6), uint8(64), int64(0), []byte{
		2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
		0, 0, 0, 0,
	})
	f.Add(uint8(4), uint8(8), int64(-1), []byte{})
	f.Fuzz(func(t *testing.T, dt, size uint8, offset int64, raw []byte) {
		if len(raw) > 64 {
			return
		}
		var numbers []int
		for ; len(raw) >= 8; raw = raw[8:] {
			numbers = append(numbers, int(binary.LittleEndian.Uint64(raw)))
		}
		shape, strides := numbers[:len(numbers)/2], numbers[len(numbers)/2:]
		s, err := NewStorage(int(size))
		if err != nil {
			t.Fatal(err)
		}
		x, err := FromStorage(s, DType(dt), shape, strides, int(offset))
		if err != nil || x.Numel() > 1<<16 {
			return
		}
		_ = x.String()
		c, err := x.Clone()
		if err != nil || !SameBits(c, x) {
			t.Fatalf("%v %v: %v", shape, strides, err)
		}
		if y, err := x.Reshape(-1); x.Numel() > 0 && (err != nil || y.Numel() != x.Numel()) {
			t.Fatalf("%v %v: reshape: %v", shape, strides, err)
		}
	})
}
