// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"encoding/binary"
	"math"
	"math/big"
	"reflect"
	"slices"

	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// Among Go workers values travel in a short form of their own in place of pickles: the same values, a fraction of the
// work. A payload in this form begins with nativeMark, which no pickle and no flag of PyTorch's does. Every value is a
// tag and its content; counts and lengths are varints, integers zigzag varints.
//
// A value that occurs again is written as tagAgain and its number: containers, pickles, long integers, and strings and bytes
// of more than pyconv.ShortText bytes are numbered in the order in which they end. A payload with such references begins with
// nativeAgain, so that the reader of any other need not count.
const (
	nativeMark  = 0xc7
	nativeAgain = 0xc8
)

const (
	tagNone = iota
	tagFalse
	tagTrue
	tagInt
	tagFloat
	tagString
	tagBytes
	tagByteArray
	tagList
	tagTuple
	tagSet
	tagFrozenSet
	tagDict
	tagTensor
	tagComplex
	tagBig
	tagGlobal
	tagReference
	tagWorker
	tagException
	tagPickle // an object that has no form of its own
	tagDevice
	tagAgain // a value that occurred before, by its number
)

// isNative reports whether a payload is in the form of Go workers.
func isNative(payload []byte) bool {
	return len(payload) > 0 && (payload[0] == nativeMark || payload[0] == nativeAgain)
}

// sealed ends a payload in the form of Go workers.
func (e *Encoder) sealed(b []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if len(b) > e.most() {
		return nil, tooLong(e.most())
	}
	if e.again {
		b[0] = nativeAgain
	}
	return b, nil
}

// What the table of written values says of one that has no number: it is being written, or it gets none.
const (
	isOpen     = -1
	unnumbered = -2
)

// numbered counts a value that has been written.
func (e *Encoder) numbered(b []byte, err error) ([]byte, error) {
	e.number++
	return b, err
}

// nativeText appends a string.
func (e *Encoder) nativeText(b []byte, s string) ([]byte, error) {
	id, long := pyconv.Identify(s)
	if long {
		if n, again := e.written.Get(id); again {
			e.again = true
			return binary.AppendUvarint(append(b, tagAgain), uint64(n)), nil //nolint:gosec // not negative
		}
		if len(b)+len(s) > e.most() {
			return nil, tooLong(e.most())
		}
		e.written.Set(id, e.number)
		e.number++
	}
	return appendText(append(b, tagString), s), nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (e *Encoder) nativeUDF(b []byte, u UDF) ([]byte, error) {
	b = appendText(appendText(b, u.Func.Module), u.Func.Name)
	b, err := e.nativeItems(b, u.Args, 0)
	if err != nil {
		return nil, err
	}
	return e.nativePairs(b, pyconv.Pairs(u.Kwargs), 0)
}

// nativeScript appends a TorchScript call.
func (e *Encoder) nativeScript(b []byte, s ScriptUDF) ([]byte, error) {
	async := byte(0)
	if s.Async {
		async = 1
	}
	return e.nativeItems(append(appendText(appendText(b, s.Schema), s.Name), async), s.Stack, 0)
}

func (e *Encoder) nativeItems(b []byte, items []any, depth int) ([]byte, error) {
	b = binary.AppendUvarint(b, uint64(len(items)))
	var err error
	for _, item := range items {
		if b, err = e.native(b, item, depth+1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// nativeMembers are the items of a set.
func (e *Encoder) nativeMembers(b []byte, items []any, depth int) ([]byte, error) {
	for _, v := range items {
		switch v.(type) {
		case []any, *py.Dict, py.Set, py.ByteArray:
			return nil, badValue("a %s as the member of a set: Python cannot hash it", pyconv.TypeName(v))
		}
	}
	return e.nativeItems(b, items, depth)
}

func (e *Encoder) nativePairs(b []byte, pairs []py.Pair, depth int) ([]byte, error) {
	b = binary.AppendUvarint(b, uint64(len(pairs)))
	var err error
	for _, p := range pairs {
		switch p.Key.(type) {
		case []any, *py.Dict, py.Set, py.ByteArray:
			return nil, badValue("a %s as the key of a dict: Python cannot hash it", pyconv.TypeName(p.Key))
		}
		if b, err = e.native(b, p.Key, depth+1); err != nil {
			return nil, err
		}
		if b, err = e.native(b, p.Value, depth+1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (p RRefPair) native(b []byte) []byte {
	for _, id := range [...]GlobalID{p.RRef, p.Fork} {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(id.On)), id.Local)
	}
	return append(b, p.Key[:]...)
}

func appendInt(b []byte, n int64) []byte { return binary.AppendVarint(append(b, tagInt), n) }

func appendFloat(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, tagFloat), math.Float64bits(f))
}

func (e *Encoder) tensorIndex(t any) int {
	i := slices.Index(e.Tensors, t)
	if i < 0 {
		i = len(e.Tensors)
		e.Tensors = append(e.Tensors, t)
	}
	return i
}

// native appends a value. It takes what value takes, and makes of it what the receiver of a pickle would see.
func (e *Encoder) native(b []byte, v any, depth int) ([]byte, error) {
	if depth > pyconv.MaxDepth {
		return nil, containsItself()
	}
	switch v := v.(type) {
	case nil:
		return append(b, tagNone), nil
	case bool:
		if v {
			return append(b, tagTrue), nil
		}
		return append(b, tagFalse), nil
	case int:
		return appendInt(b, int64(v)), nil
	case int64:
		return appendInt(b, v), nil
	case float64:
		return appendFloat(b, v), nil
	case complex128:
		b = binary.LittleEndian.AppendUint64(append(b, tagComplex), math.Float64bits(real(v)))
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(imag(v))), nil
	case string:
		return e.nativeText(b, v)
	case py.Global:
		return appendText(appendText(append(b, tagGlobal), v.Module), v.Name), nil
	case *tensor.Tensor:
		if v == nil {
			return append(b, tagNone), nil
		}
		return binary.AppendUvarint(append(b, tagTensor), uint64(e.tensorIndex(v))), nil //nolint:gosec // an index
	case *tensor.Sparse:
		if v == nil {
			return append(b, tagNone), nil
		}
		return binary.AppendUvarint(append(b, tagTensor), uint64(e.tensorIndex(v))), nil //nolint:gosec // an index
	case pyconv.Reference:
		return e.nativeReference(b, v)
	case py.Device:
		return appendText(append(b, tagDevice), string(v)), nil
	case py.Typed:
		return e.native(b, v.Value, depth+1)
	case WorkerInfo:
		return binary.AppendVarint(appendText(append(b, tagWorker), v.Name), int64(v.ID)), nil
	case *RemoteException:
		return appendText(appendText(appendText(append(b, tagException), v.Msg), v.Class.Module), v.Class.Name), nil
	}
	if tensorlike.Is(v) {
		return e.native(b, e.held(v), depth)
	}
	if len(b) > e.most() {
		return nil, tooLong(e.most())
	}
	id, shareable := pyconv.Identify(v)
	if !shareable {
		return e.nativeContainer(b, v, depth)
	}
	switch n, again := e.written.Get(id); {
	case again && n == isOpen:
		return nil, containsItself()
	case again && n >= 0:
		e.again = true
		return binary.AppendUvarint(append(b, tagAgain), uint64(n)), nil
	}
	e.written.Set(id, isOpen)
	before := e.number
	b, err := e.nativeContainer(b, v, depth)
	if e.number > before {
		e.written.Set(id, e.number-1) // it was the last one to end
	} else {
		e.written.Set(id, unnumbered) // a pointer to a number, for example
	}
	return b, err
}

// nativeContainer appends a value that may occur again, and numbers it.
func (e *Encoder) nativeContainer(b []byte, v any, depth int) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		if len(v) > pyconv.ShortText {
			e.number++
		}
		return append(binary.AppendUvarint(append(b, tagBytes), uint64(len(v))), v...), nil
	case py.ByteArray:
		return e.numbered(append(binary.AppendUvarint(append(b, tagByteArray), uint64(len(v))), v...), nil)
	case *big.Int:
		return e.nativeBig(b, v), nil
	case []any:
		return e.numbered(e.nativeItems(append(b, tagList), v, depth))
	case py.Tuple:
		return e.numbered(e.nativeItems(append(b, tagTuple), v, depth))
	case py.Set:
		return e.numbered(e.nativeMembers(append(b, tagSet), v, depth))
	case py.FrozenSet:
		return e.numbered(e.nativeMembers(append(b, tagFrozenSet), v, depth))
	case *py.Dict:
		if v == nil {
			return append(b, tagNone), nil
		}
		return e.numbered(e.nativePairs(append(b, tagDict), v.Pairs, depth))
	case *py.Object:
		data, err := e.Pickle(v)
		if err != nil {
			return nil, err
		}
		return e.numbered(append(binary.AppendUvarint(append(b, tagPickle), uint64(len(data))), data...), nil)
	}
	return e.nativeReflect(b, reflect.ValueOf(v), depth)
}

func (e *Encoder) nativeBig(b []byte, v *big.Int) []byte {
	if v == nil {
		return append(b, tagNone)
	}
	if v.IsInt64() {
		return appendInt(b, v.Int64())
	}
	sign := byte(0)
	if v.Sign() < 0 {
		sign = 1
	}
	data := v.Bytes()
	e.number++
	return append(binary.AppendUvarint(append(b, tagBig, sign), uint64(len(data))), data...)
}

func (e *Encoder) nativeReference(b []byte, r pyconv.Reference) ([]byte, error) {
	f, err := e.reference(r)
	if err != nil {
		return nil, err
	}
	b = append(b, tagReference)
	for _, n := range [...]int64{int64(f.Owner), int64(f.RRef.On), f.RRef.Local, int64(f.Fork.On), f.Fork.Local, int64(f.Parent)} {
		b = binary.AppendVarint(b, n)
	}
	return appendText(b, f.TypeName), nil
}

// nativeReflect is the counterpart of reflect for pickles.
func (e *Encoder) nativeReflect(b []byte, v reflect.Value, depth int) ([]byte, error) {
	switch v.Kind() {
	case reflect.Bool:
		return e.native(b, v.Bool(), depth)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(b, v.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if u := v.Uint(); u > math.MaxInt64 {
			return e.nativeBig(b, new(big.Int).SetUint64(u)), nil
		}
		return appendInt(b, int64(v.Uint())), nil //nolint:gosec // checked
	case reflect.Float32, reflect.Float64:
		return appendFloat(b, v.Float()), nil
	case reflect.Complex64, reflect.Complex128:
		return e.native(b, v.Complex(), depth)
	case reflect.String:
		return e.nativeText(b, v.String())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Slice {
			return e.nativeContainer(b, v.Bytes(), depth)
		}
		b = binary.AppendUvarint(append(b, tagList), uint64(v.Len())) //nolint:gosec // a length
		var err error
		for i := range v.Len() {
			if b, err = e.native(b, v.Index(i).Interface(), depth+1); err != nil {
				return nil, err
			}
		}
		return e.numbered(b, nil)
	case reflect.Map:
		return e.numbered(e.nativePairs(append(b, tagDict), sortedPairs(v), depth))
	case reflect.Struct:
		fields, err := pyconv.Fields(v.Type())
		if err != nil {
			return nil, err
		}
		b = binary.AppendUvarint(append(b, tagDict), uint64(len(fields)))
		for _, f := range fields {
			if b, err = e.nativeText(b, f.Name); err != nil {
				return nil, err
			}
			if b, err = e.native(b, v.FieldByIndex(f.Index).Interface(), depth+1); err != nil {
				return nil, err
			}
		}
		return e.numbered(b, nil)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(b, tagNone), nil
		}
		return e.native(b, v.Elem().Interface(), depth+1)
	default:
		return nil, badValue("a Go %v has no Python form", v.Type())
	}
}
