// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// A tensor of PyTorch is a Python object with a reference to c10::TensorImpl. Where that has its parts differs from version to version,
// but they follow one another: the number of dimensions, room for five sizes and five strides, the place of the first element, the
// number of elements and the type. So they are looked for, and taken where they agree with each other.
const (
	implSize  = 320 // of TensorImpl, or more
	implFirst = 16  // its reference count is before that
	maxDims   = 5   // that have room there
	maxNumber = 1 << 40

	dimsSizes, dimsStrides, dimsOffset, dimsCount, dimsType, dimsEnd = 8, 8 + 8*maxDims, 8 + 16*maxDims, 16 + 16*maxDims, 24 + 16*maxDims, 32 + 16*maxDims
)

// scalarTypes are the names of c10::ScalarType.
var scalarTypes = []string{
	"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool",
	"qint8", "quint8", "qint32", "bfloat16",
}

// tensor returns the type and the shape of a tensor: "float32[4,2]"; "" if they cannot be told.
func (w *walker) tensor(obj uint64) string {
	impl := make([]byte, implSize)
	// The reference is the first field, or follows a flag that says whose it is.
	for _, at := range []uint64{w.word(obj + 16), w.word(obj + 24)} {
		if at < 1<<12 || at%8 != 0 || w.read(impl, at) != nil {
			continue
		}
		for from := implFirst; from+dimsEnd <= len(impl); from += 8 {
			if text := shape(impl[from:]); text != "" {
				return text
			}
		}
	}
	return ""
}

// shape reads the type and the shape from where they may be, "" if they are not there.
func shape(b []byte) string {
	at := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	dims, kind := at(0), int(binary.LittleEndian.Uint16(b[dimsType:]))
	if dims == 0 || dims > maxDims || at(dimsOffset) > maxNumber || kind >= len(scalarTypes) {
		return ""
	}
	sizes, count := make([]string, dims), uint64(1)
	for i := range sizes {
		size, stride := at(dimsSizes+8*i), at(dimsStrides+8*i)
		if size > maxNumber || stride > maxNumber || size > 0 && count > maxNumber/size {
			return ""
		}
		sizes[i] = strconv.FormatUint(size, 10)
		count *= size
	}
	if count == 0 || count != at(dimsCount) {
		return ""
	}
	return scalarTypes[kind] + "[" + strings.Join(sizes, ",") + "]"
}
