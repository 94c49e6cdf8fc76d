// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"slices"

	"github.com/cohort-dist/cohort"
)

// MaxDims is the largest number of dimensions, PyTorch's own limit.
const MaxDims = 64

// maxExpanded is the largest logical size of a tensor that stands for more bytes than its storage has (stride 0, as made
// by expand). A few bytes from the wire must not be able to stand for more memory than the process has.
const maxExpanded = 1 << 30

// Tensor is a dense array: a view of a [Storage] with an element type, a shape, strides and an offset (both counted in
// elements). It corresponds to torch.Tensor on the CPU.
//
// Views share their storage. Methods that read are safe for concurrent use; writing while others read is the caller's to
// prevent. Shape, strides and offset never change and always lie inside the storage.
type Tensor struct {
	storage *Storage
	dtype   DType
	shape   []int
	strides []int
	offset  int
	numel   int
	grad    bool
}

// Must returns t, and panics when err is not nil. It is for shapes that are constants in the source.
func Must(t *Tensor, err error) *Tensor {
	if err != nil {
		panic(err)
	}
	return t
}

// New returns a zeroed tensor on the heap. It corresponds to torch.zeros.
func New(dt DType, shape ...int) (*Tensor, error) {
	n, err := bytesOf("tensor: new", dt, shape)
	if err != nil {
		return nil, err
	}
	s, err := NewStorage(n)
	if err != nil {
		return nil, err
	}
	return contiguous(s, dt, slices.Clone(shape)), nil
}

// Full returns a tensor whose elements are all value, converted as [Tensor.Set] does it. It corresponds to torch.full.
func Full(dt DType, value any, shape ...int) (*Tensor, error) {
	t, err := New(dt, shape...)
	if err != nil {
		return nil, err
	}
	return t, t.Fill(value)
}

// contiguous makes a row-major tensor at the start of a storage that is known to be large enough.
func contiguous(s *Storage, dt DType, shape []int) *Tensor {
	t := &Tensor{storage: s, dtype: dt, shape: shape, strides: make([]int, len(shape)), numel: 1}
	step := 1
	for i, d := range slices.Backward(shape) {
		t.strides[i] = step
		step *= max(d, 1)
		t.numel *= d
	}
	return t
}

// FromStorage returns a tensor over storage. Nothing about the arguments is trusted: they may come from a peer. strides
// nil means row-major. It corresponds to Tensor.set_ with explicit geometry.
func FromStorage(storage *Storage, dt DType, shape, strides []int, offset int) (*Tensor, error) {
	const op = "tensor: from storage"
	if storage == nil {
		return nil, cohort.New(op, cohort.InvalidArgument, "no storage")
	}
	logical, err := bytesOf(op, dt, shape)
	if err != nil {
		return nil, err
	}
	if strides == nil {
		strides = rowMajor(shape)
	}
	if err := checkLayout(op, storage.Len(), dt, shape, strides, offset); err != nil {
		return nil, err
	}
	if logical > storage.Len() && logical > maxExpanded {
		return nil, cohort.Newf(op, cohort.TooLarge, "shape %v with strides %v stands for %d bytes over a storage of %d: limit %d",
			shape, strides, logical, storage.Len(), maxExpanded)
	}
	return &Tensor{
		storage: storage, dtype: dt, shape: slices.Clone(shape), strides: slices.Clone(strides), offset: offset,
		numel: product(shape),
	}, nil
}

// bytesOf returns the size of a dense tensor, having checked type, dimensions and overflow.
func bytesOf(op string, dt DType, shape []int) (int, error) {
	n, empty := dt.Size(), false
	if n == 0 {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "%v is not an element type", dt)
	}
	if len(shape) > MaxDims {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "%d dimensions: limit %d", len(shape), MaxDims)
	}
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, cohort.Newf(op, cohort.InvalidArgument, "shape %v has a negative dimension", shape)
		case d == 0:
			empty = true
		case d > maxBytes/n:
			return 0, cohort.Newf(op, cohort.TooLarge, "shape %v of %v exceeds %d bytes", shape, dt, maxBytes)
		default:
			n *= d
		}
	}
	if empty {
		return 0, nil
	}
	return n, nil
}

// checkLayout checks that every element lies inside storage bytes. The shape has passed bytesOf.
func checkLayout(op string, storage int, dt DType, shape, strides []int, offset int) error {
	if len(strides) != len(shape) {
		return cohort.Newf(op, cohort.InvalidArgument, "%d strides for %d dimensions", len(strides), len(shape))
	}
	elements := storage / dt.Size()
	if offset < 0 || offset > elements {
		return cohort.Newf(op, cohort.InvalidArgument, "offset %d lies outside a storage of %d %v elements", offset, elements, dt)
	}
	last := offset
	for i, d := range shape {
		s := strides[i]
		if s < 0 {
			return cohort.Newf(op, cohort.InvalidArgument, "strides %v: negative strides are not supported", strides)
		}
		if d == 0 {
			return nil // no element at all
		}
		if s != 0 && d-1 > (math.MaxInt-last)/s {
			return cohort.Newf(op, cohort.InvalidArgument, "shape %v with strides %v overflows", shape, strides)
		}
		last += (d - 1) * s
	}
	if slices.Contains(shape, 0) {
		return nil
	}
	if last >= elements {
		return cohort.Newf(op, cohort.InvalidArgument,
			"shape %v with strides %v and offset %d needs %d %v elements, the storage has %d", shape, strides, offset, last+1, dt, elements)
	}
	return nil
}

func rowMajor(shape []int) []int {
	strides := make([]int, len(shape))
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
	return strides
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// DType returns the element type.
func (t *Tensor) DType() DType { return t.dtype }

// Shape returns the size of every dimension; the caller may keep it.
func (t *Tensor) Shape() []int { return slices.Clone(t.shape) }

// Strides returns the distance of neighbours in every dimension, in elements; the caller may keep it.
func (t *Tensor) Strides() []int { return slices.Clone(t.strides) }

// Dims returns the number of dimensions. It corresponds to Tensor.dim.
func (t *Tensor) Dims() int { return len(t.shape) }

// Dim returns the size of dimension i; a negative i counts from the end. It panics if the tensor does not have the
// dimension. It corresponds to Tensor.size(i).
func (t *Tensor) Dim(i int) int {
	if i < 0 {
		i += len(t.shape)
	}
	return t.shape[i]
}

// Offset returns the index of the first element in the storage, in elements.
func (t *Tensor) Offset() int { return t.offset }

// Storage returns the memory that the tensor is a view of.
func (t *Tensor) Storage() *Storage { return t.storage }

// Numel returns the number of elements.
func (t *Tensor) Numel() int { return t.numel }

// NBytes returns the number of bytes of all elements. It corresponds to Tensor.nbytes.
func (t *Tensor) NBytes() int { return t.numel * t.dtype.Size() }

// RequiresGrad reports whether gradients are wanted for this tensor. PyTorch carries the bit on its wire.
func (t *Tensor) RequiresGrad() bool { return t.grad }

// SetRequiresGrad sets the bit and returns t. It corresponds to Tensor.requires_grad_.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor {
	t.grad = on
	return t
}

// IsContiguous reports whether the elements lie in row-major order without gaps.
func (t *Tensor) IsContiguous() bool {
	if t.numel == 0 {
		return true
	}
	step := 1
	for i, v := range slices.Backward(t.shape) {
		if v == 1 {
			continue
		}
		if t.strides[i] != step {
			return false
		}
		step *= v
	}
	return true
}

// SameShape reports whether u has the shape of t.
func (t *Tensor) SameShape(u *Tensor) bool { return u != nil && slices.Equal(t.shape, u.shape) }

// Bytes returns the memory of a contiguous tensor, without a copy. [Tensor.Contiguous] makes one of any tensor.
func (t *Tensor) Bytes() ([]byte, error) {
	data, err := t.storage.Bytes()
	if err != nil {
		return nil, err
	}
	if !t.IsContiguous() {
		return nil, cohort.Newf("tensor: bytes", cohort.InvalidArgument,
			"shape %v with strides %v is not contiguous: use Contiguous first", t.shape, t.strides)
	}
	size := t.dtype.Size()
	from, to := t.offset*size, (t.offset+t.numel)*size
	return data[from:to:to], nil
}

func (t *Tensor) describe() string { return fmt.Sprintf("%v%v", t.dtype, t.shape) }
