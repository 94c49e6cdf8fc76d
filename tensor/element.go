// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"encoding/binary"
	"math"
	"reflect"

	"github.com/cohort-dist/cohort"
)

// Elements are read and written byte by byte here, so that memory of any alignment works.

// load returns the element with storage index i as the Go value of its type.
func (t *Tensor) load(i int) any {
	size := t.dtype.Size()
	b := t.storage.data[i*size : (i+1)*size]
	le := binary.NativeEndian
	switch t.dtype {
	case Uint8:
		return b[0]
	case Int8:
		return int8(b[0]) //nolint:gosec // the same bits
	case Bool:
		return b[0] != 0
	case Int16:
		return int16(le.Uint16(b)) //nolint:gosec // the same bits
	case Float16:
		return F16(le.Uint16(b))
	case BFloat16:
		return BF16(le.Uint16(b))
	case Int32:
		return int32(le.Uint32(b)) //nolint:gosec // the same bits
	case Int64:
		return int64(le.Uint64(b)) //nolint:gosec // the same bits
	case Float32:
		return math.Float32frombits(le.Uint32(b))
	case Float64:
		return math.Float64frombits(le.Uint64(b))
	case Uint16:
		return le.Uint16(b)
	case Uint32:
		return le.Uint32(b)
	case Uint64:
		return le.Uint64(b)
	case Float8E5M2, Float8E4M3FN, Float8E5M2FNUZ, Float8E4M3FNUZ:
		return float8s[t.dtype].value(b[0])
	case Complex32:
		return complex(F16(le.Uint16(b)).Float32(), F16(le.Uint16(b[2:])).Float32())
	case Complex64:
		return complex(math.Float32frombits(le.Uint32(b)), math.Float32frombits(le.Uint32(b[4:])))
	case Complex128:
		return complex(math.Float64frombits(le.Uint64(b)), math.Float64frombits(le.Uint64(b[8:])))
	}
	return nil
}

// store writes v, converted to the element type, at storage index i.
func (t *Tensor) store(i int, v any) error {
	size := t.dtype.Size()
	b := t.storage.data[i*size : (i+1)*size]
	if t.dtype.Complex() {
		return t.storeComplex(b, v)
	}
	if n, ok := v.(uint64); ok && t.dtype == Uint64 {
		binary.NativeEndian.PutUint64(b, n)
		return nil
	}
	if n, ok := asInt(v); ok && !t.dtype.Floating() {
		return t.storeInt(b, n)
	}
	f, ok := asFloat(v)
	if !ok {
		return cohort.Newf("tensor: set", cohort.InvalidArgument, "a %T is not a value for %v", v, t.dtype)
	}
	le := binary.NativeEndian
	switch t.dtype {
	case Float32:
		if x, same := v.(float32); same { // the conversion below would make a signalling NaN quiet
			le.PutUint32(b, math.Float32bits(x))
			return nil
		}
		le.PutUint32(b, math.Float32bits(float32(f)))
	case Float64:
		le.PutUint64(b, math.Float64bits(f))
	case Float8E5M2, Float8E4M3FN, Float8E5M2FNUZ, Float8E4M3FNUZ:
		b[0] = float8s[t.dtype].round(f)
	case Float16:
		if x, same := v.(F16); same {
			le.PutUint16(b, uint16(x))
			return nil
		}
		le.PutUint16(b, uint16(ToF16(float32(f))))
	case BFloat16:
		if x, same := v.(BF16); same {
			le.PutUint16(b, uint16(x))
			return nil
		}
		le.PutUint16(b, uint16(ToBF16(float32(f))))
	default:
		if f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return cohort.Newf("tensor: set", cohort.InvalidArgument, "%v is not a whole number for %v", f, t.dtype)
		}
		return t.storeInt(b, int64(f))
	}
	return nil
}

func (t *Tensor) storeInt(b []byte, n int64) error {
	lo, hi := t.dtype.intRange()
	if n < lo || n > hi {
		return cohort.Newf("tensor: set", cohort.InvalidArgument, "%d is out of range for %v", n, t.dtype)
	}
	le := binary.NativeEndian
	switch len(b) {
	case 1:
		b[0] = byte(n) //nolint:gosec // the range was checked
	case 2:
		le.PutUint16(b, uint16(n)) //nolint:gosec // the range was checked
	case 4:
		le.PutUint32(b, uint32(n)) //nolint:gosec // the range was checked
	default:
		le.PutUint64(b, uint64(n)) //nolint:gosec // the range was checked
	}
	return nil
}

func (t *Tensor) storeComplex(b []byte, v any) error {
	var c complex128
	switch x := v.(type) {
	case complex64:
		c = complex128(x)
	case complex128:
		c = x
	default:
		f, ok := asFloat(v)
		if !ok {
			return cohort.Newf("tensor: set", cohort.InvalidArgument, "a %T is not a value for %v", v, t.dtype)
		}
		c = complex(f, 0)
	}
	le := binary.NativeEndian
	if t.dtype == Complex32 {
		le.PutUint16(b, uint16(ToF16(float32(real(c)))))
		le.PutUint16(b[2:], uint16(ToF16(float32(imag(c)))))
		return nil
	}
	if t.dtype == Complex64 {
		le.PutUint32(b, math.Float32bits(float32(real(c))))
		le.PutUint32(b[4:], math.Float32bits(float32(imag(c))))
		return nil
	}
	le.PutUint64(b, math.Float64bits(real(c)))
	le.PutUint64(b[8:], math.Float64bits(imag(c)))
	return nil
}

// Floating reports whether d is a real floating-point type. It corresponds to torch.dtype.is_floating_point.
func (d DType) Floating() bool {
	return d == Float16 || d == BFloat16 || d == Float32 || d == Float64 || d >= Float8E5M2 && d <= Float8E4M3FNUZ
}

// Complex reports whether d is a complex type. It corresponds to torch.dtype.is_complex.
func (d DType) Complex() bool { return d == Complex32 || d == Complex64 || d == Complex128 }

func (d DType) intRange() (lo, hi int64) {
	switch d {
	case Bool:
		return 0, 1
	case Uint8:
		return 0, math.MaxUint8
	case Int8:
		return math.MinInt8, math.MaxInt8
	case Int16:
		return math.MinInt16, math.MaxInt16
	case Int32:
		return math.MinInt32, math.MaxInt32
	case Uint16:
		return 0, math.MaxUint16
	case Uint32:
		return 0, math.MaxUint32
	case Uint64:
		return 0, math.MaxInt64
	default:
		return math.MinInt64, math.MaxInt64
	}
}

func asInt(v any) (int64, bool) {
	switch x := v.(type) {
	case bool:
		if x {
			return 1, true
		}
		return 0, true
	case uint8:
		return int64(x), true
	case int8:
		return int64(x), true
	case int16:
		return int64(x), true
	case int32:
		return int64(x), true
	case int64:
		return x, true
	case int:
		return int64(x), true
	case uint16:
		return int64(x), true
	case uint32:
		return int64(x), true
	case uint64:
		return int64(x), x <= math.MaxInt64 //nolint:gosec // reported
	}
	if n := reflect.ValueOf(v); n.CanInt() { // a named type, such as a rank
		return n.Int(), true
	}
	return 0, false
}

func asFloat(v any) (float64, bool) {
	switch x := v.(type) {
	case float32:
		return float64(x), true
	case float64:
		return x, true
	case F16:
		return float64(x.Float32()), true
	case BF16:
		return float64(x.Float32()), true
	case uint64:
		return float64(x), true
	}
	n, ok := asInt(v)
	return float64(n), ok
}
