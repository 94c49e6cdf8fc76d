// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import "unsafe"

// runPortable runs a portable kernel, through aligned blocks when an operand is not aligned to its element: not every
// processor reads unaligned elements.
func runPortable(k kernel, dst, a, b unsafe.Pointer, n int, size uintptr) {
	if (uintptr(dst)|uintptr(a)|uintptr(b))&(min(size, 8)-1) == 0 {
		k(dst, a, b, n)
		return
	}
	const words = 256
	var x, y [words]uint64
	xs, ys := unsafe.Slice((*byte)(unsafe.Pointer(&x)), words*8), unsafe.Slice((*byte)(unsafe.Pointer(&y)), words*8) //nolint:gosec // elements of any type behind bytes; lengths are checked
	for left := uintptr(n) * size; left > 0; {
		m := min(left, words*8)
		copy(xs, unsafe.Slice((*byte)(a), m))                                      //nolint:gosec // elements of any type behind bytes; lengths are checked
		copy(ys, unsafe.Slice((*byte)(b), m))                                      //nolint:gosec // elements of any type behind bytes; lengths are checked
		k(unsafe.Pointer(&x), unsafe.Pointer(&x), unsafe.Pointer(&y), int(m/size)) //nolint:gosec // elements of any type behind bytes; lengths are checked
		copy(unsafe.Slice((*byte)(dst), m), xs)                                    //nolint:gosec // elements of any type behind bytes; lengths are checked
		if left -= m; left == 0 {
			return // a pointer behind the end would keep a neighbour alive
		}
		dst, a, b = unsafe.Add(dst, m), unsafe.Add(a, m), unsafe.Add(b, m)
	}
}
