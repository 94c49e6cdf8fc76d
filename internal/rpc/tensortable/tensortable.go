// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensortable writes and reads the tables of the tensors of an RPC message: element types, shapes and places in the storages,
// which travel beside the table. [Encode] and [Decode] are PyTorch's form, a pickle; [EncodeShort] and [DecodeShort] that of the cohort
// transport. Entries are *tensor.Tensor and *tensor.Sparse.
package tensortable

import (
	"bytes"
	"math"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/tensor"
)

// layoutSparse is PyTorch's number of the coordinate layout.
const layoutSparse = 1

// maxDims is PyTorch's own bound on dimensions.
const maxDims = 64

// emptyTable is the table of a message without tensors, by far the most frequent one.
var emptyTable = []byte("\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.")

var storageNames = map[tensor.DType]string{
	tensor.Uint8: "ByteStorage", tensor.Int8: "CharStorage", tensor.Int16: "ShortStorage", tensor.Int32: "IntStorage",
	tensor.Int64: "LongStorage", tensor.Float16: "HalfStorage", tensor.Float32: "FloatStorage",
	tensor.Float64: "DoubleStorage", tensor.Complex64: "ComplexFloatStorage", tensor.Complex128: "ComplexDoubleStorage",
	tensor.Bool: "BoolStorage", tensor.BFloat16: "BFloat16Storage", tensor.Complex32: "ComplexHalfStorage",
	tensor.Float8E5M2: "Float8_e5m2Storage", tensor.Float8E4M3FN: "Float8_e4m3fnStorage",
	tensor.Float8E5M2FNUZ: "Float8_e5m2fnuzStorage", tensor.Float8E4M3FNUZ: "Float8_e4m3fnuzStorage",
	tensor.Uint16: "UInt16Storage", tensor.Uint32: "UInt32Storage", tensor.Uint64: "UInt64Storage",
}

var storageTypes = func() map[string]tensor.DType {
	types := map[string]tensor.DType{}
	for dt, name := range storageNames {
		types[name] = dt
	}
	return types
}()

// PyTorch copies a tensor out of its storage before sending when the storage is at least this long and at least this
// many times as long as the tensor.
const (
	recopyBytes    = 8 << 10
	recopyMultiple = 2
)

// Compact returns t, or a copy of it when sending its whole storage would waste as much as PyTorch finds worth a copy.
func Compact(t *tensor.Tensor) (*tensor.Tensor, error) {
	if n := t.Storage().Len(); n < recopyBytes || n < recopyMultiple*t.NBytes() {
		return t, nil
	}
	c, err := t.Clone()
	if err != nil {
		return nil, err
	}
	return c.SetRequiresGrad(t.RequiresGrad()), nil
}

type storageKey struct {
	storage *tensor.Storage
	dtype   tensor.DType
}

type tableWriter struct {
	*pickle.JIT
	storages []*tensor.Storage
	memo     map[storageKey]int
}

// Encode writes a table in PyTorch's form, and returns the storages in the order it counts them. Views of one storage share it.
func Encode(tensors []any) (table []byte, storages []*tensor.Storage, err error) {
	if len(tensors) == 0 {
		return emptyTable, nil, nil
	}
	w := tableWriter{JIT: pickle.NewJIT(make([]byte, 0, 256)), memo: map[storageKey]int{}}
	w.OpenList("tensor")
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
		w.Put()
	}
	w.CloseList()
	table, err = w.Finish()
	return table, w.storages, err
}

func (w *tableWriter) dense(t *tensor.Tensor) error {
	t, err := Compact(t)
	if err != nil {
		return err
	}
	if t.Storage().Released() {
		return cohort.New("rpc: encode tensors", cohort.InvalidArgument, "the memory of a tensor was released")
	}
	name := storageNames[t.DType()]
	if name == "" {
		return cohort.Newf("rpc: encode tensors", cohort.NotSupported, "element type %v", t.DType())
	}
	w.Global("torch._utils", "_rebuild_tensor_v2")
	w.Mark()
	// PyTorch gives a storage one element type, so a view with another type gets a storage of its own.
	key := storageKey{t.Storage(), t.DType()}
	if n, ok := w.memo[key]; ok {
		w.Get(n)
	} else {
		w.Mark()
		w.String("storage")
		w.Global("torch", name)
		w.String(strconv.Itoa(len(w.storages)))
		w.String("cpu")
		w.Int(int64(t.Storage().Len() / t.DType().Size()))
		w.Tuple()
		w.PersID()
		w.memo[key] = w.Put()
		w.storages = append(w.storages, t.Storage())
	}
	w.Int(int64(t.Offset()))
	w.ints(t.Shape())
	w.ints(t.Strides())
	w.Bool(t.RequiresGrad())
	w.hooks()
	w.Tuple()
	w.Reduce()
	return nil
}

func (w *tableWriter) ints(values []int) {
	w.Mark()
	for _, v := range values {
		w.Int(int64(v))
	}
	w.Tuple()
}

func (w *tableWriter) hooks() {
	w.Global("collections", "OrderedDict")
	w.TupleOf(0)
	w.Reduce()
}

func (w *tableWriter) sparse(s *tensor.Sparse) error {
	if err := s.Check(); err != nil {
		return err
	}
	w.Global("torch._utils", "_rebuild_sparse_tensor")
	w.Mark()
	w.Int(layoutSparse)
	w.ints(s.Shape)
	w.Bool(s.RequiresGrad)
	if err := w.dense(s.Indices); err != nil {
		return err
	}
	if err := w.dense(s.Values); err != nil {
		return err
	}
	w.hooks()
	w.Tuple()
	w.Reduce()
	return nil
}

// Decode reads a table in PyTorch's form. The tensors use the storages without a copy.
func Decode(table []byte, storages []*tensor.Storage) ([]any, error) {
	if len(storages) == 0 && bytes.Equal(table, emptyTable) {
		return nil, nil
	}
	v, err := pickle.Decode(table, pickle.Limits{RawStrings: true, JIT: true})
	if err != nil {
		return nil, err
	}
	items, ok := pickle.BuiltList(v, "tensor")
	if !ok {
		return nil, badTable("it is a %s, not a list of tensors", pickle.TypeName(v))
	}
	d := tableReader{storages: storages}
	tensors := make([]any, len(items))
	for i, item := range items {
		if tensors[i], err = d.entry(item); err != nil {
			return nil, err
		}
	}
	return tensors, nil
}

func badTable(format string, args ...any) error {
	return cohort.Newf("rpc: tensor table", cohort.Protocol, format, args...)
}

type tableReader struct{ storages []*tensor.Storage }

func (d *tableReader) entry(v any) (any, error) {
	o, ok := v.(*pickle.Object)
	if !ok || o.How != pickle.Reduce {
		return nil, badTable("an entry is a %s, not a tensor", pickle.TypeName(v))
	}
	switch {
	case pickle.IsGlobal(o.Class, "torch._utils", "_rebuild_tensor_v2"):
		return d.dense(o.Args.Items)
	case pickle.IsGlobal(o.Class, "torch._utils", "_rebuild_sparse_tensor"):
		return d.sparse(o.Args.Items)
	case pickle.IsGlobal(o.Class, "torch._utils", "_rebuild_qtensor"):
		return nil, cohort.New("rpc: tensor table", cohort.NotSupported, "a quantized tensor: send it dequantized")
	}
	return nil, badTable("an entry made by %s", pickle.TypeName(o))
}

func (d *tableReader) dense(args []any) (*tensor.Tensor, error) {
	if len(args) < 6 || len(args) > 7 {
		return nil, badTable("a tensor of %d parts", len(args))
	}
	storage, dtype, err := d.storage(args[0])
	if err != nil {
		return nil, err
	}
	offset, ok1 := toInt(args[1])
	shape, ok2 := toInts(args[2])
	strides, ok3 := toInts(args[3])
	grad, ok4 := args[4].(bool)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return nil, badTable("a tensor whose offset, shape, strides or gradient flag has the wrong type")
	}
	var conj, neg bool
	if len(args) == 7 {
		if conj, neg, err = mathBits(args[6]); err != nil {
			return nil, err
		}
	}
	t, err := tensor.FromStorage(storage, dtype, shape, strides, offset)
	if err != nil {
		return nil, cohort.Wrap("rpc: tensor table", cohort.Protocol, err)
	}
	if conj || neg {
		if t, err = resolved(t, conj, neg); err != nil {
			return nil, err
		}
	}
	if grad {
		t.SetRequiresGrad(true)
	}
	return t, nil
}

func (d *tableReader) storage(v any) (*tensor.Storage, tensor.DType, error) {
	p, ok := v.(*pickle.PersID)
	if !ok {
		return nil, 0, badTable("a %s in place of a storage", pickle.TypeName(v))
	}
	id, ok := p.ID.(*pickle.Tuple)
	if !ok || len(id.Items) != 5 || id.Items[0] != any("storage") {
		return nil, 0, badTable("a storage without its five parts")
	}
	global, ok1 := id.Items[1].(pickle.Global)
	key, ok2 := id.Items[2].(string)
	device, ok3 := id.Items[3].(string)
	count, ok4 := toInt(id.Items[4])
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return nil, 0, badTable("a storage whose parts have the wrong types")
	}
	dtype, ok := storageTypes[global.Name]
	if !ok || global.Module != "torch" {
		return nil, 0, cohort.Newf("rpc: tensor table", cohort.NotSupported, "element type %v", global)
	}
	if device != "cpu" {
		return nil, 0, cohort.Newf("rpc: tensor table", cohort.NotSupported, "a tensor on %q: a Go worker has only the CPU", device)
	}
	index, err := strconv.Atoi(key)
	if err != nil || index < 0 || index >= len(d.storages) {
		return nil, 0, badTable("storage %q of a message with %d", key, len(d.storages))
	}
	s := d.storages[index]
	if count < 0 || count > s.Len()/dtype.Size() {
		return nil, 0, badTable("a storage of %d elements of %v has %d bytes", count, dtype, s.Len())
	}
	return s, dtype, nil
}

func (d *tableReader) sparse(args []any) (*tensor.Sparse, error) {
	if len(args) < 5 {
		return nil, badTable("a sparse tensor of %d parts", len(args))
	}
	if layout, ok := toInt(args[0]); !ok || layout != layoutSparse {
		return nil, cohort.Newf("rpc: tensor table", cohort.NotSupported, "sparse layout %v: only coordinate form (COO) is read", args[0])
	}
	shape, ok1 := toInts(args[1])
	grad, ok2 := args[2].(bool)
	indices, ok3 := args[3].(*pickle.Object)
	values, ok4 := args[4].(*pickle.Object)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return nil, badTable("a sparse tensor whose parts have the wrong types")
	}
	s := &tensor.Sparse{Shape: shape, RequiresGrad: grad}
	for o, to := range map[*pickle.Object]**tensor.Tensor{indices: &s.Indices, values: &s.Values} {
		if !pickle.IsGlobal(o.Class, "torch._utils", "_rebuild_tensor_v2") {
			return nil, badTable("a sparse tensor made of %s", pickle.TypeName(o))
		}
		t, err := d.dense(o.Args.Items)
		if err != nil {
			return nil, err
		}
		*to = t
	}
	if s.Indices == nil || s.Values == nil {
		return nil, badTable("a sparse tensor whose indices are its values")
	}
	if err := s.Check(); err != nil {
		return nil, cohort.Wrap("rpc: tensor table", cohort.Protocol, err)
	}
	return s, nil
}

func toInt(v any) (int, bool) {
	n, ok := v.(int64)
	return int(n), ok && n >= math.MinInt && n <= math.MaxInt
}

func toInts(v any) ([]int, bool) {
	t, ok := v.(*pickle.Tuple)
	if !ok || len(t.Items) > maxDims {
		return nil, false
	}
	ints := make([]int, len(t.Items))
	for i, item := range t.Items {
		n, ok := toInt(item)
		if !ok {
			return nil, false
		}
		ints[i] = n
	}
	return ints, true
}
