// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import "strconv"

// DType is the element type of a tensor. It corresponds to torch.dtype.
type DType uint8

// The element types. Their numbers are PyTorch's ScalarType codes, which appear on its wires. PyTorch has had the last seven
// since 2.1 and 2.3; they, and Complex32, can be sent, read and written, but groups do not reduce them.
const (
	Uint8      DType = 0
	Int8       DType = 1
	Int16      DType = 2
	Int32      DType = 3
	Int64      DType = 4
	Float16    DType = 5
	Float32    DType = 6
	Float64    DType = 7
	Complex32  DType = 8 // two halves
	Complex64  DType = 9
	Complex128 DType = 10
	Bool       DType = 11
	BFloat16   DType = 15

	Float8E5M2     DType = 23
	Float8E4M3FN   DType = 24
	Float8E5M2FNUZ DType = 25
	Float8E4M3FNUZ DType = 26
	Uint16         DType = 27
	Uint32         DType = 28
	Uint64         DType = 29
)

// dtypeInfo has an entry for each number that a DType can be; those of invalid types are empty.
var dtypeInfo = [1 << 8]struct {
	name string
	size int
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8}, Complex64: {"complex64", 8},
	Complex32: {"complex32", 4}, Complex128: {"complex128", 16}, Bool: {"bool", 1}, BFloat16: {"bfloat16", 2},
	Float8E5M2: {"float8_e5m2", 1}, Float8E4M3FN: {"float8_e4m3fn", 1}, Float8E5M2FNUZ: {"float8_e5m2fnuz", 1},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 1}, Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
}

// Valid reports whether d is one of the element types above.
func (d DType) Valid() bool { return dtypeInfo[d].size > 0 }

// Size returns the bytes of one element, or 0 for an invalid type.
func (d DType) Size() int { return dtypeInfo[d].size }

// String returns PyTorch's name of the type, without "torch.".
func (d DType) String() string {
	if name := dtypeInfo[d].name; name != "" {
		return name
	}
	return "dtype(" + strconv.Itoa(int(d)) + ")"
}
