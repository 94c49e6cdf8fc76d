// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensortable

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/tensor"
)

// The short form of a table is the length of its entries (4 bytes) and one entry per tensor:
//
//	1  kind: 0 dense, 1 sparse
//	1  element type, PyTorch's number; 0 in a sparse one
//	1  flags: 1 requires grad
//	1  dimensions
//	4  storage
//	8  offset in elements
//	16 per dimension: size and stride
//
// In a sparse one 8 bytes per dimension, its size, follow the number of dimensions, and then the dense entries of its
// indices and its values.
const (
	entryDense  = 0
	entrySparse = 1
	entryHead   = 16
	flagGrad    = 1
)

// noTensors is the table of a message without tensors. It is only read.
var noTensors [4]byte

// EncodeShort writes a table in the short form, and returns the storages in the order it counts them. The table is only to be read.
func EncodeShort(tensors []any) (table []byte, storages []*tensor.Storage, err error) {
	if len(tensors) == 0 {
		return noTensors[:], nil, nil
	}
	w := shortWriter{out: make([]byte, 4, 4+(entryHead+32)*len(tensors))} // of up to two dimensions each
	for i, t := range tensors {
		switch t := t.(type) {
		case *tensor.Tensor:
			err = w.dense(t)
		case *tensor.Sparse:
			err = w.sparse(t)
		default:
			err = cohort.Newf("rpc: encode tensors", cohort.InvalidArgument, "entry %d is a %T", i, t)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	binary.LittleEndian.PutUint32(w.out, uint32(len(w.out)-4)) //nolint:gosec // far below 4 GiB
	return w.out, w.storages, nil
}

// DecodeShort reads the table in the short form that b begins with, appends its tensors to those of the caller, and returns what is behind
// it. The tensors use the storages without a copy.
func DecodeShort(b []byte, storages []*tensor.Storage, tensors []any) (all []any, rest []byte, err error) {
	if len(b) < 4 {
		return tensors, nil, badTable("a payload of %d bytes has no table", len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) { //nolint:gosec // a length
		return tensors, nil, badTable("a table of %d bytes in a payload of %d", n, len(b))
	}
	r := shortReader{data: b[4 : 4+n], storages: storages}
	for len(r.data) > 0 {
		t, err := r.entry()
		if err != nil {
			return tensors, nil, err
		}
		tensors = append(tensors, t)
	}
	return tensors, b[4+n:], nil
}

type shortWriter struct {
	out      []byte
	storages []*tensor.Storage
}

func (w *shortWriter) dense(t *tensor.Tensor) error {
	t, err := Compact(t)
	if err != nil {
		return err
	}
	shape, strides := t.Shape(), t.Strides()
	if len(shape) > maxDims {
		return cohort.Newf("rpc: encode tensors", cohort.NotSupported, "%d dimensions, the limit is %d", len(shape), maxDims)
	}
	index := -1
	for i, s := range w.storages {
		if s == t.Storage() {
			index = i
		}
	}
	if index < 0 {
		index = len(w.storages)
		w.storages = append(w.storages, t.Storage())
	}
	var flags byte
	if t.RequiresGrad() {
		flags |= flagGrad
	}
	w.out = append(w.out, entryDense, byte(t.DType()), flags, byte(len(shape))) //nolint:gosec // checked
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(index))
	w.out = binary.LittleEndian.AppendUint64(w.out, uint64(t.Offset())) //nolint:gosec // not negative
	for i, n := range shape {
		w.out = binary.LittleEndian.AppendUint64(w.out, uint64(n))          //nolint:gosec // not negative
		w.out = binary.LittleEndian.AppendUint64(w.out, uint64(strides[i])) //nolint:gosec // two's complement
	}
	return nil
}

func (w *shortWriter) sparse(s *tensor.Sparse) error {
	if err := s.Check(); err != nil {
		return err
	}
	var flags byte
	if s.RequiresGrad {
		flags |= flagGrad
	}
	w.out = append(w.out, entrySparse, 0, flags, byte(len(s.Shape))) //nolint:gosec // checked: dims of two tensors
	for _, n := range s.Shape {
		w.out = binary.LittleEndian.AppendUint64(w.out, uint64(n)) //nolint:gosec // not negative
	}
	if err := w.dense(s.Indices); err != nil {
		return err
	}
	return w.dense(s.Values)
}

type shortReader struct {
	data     []byte
	storages []*tensor.Storage
}

func (r *shortReader) take(n int) ([]byte, error) {
	if len(r.data) < n {
		return nil, badTable("the table ends early")
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b, nil
}

func (r *shortReader) entry() (any, error) {
	if r.data[0] != entrySparse {
		return r.dense()
	}
	head, err := r.take(4)
	if err != nil {
		return nil, err
	}
	if head[3] > maxDims {
		return nil, badTable("%d dimensions, the limit is %d", head[3], maxDims)
	}
	s := &tensor.Sparse{Shape: make([]int, head[3]), RequiresGrad: head[2]&flagGrad != 0}
	sizes, err := r.take(8 * len(s.Shape))
	if err != nil {
		return nil, err
	}
	for i := range s.Shape {
		s.Shape[i] = int(binary.LittleEndian.Uint64(sizes[8*i:])) //nolint:gosec // negative is refused by check
	}
	if s.Indices, err = r.dense(); err != nil {
		return nil, err
	}
	if s.Values, err = r.dense(); err != nil {
		return nil, err
	}
	if err := s.Check(); err != nil {
		return nil, cohort.Wrap("rpc: tensor table", cohort.Protocol, err)
	}
	return s, nil
}

func (r *shortReader) dense() (*tensor.Tensor, error) {
	head, err := r.take(entryHead)
	if err != nil {
		return nil, err
	}
	dtype, dims := tensor.DType(head[1]), int(head[3])
	index := binary.LittleEndian.Uint32(head[4:])
	if head[0] != entryDense || !dtype.Valid() || dims > maxDims || uint64(index) >= uint64(len(r.storages)) {
		return nil, badTable("entry %x of a message with %d storages", head[:8], len(r.storages))
	}
	parts, err := r.take(16 * dims)
	if err != nil {
		return nil, err
	}
	var room [8]int // FromStorage copies them
	shape, strides := room[:4:4], room[4:]
	if dims > len(strides) {
		shape, strides = make([]int, dims), make([]int, dims)
	}
	shape, strides = shape[:dims], strides[:dims]
	for i := range shape {
		shape[i] = int(binary.LittleEndian.Uint64(parts[16*i:]))     //nolint:gosec // negative is refused by FromStorage
		strides[i] = int(binary.LittleEndian.Uint64(parts[16*i+8:])) //nolint:gosec // checked by FromStorage
	}
	//nolint:gosec // checked by FromStorage
	t, err := tensor.FromStorage(r.storages[index], dtype, shape, strides, int(binary.LittleEndian.Uint64(head[8:])))
	if err != nil {
		return nil, cohort.Wrap("rpc: tensor table", cohort.Protocol, err)
	}
	if head[2]&flagGrad != 0 {
		t.SetRequiresGrad(true)
	}
	return t, nil
}

// mathBits reads the flags of a lazy conjugate or negative, whose bytes are not the values.
func mathBits(v any) (conj, neg bool, err error) {
	v, _ = pickle.Untag(v)
	bits, ok := v.(*pickle.Dict)
	if !ok {
		return false, false, badTable("the flags of a tensor are a %s", pickle.TypeName(v))
	}
	for _, p := range bits.Pairs {
		on, isBool := p.Value.(bool)
		switch {
		case !isBool:
			return false, false, badTable("the flag %v of a tensor is a %s", p.Key, pickle.TypeName(p.Value))
		case p.Key == "conj":
			conj = on
		case p.Key == "neg":
			neg = on
		case on:
			return false, false, cohort.Newf("rpc: tensor table", cohort.NotSupported, "a lazy view (%v): send a copy of it", p.Key)
		}
	}
	return conj, neg, nil
}

// resolved returns a copy with the values that a lazy conjugate or negative stands for, as resolve_conj and resolve_neg
// do: Go has no such views.
func resolved(t *tensor.Tensor, conj, neg bool) (*tensor.Tensor, error) {
	dt := t.DType()
	parts := 1
	if dt.Complex() {
		parts = 2
	} else if !dt.Floating() || conj {
		return nil, badTable("a lazy view of %v", dt)
	}
	t, err := t.Clone()
	if err != nil {
		return nil, err
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	width := dt.Size() / parts
	sign := width - 1 // the byte that has the sign
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		sign = 0
	}
	for i := 0; i < len(data); i += width {
		if neg != (conj && i/width%2 == 1) {
			data[i+sign] ^= 0x80
		}
	}
	return t, nil
}
