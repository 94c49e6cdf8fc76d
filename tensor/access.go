// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"bytes"
	"math"
	"math/cmplx"
	"slices"
	"unsafe"

	"github.com/cohort-dist/cohort"
)

// index returns the storage index of an element.
func (t *Tensor) index(op string, idx []int) (int, error) {
	if t.storage.Released() {
		_, err := t.storage.Bytes()
		return 0, err
	}
	if len(idx) != len(t.shape) {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "%d indices for a tensor of shape %v", len(idx), t.shape)
	}
	at := t.offset
	for d, i := range idx {
		if i < 0 {
			i += t.shape[d]
		}
		if i < 0 || i >= t.shape[d] {
			return 0, cohort.Newf(op, cohort.InvalidArgument, "index %d of dimension %d of size %d", idx[d], d, t.shape[d])
		}
		at += i * t.strides[d]
	}
	return at, nil
}

// At returns one element as the Go value of its type; negative indices count from the end.
func (t *Tensor) At(idx ...int) (any, error) {
	at, err := t.index("tensor: at", idx)
	if err != nil {
		return nil, err
	}
	return t.load(at), nil
}

// Set writes one element. The value is converted to the element type; one that would not fit is an error.
func (t *Tensor) Set(value any, idx ...int) error {
	at, err := t.index("tensor: set", idx)
	if err != nil {
		return err
	}
	return t.store(at, value)
}

// Item returns the only element. It corresponds to Tensor.item.
func (t *Tensor) Item() (any, error) {
	if t.numel != 1 {
		return nil, cohort.Newf("tensor: item", cohort.InvalidArgument, "a tensor of %d elements has no single value", t.numel)
	}
	return t.At(make([]int, len(t.shape))...)
}

// Fill sets every element to value. It corresponds to Tensor.fill_.
func (t *Tensor) Fill(value any) error {
	if _, err := t.storage.Bytes(); err != nil {
		return err
	}
	var err error
	t.each(func(at int) bool {
		err = t.store(at, value)
		return err == nil
	})
	return err
}

// each calls f with the storage index of every element in row-major order until f returns false.
func (t *Tensor) each(f func(at int) bool) {
	if t.numel == 0 {
		return
	}
	idx := make([]int, len(t.shape))
	at := t.offset
	for {
		if !f(at) {
			return
		}
		d := len(idx) - 1
		for ; d >= 0; d-- {
			idx[d]++
			at += t.strides[d]
			if idx[d] < t.shape[d] {
				break
			}
			at -= idx[d] * t.strides[d]
			idx[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// Contiguous returns t itself when it is contiguous, else a dense copy. It corresponds to Tensor.contiguous.
func (t *Tensor) Contiguous() (*Tensor, error) {
	if t.IsContiguous() {
		return t, nil
	}
	return t.Clone()
}

// Clone returns a dense copy on the heap; the requires-grad bit is kept. It corresponds to Tensor.clone.
func (t *Tensor) Clone() (*Tensor, error) {
	c, err := New(t.dtype, t.shape...)
	if err != nil {
		return nil, err
	}
	c.grad = t.grad
	return c, c.CopyFrom(t)
}

// CopyFrom copies the elements of src, which has the same type and shape. The two must not overlap. It corresponds to
// Tensor.copy_ without conversion or broadcast.
func (t *Tensor) CopyFrom(src *Tensor) error {
	const op = "tensor: copy"
	if src == nil {
		return cohort.New(op, cohort.InvalidArgument, "no tensor to copy from")
	}
	if t.dtype != src.dtype || !t.SameShape(src) {
		return cohort.Newf(op, cohort.InvalidArgument, "%s into %s", src.describe(), t.describe())
	}
	from, err := src.storage.Bytes()
	if err != nil {
		return err
	}
	to, err := t.storage.Bytes()
	if err != nil {
		return err
	}
	if t.numel == 0 {
		return nil
	}
	size := t.dtype.Size()
	if t.IsContiguous() && src.IsContiguous() {
		copy(to[t.offset*size:][:t.NBytes()], from[src.offset*size:])
		return nil
	}
	// Copy the longest row that is dense in both, and walk the dimensions in front of it.
	row, dims := size, len(t.shape)
	for dims > 0 {
		d := dims - 1
		if t.shape[d] != 1 && (t.strides[d]*size != row || src.strides[d]*size != row) {
			break
		}
		row *= t.shape[d]
		dims--
	}
	a := t.view(slices.Clone(t.shape[:dims]), t.strides[:dims], t.offset)
	b := src.view(a.shape, src.strides[:dims], src.offset)
	walk2(a, b, func(x, y int) { copy(to[x*size:][:row], from[y*size:]) })
	return nil
}

// walk2 visits the elements of two tensors of one shape together.
func walk2(a, b *Tensor, f func(x, y int)) {
	idx := make([]int, len(a.shape))
	x, y := a.offset, b.offset
	for {
		f(x, y)
		d := len(idx) - 1
		for ; d >= 0; d-- {
			idx[d]++
			x += a.strides[d]
			y += b.strides[d]
			if idx[d] < a.shape[d] {
				break
			}
			x -= idx[d] * a.strides[d]
			y -= idx[d] * b.strides[d]
			idx[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// Equal reports whether both have the same type, shape and elements; NaN equals nothing and 0 equals -0. It corresponds
// to torch.equal.
func Equal(a, b *Tensor) bool {
	return compare(a, b, func(x, y any) bool { return x == y })
}

// SameBits reports whether both have the same type and shape and every element the same bits.
func SameBits(a, b *Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.dtype != b.dtype || !a.SameShape(b) {
		return false
	}
	a, errA := a.Contiguous()
	b, errB := b.Contiguous()
	if errA != nil || errB != nil {
		return false
	}
	x, errA := a.Bytes()
	y, errB := b.Bytes()
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// AllClose reports whether all elements differ by at most atol + rtol*|b|; infinities must be equal and NaN equals NaN only
// if equalNaN is set. It corresponds to torch.allclose.
func AllClose(a, b *Tensor, rtol, atol float64, equalNaN bool) bool {
	return compare(a, b, func(x, y any) bool {
		u, v := asComplex(x), asComplex(y)
		switch {
		case u == v:
			return true
		case cmplx.IsNaN(u) || cmplx.IsNaN(v):
			return equalNaN && cmplx.IsNaN(u) && cmplx.IsNaN(v)
		}
		diff := cmplx.Abs(u - v)
		return !math.IsInf(diff, 0) && diff <= atol+rtol*cmplx.Abs(v)
	})
}

func asComplex(v any) complex128 {
	switch x := v.(type) {
	case complex64:
		return complex128(x)
	case complex128:
		return x
	}
	f, _ := asFloat(v)
	return complex(f, 0)
}

func compare(a, b *Tensor, same func(x, y any) bool) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.dtype != b.dtype || !a.SameShape(b) || a.storage.Released() || b.storage.Released() {
		return false
	}
	if a.numel == 0 {
		return true
	}
	equal := true
	walk2(a, b, func(x, y int) {
		u, v := a.load(x), b.load(y)
		if a.dtype == Float16 || a.dtype == BFloat16 { // their zeros have signs
			u, _ = asFloat(u)
			v, _ = asFloat(v)
		}
		equal = equal && same(u, v)
	})
	return equal
}

// Copy copies the elements of a tensor, whatever its strides and alignment, into a new Go slice.
func Copy[T Element](t *Tensor) ([]T, error) {
	if t == nil {
		return nil, cohort.New("tensor: copy", cohort.InvalidArgument, "the tensor is nil")
	}
	if dt := TypeOf[T](); dt != t.dtype {
		return nil, cohort.Newf("tensor: copy", cohort.InvalidArgument, "the elements are %v, not %v", t.dtype, dt)
	}
	out := make([]T, t.numel)
	dense := contiguous(sliceStorage(out), t.dtype, t.shape)
	if err := dense.CopyFrom(t); err != nil {
		return nil, err
	}
	return out, nil
}

// Overlaps reports whether two tensors may share memory: whether the byte ranges that they span meet.
func Overlaps(a, b *Tensor) bool {
	if a == nil || b == nil {
		return false
	}
	al, ah := a.span()
	bl, bh := b.span()
	return al < bh && bl < ah
}

// span returns the address range that the tensor's elements lie in.
func (t *Tensor) span() (from, to uintptr) {
	if t.numel == 0 || t.storage.Released() {
		return 0, 0
	}
	last := t.offset
	for d := range t.shape {
		last += (t.shape[d] - 1) * t.strides[d]
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(t.storage.data))) //nolint:gosec // a view of elements as bytes; lengths are checked
	size := uintptr(t.dtype.Size())
	return base + uintptr(t.offset)*size, base + uintptr(last+1)*size
}
