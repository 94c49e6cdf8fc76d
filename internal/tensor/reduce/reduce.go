// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package reduce combines buffers element by element, with gloo's semantics.
package reduce

import (
	"fmt"
	"strconv"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// Op is a reduction operator.
type Op uint8

// The operators. Avg is a sum that is divided by the number of ranks at the end, PremulSum one of elements that were multiplied
// by a factor before.
const (
	Sum Op = iota
	Product
	Min
	Max
	And
	Or
	Xor
	Avg
	PremulSum
)

// String returns the operator's name as PyTorch spells it.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "reduce_op(" + strconv.Itoa(int(o)) + ")"
}

var opNames = [...]string{"sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum"}

// Valid reports whether o is one of the operators above.
func (o Op) Valid() bool { return int(o) < len(opNames) }

// numOps is the number of operators.
const numOps = int(PremulSum) + 1

// kernel combines n elements: dst[i] = op(a[i], b[i]). dst may be a or b; any other overlap is the caller's mistake.
type kernel func(dst, a, b unsafe.Pointer, n int)

// Supported reports whether op is defined for dt: and, or and xor only for integers and bool, min and max for everything
// that has an order. It says what Go ranks can do; what a PyTorch peer can do is less.
func Supported(dt tensor.DType, op Op) bool {
	return int(dt) < len(portable) && int(op) < numOps && portable[dt][kernelOf(op)] != nil
}

// Carries reports whether groups know an element type at all.
func Carries(dt tensor.DType) bool {
	return int(dt) < len(portable) && portable[dt][Sum] != nil
}

// kernelOf is the operator that runs between two ranks: an average is a sum until [Divide], a premultiplied sum one after [Scale].
func kernelOf(op Op) Op {
	if op == Avg || op == PremulSum {
		return Sum
	}
	return op
}

// Into combines src into dst: dst[i] = op(dst[i], src[i]). The buffers have the same length, a multiple of the element
// size; they may have any alignment and must not overlap. It panics when the operator is not [Supported] or the lengths
// differ, since both are checked before data moves. Avg adds; [Divide] finishes it.
func Into(dst, src []byte, dt tensor.DType, op Op) { Combine(dst, dst, src, dt, op) }

// Combine is the form with three operands: dst[i] = op(a[i], b[i]). dst may be a or b. The order of the operands
// matters: min and max keep a where neither is better, so NaN and the sign of zero depend on it, as with gloo.
func Combine(dst, a, b []byte, dt tensor.DType, op Op) {
	check(dst, a, b, dt, op)
	if len(dst) == 0 {
		return
	}
	n := len(dst) / dt.Size()
	//nolint:gosec // elements of any type behind bytes; lengths are checked
	pd, pa, pb := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(a)), unsafe.Pointer(unsafe.SliceData(b))
	combine(pd, pa, pb, n, dt, kernelOf(op))
}

func check(dst, a, b []byte, dt tensor.DType, op Op) {
	if len(a) != len(dst) || len(b) != len(dst) {
		panic(fmt.Sprintf("reduce: buffers of %d, %d and %d bytes", len(dst), len(a), len(b)))
	}
	if !Supported(dt, op) {
		panic(fmt.Sprintf("reduce: %s of %s is not defined", op, dt))
	}
	if len(dst)%dt.Size() != 0 {
		panic(fmt.Sprintf("reduce: %d bytes are not a whole number of %s elements", len(dst), dt))
	}
}

// Many combines several buffers from left to right in one call: dst = op(...op(op(srcs[0], srcs[1]), srcs[2])..., last).
// dst may be one of srcs only when it is srcs[0] or srcs[1].
func Many(dst []byte, srcs [][]byte, dt tensor.DType, op Op) {
	switch len(srcs) {
	case 0:
		panic("reduce: no operands")
	case 1:
		copy(dst, srcs[0])
		return
	}
	// A block of dst stays in the first-level cache while all sources pass over it.
	const piece = 8 << 10
	for from := 0; from < len(dst); from += piece {
		to := min(from+piece, len(dst))
		Combine(dst[from:to], srcs[0][from:to], srcs[1][from:to], dt, op)
		for _, s := range srcs[2:] {
			Combine(dst[from:to], dst[from:to], s[from:to], dt, op)
		}
	}
}

// runPortable runs a portable kernel, through aligned blocks when an operand is not aligned to its element: not every
// processor reads unaligned elements.
func runPortable(k kernel, dst, a, b unsafe.Pointer, n int, size uintptr) {
	if (uintptr(dst)|uintptr(a)|uintptr(b))&(min(size, 8)-1) == 0 {
		k(dst, a, b, n)
		return
	}
	const words = 256
	var x, y [words]uint64
	//nolint:gosec // elements of any type behind bytes; lengths are checked
	xs, ys := unsafe.Slice((*byte)(unsafe.Pointer(&x)), words*8), unsafe.Slice((*byte)(unsafe.Pointer(&y)), words*8)
	for left := uintptr(n) * size; left > 0; {
		m := min(left, words*8)
		//nolint:gosec // elements of any type behind bytes; lengths are checked
		copy(xs, unsafe.Slice((*byte)(a), m))
		//nolint:gosec // elements of any type behind bytes; lengths are checked
		copy(ys, unsafe.Slice((*byte)(b), m))
		//nolint:gosec // elements of any type behind bytes; lengths are checked
		k(unsafe.Pointer(&x), unsafe.Pointer(&x), unsafe.Pointer(&y), int(m/size))
		//nolint:gosec // elements of any type behind bytes; lengths are checked
		copy(unsafe.Slice((*byte)(dst), m), xs)
		if left -= m; left == 0 {
			return // a pointer behind the end would keep a neighbour alive
		}
		dst, a, b = unsafe.Add(dst, m), unsafe.Add(a, m), unsafe.Add(b, m)
	}
}
