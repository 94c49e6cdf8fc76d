// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package nop reads and writes the part of the libnop encoding that TensorPipe's handshake and descriptors use:
// integers, strings, arrays, maps, structures, variants, binary vectors and optionals.
//
// Decoding is as strict as libnop's own: an integer may not be wider than the type it is read into, a structure must have
// exactly its number of fields, and nothing may follow the value. Every length is checked against the available bytes
// before memory is allocated. It does no I/O.
package nop

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/cohort-dist/cohort"
)

// The prefix bytes of libnop's format.
const (
	prefixU8     = 0x80
	prefixU16    = 0x81
	prefixU32    = 0x82
	prefixU64    = 0x83
	prefixI8     = 0x84
	prefixI16    = 0x85
	prefixI32    = 0x86
	prefixI64    = 0x87
	variant      = 0xb8
	structure    = 0xb9
	array        = 0xba
	mapping      = 0xbb
	binaryVector = 0xbc
	text         = 0xbd
	empty        = 0xbe
	negFixMin    = 0xc0
)

// AppendUint writes an unsigned integer in the shortest form.
func AppendUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, prefixU8, byte(v))
	case v <= math.MaxUint16:
		return binary.LittleEndian.AppendUint16(append(b, prefixU16), uint16(v))
	case v <= math.MaxUint32:
		return binary.LittleEndian.AppendUint32(append(b, prefixU32), uint32(v))
	default:
		return binary.LittleEndian.AppendUint64(append(b, prefixU64), v)
	}
}

// AppendInt writes a signed integer in the shortest form.
func AppendInt(b []byte, v int64) []byte {
	switch {
	case v >= -64 && v < 0x80:
		return append(b, byte(v)) //nolint:gosec // two's complement
	case v >= math.MinInt8 && v <= math.MaxInt8:
		return append(b, prefixI8, byte(v)) //nolint:gosec // two's complement
	case v >= math.MinInt16 && v <= math.MaxInt16:
		return binary.LittleEndian.AppendUint16(append(b, prefixI16), uint16(v)) //nolint:gosec // two's complement
	case v >= math.MinInt32 && v <= math.MaxInt32:
		return binary.LittleEndian.AppendUint32(append(b, prefixI32), uint32(v)) //nolint:gosec // two's complement
	default:
		return binary.LittleEndian.AppendUint64(append(b, prefixI64), uint64(v)) //nolint:gosec // two's complement
	}
}

// AppendString writes a string.
func AppendString(b []byte, s string) []byte {
	return append(AppendUint(append(b, text), uint64(len(s))), s...)
}

// AppendStruct opens a structure of n fields; the fields follow.
func AppendStruct(b []byte, n int) []byte { return appendHead(b, structure, n) }

// AppendArray opens an array of n elements; the elements follow.
func AppendArray(b []byte, n int) []byte { return appendHead(b, array, n) }

// AppendMap opens a map of n pairs; keys and values follow in turn.
func AppendMap(b []byte, n int) []byte { return appendHead(b, mapping, n) }

// AppendVariant opens a variant; the value of that alternative follows.
func AppendVariant(b []byte, index int) []byte {
	return AppendInt(append(b, variant), int64(index))
}

// AppendEmpty writes an optional without value.
func AppendEmpty(b []byte) []byte { return append(b, empty) }

// AppendUint64s writes a vector of 64-bit integers, which libnop stores as raw bytes.
func AppendUint64s(b []byte, values []uint64) []byte {
	b = AppendUint(append(b, binaryVector), uint64(len(values))*8)
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func appendHead(b []byte, prefix byte, n int) []byte {
	return AppendUint(append(b, prefix), uint64(n)) //nolint:gosec // callers pass len()
}

// Reader decodes one value from a byte slice. The first error sticks: later reads return zero values, and Err or Close
// reports it.
type Reader struct {
	data []byte
	pos  int
	err  error
}

// NewReader returns a Reader over data, which it does not copy.
func NewReader(data []byte) *Reader { return &Reader{data: data} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Close returns the first error, or one when bytes are left over.
func (r *Reader) Close() error {
	if r.err == nil && r.pos != len(r.data) {
		r.fail("%d bytes follow the value", len(r.data)-r.pos)
	}
	return r.err
}

// Fail records an error of the caller's own checks, with the position.
func (r *Reader) Fail(format string, args ...any) { r.fail(format, args...) }

func (r *Reader) fail(format string, args ...any) {
	if r.err == nil {
		e := cohort.Newf("nop: decode", cohort.Protocol, format, args...)
		e.Detail = "at byte " + strconv.Itoa(r.pos) + ": " + e.Detail
		r.err = e
	}
}

func (r *Reader) byte() byte {
	if r.err != nil {
		return 0
	}
	if r.pos >= len(r.data) {
		r.fail("the data ends early")
		return 0
	}
	c := r.data[r.pos]
	r.pos++
	return c
}

func (r *Reader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.data)-r.pos) { //nolint:gosec // lengths are not negative
		r.fail("a length of %d where %d bytes are left", n, len(r.data)-r.pos)
		return nil
	}
	b := r.data[r.pos : r.pos+int(n)] //nolint:gosec // bounded by len(data)
	r.pos += int(n)                   //nolint:gosec // bounded by len(data)
	return b
}

// Uint reads an unsigned integer of at most bits bits (8, 16, 32 or 64).
func (r *Reader) Uint(bits int) uint64 {
	c := r.byte()
	if r.err != nil {
		return 0
	}
	if c < 0x80 {
		return uint64(c)
	}
	if c < prefixU8 || c > prefixU64 {
		r.fail("prefix %#02x where an unsigned integer is expected", c)
		return 0
	}
	size := 1 << (c - prefixU8)
	if size*8 > bits {
		r.fail("an integer of %d bits where at most %d are allowed", size*8, bits)
		return 0
	}
	var v uint64
	for i, x := range r.take(uint64(size)) { //nolint:gosec // 1 to 8
		v |= uint64(x) << (8 * i)
	}
	return v
}

// Int reads a signed integer of at most bits bits.
func (r *Reader) Int(bits int) int64 {
	c := r.byte()
	if r.err != nil {
		return 0
	}
	if c < 0x80 || c >= negFixMin {
		return int64(int8(c)) //nolint:gosec // two's complement
	}
	if c < prefixI8 || c > prefixI64 {
		r.fail("prefix %#02x where a signed integer is expected", c)
		return 0
	}
	size := 1 << (c - prefixI8)
	if size*8 > bits {
		r.fail("an integer of %d bits where at most %d are allowed", size*8, bits)
		return 0
	}
	b := r.take(uint64(size)) //nolint:gosec // 1 to 8
	if r.err != nil {
		return 0
	}
	switch size {
	case 1:
		return int64(int8(b[0])) //nolint:gosec // two's complement
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b))) //nolint:gosec // two's complement
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b))) //nolint:gosec // two's complement
	default:
		return int64(binary.LittleEndian.Uint64(b)) //nolint:gosec // two's complement
	}
}

// String reads a string of at most limit bytes.
func (r *Reader) String(limit int) string {
	r.expect(text, "a string")
	n := r.Uint(64)
	if r.err == nil && n > uint64(limit) { //nolint:gosec // limits are constants
		r.fail("a string of %d bytes, the limit is %d", n, limit)
	}
	return string(r.take(n))
}

// Struct reads the head of a structure that must have n fields.
func (r *Reader) Struct(n int) {
	r.expect(structure, "a structure")
	if got := r.Uint(64); r.err == nil && got != uint64(n) { //nolint:gosec // n is a constant
		r.fail("a structure of %d fields, %d are expected", got, n)
	}
}

// Array reads the head of an array of at most limit elements.
func (r *Reader) Array(limit int) int { return r.head(array, "an array", limit) }

// Map reads the head of a map of at most limit pairs.
func (r *Reader) Map(limit int) int { return r.head(mapping, "a map", limit) }

// Variant reads the head of a variant with the given number of alternatives.
func (r *Reader) Variant(alternatives int) int {
	r.expect(variant, "a variant")
	index := r.Int(32)
	if r.err == nil && (index < 0 || index >= int64(alternatives)) {
		r.fail("alternative %d of a variant that has %d", index, alternatives)
	}
	return int(index)
}

// Empty consumes the mark of an absent optional value, if it is next.
func (r *Reader) Empty() bool {
	if r.err == nil && r.pos < len(r.data) && r.data[r.pos] == empty {
		r.pos++
		return true
	}
	return false
}

// Uint64s reads a binary vector of at most limit 64-bit integers.
func (r *Reader) Uint64s(limit int) []uint64 {
	r.expect(binaryVector, "a vector of integers")
	n := r.Uint(64)
	if r.err == nil && (n%8 != 0 || n/8 > uint64(limit)) { //nolint:gosec // limits are constants
		r.fail("a vector of %d bytes; whole 64-bit integers and at most %d of them are allowed", n, limit)
	}
	b := r.take(n)
	if r.err != nil {
		return nil
	}
	values := make([]uint64, len(b)/8)
	for i := range values {
		values[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return values
}

func (r *Reader) head(prefix byte, what string, limit int) int {
	r.expect(prefix, what)
	n := r.Uint(64)
	if r.err == nil && (n > uint64(limit) || n > uint64(len(r.data)-r.pos)) { //nolint:gosec // limits are constants
		r.fail("%s of %d elements, the limit is %d and %d bytes are left", what, n, limit, len(r.data)-r.pos)
	}
	if r.err != nil {
		return 0
	}
	return int(n) //nolint:gosec // at most limit
}

func (r *Reader) expect(prefix byte, what string) {
	if c := r.byte(); r.err == nil && c != prefix {
		r.pos--
		r.fail("prefix %#02x where %s is expected", c, what)
	}
}
