// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// Encoder turns Go values into Python pickles. Tensors are collected in Tensors and referred to by number. An Encoder
// is for one message; the zero value is ready when no references are sent.
type Encoder struct {
	// Tensors are the tensors met so far, for Message.Tensors.
	Tensors []any
	// Holders are the values met so far that stand for one of the tensors, for Message.Holders.
	Holders []any
	// Fork makes the fork of a reference that is sent. Nil refuses references.
	Fork func(pyconv.Reference) (RRefFork, error)
	// Native writes calls and results in the short form that only Go workers read.
	Native bool
	// Most is the longest payload in bytes; zero means 1 GiB, the limit of the wires.
	Most int

	pickled pyconv.Met[any] // containers, as pickle values; open{} while one is being encoded
	written pyconv.Met[int] // the same for the short form, as numbers
	number  int             // of the next container in the short form
	jitted  pyconv.Met[int] // containers of a TorchScript value that occur more than once, as numbers of its pickle
	again   bool            // the short form refers to a number
	message Message         // see Message
}

// Message returns the message with a payload of this encoder.
func (e *Encoder) Message(kind Type, payload []byte) *Message {
	e.message = Message{Type: kind, Payload: payload, Tensors: e.Tensors, Holders: e.Holders}
	return &e.message
}

// Pickle returns the Python pickle of a Go value.
func (e *Encoder) Pickle(v any) ([]byte, error) {
	pv, err := e.value(v, 0)
	if err != nil {
		return nil, err
	}
	return pickle.AppendAtMost(make([]byte, 0, 256), pv, pickle.DefaultProtocol, e.most())
}

func badValue(format string, args ...any) error {
	return cohort.Newf("rpc: encode value", cohort.InvalidArgument, format, args...)
}

func (e *Encoder) tensor(t any) any {
	i := slices.Index(e.Tensors, t)
	if i < 0 {
		i = len(e.Tensors)
		e.Tensors = append(e.Tensors, t)
	}
	return pickle.Call(tensorReceiver, int64(i))
}

func (e *Encoder) reference(r pyconv.Reference) (RRefFork, error) {
	if e.Fork == nil {
		return RRefFork{}, badValue("a remote reference (%T) cannot be sent here", r)
	}
	return e.Fork(r)
}

// held notes a value that stands for a tensor, and returns the tensor.
func (e *Encoder) held(h any) any {
	t := tensorlike.Tensor(h)
	if t != nil && !slices.Contains(e.Holders, h) {
		e.Holders = append(e.Holders, h)
	}
	return t
}

// value handles the types of the value model; other Go types go through reflection.
func (e *Encoder) value(v any, depth int) (any, error) {
	if depth > pyconv.MaxDepth {
		return nil, containsItself()
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, complex128, string, py.Global:
		return v, nil // the pickle shares long strings by itself
	case int:
		return int64(v), nil
	case *big.Int:
		return v, nil
	case []byte:
		return pickle.Bytes(v), nil
	case *tensor.Tensor:
		if v == nil {
			return nil, nil //nolint:nilnil // None
		}
		return e.tensor(v), nil
	case *tensor.Sparse:
		if v == nil {
			return nil, nil //nolint:nilnil // None
		}
		return e.tensor(v), nil
	case pyconv.Reference:
		f, err := e.reference(v)
		if err != nil {
			return nil, err
		}
		return pickle.Call(rrefReceiver, f.tuple()), nil
	case WorkerInfo:
		return pickle.Call(workerInfo, v.Name, int64(v.ID)), nil
	case *RemoteException:
		o := pickle.Call(remoteException, v.Msg, exceptionClass(v.Class))
		o.How = pickle.NewObj
		return o, nil
	}
	if tensorlike.Is(v) {
		return e.value(e.held(v), depth)
	}
	id, shareable := pyconv.Identify(v)
	if !shareable {
		return e.container(v, depth)
	}
	if done, ok := e.pickled.Get(id); ok {
		if done == any(open{}) {
			return nil, containsItself()
		}
		return done, nil
	}
	e.pickled.Set(id, open{})
	out, err := e.container(v, depth)
	e.pickled.Set(id, out)
	return out, err
}

// container encodes what consists of other values.
func (e *Encoder) container(v any, depth int) (any, error) {
	switch v := v.(type) {
	case py.ByteArray:
		return &pickle.ByteArray{Data: v}, nil
	case []any:
		items, err := e.items(v, depth)
		return &pickle.List{Items: items}, err
	case py.Tuple:
		items, err := e.items(v, depth)
		return &pickle.Tuple{Items: items}, err
	case py.Set:
		items, err := e.members(v, depth)
		return &pickle.Set{Items: items}, err
	case py.FrozenSet:
		items, err := e.members(v, depth)
		return &pickle.FrozenSet{Items: items}, err
	case *py.Dict:
		if v == nil {
			return nil, nil //nolint:nilnil // None
		}
		pairs, err := e.pairs(v.Pairs, depth)
		return &pickle.Dict{Pairs: pairs}, err
	case *py.Object:
		return e.object(v, depth)
	}
	return e.reflect(reflect.ValueOf(v), depth)
}

func (e *Encoder) items(in []any, depth int) ([]any, error) {
	out := make([]any, len(in))
	for i, item := range in {
		v, err := e.value(item, depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// members are the items of a set.
func (e *Encoder) members(in []any, depth int) ([]any, error) {
	items, err := e.items(in, depth)
	if err != nil {
		return nil, err
	}
	for _, v := range items {
		if err = hashable(v, "the member of a set"); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// hashable refuses what Python cannot hash.
func hashable(v any, as string) error {
	switch v := v.(type) {
	case *pickle.List, *pickle.Dict, *pickle.Set, *pickle.ByteArray:
		return badValue("a %s as %s: Python cannot hash it", pickle.TypeName(v), as)
	}
	return nil
}

func (e *Encoder) pairs(in []py.Pair, depth int) ([]pickle.Pair, error) {
	out := make([]pickle.Pair, len(in))
	for i, p := range in {
		k, err := e.value(p.Key, depth+1)
		if err != nil {
			return nil, err
		}
		if err = hashable(k, "the key of a dict"); err != nil {
			return nil, err
		}
		v, err := e.value(p.Value, depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = pickle.Pair{Key: k, Value: v}
	}
	return out, nil
}

func (e *Encoder) object(o *py.Object, depth int) (any, error) {
	if o == nil {
		return nil, nil //nolint:nilnil // None
	}
	class, err := e.value(o.Class, depth+1)
	if err != nil {
		return nil, err
	}
	out := &pickle.Object{Class: class}
	args, err := e.value(o.Args, depth+1)
	if err != nil {
		return nil, err
	}
	out.Args, _ = args.(*pickle.Tuple)
	if o.New {
		out.How = pickle.NewObj
	}
	if o.KwArgs != nil {
		out.How = pickle.NewObjEx
		kwargs, kwErr := e.value(o.KwArgs, depth+1)
		if kwErr != nil {
			return nil, kwErr
		}
		out.KwArgs, _ = kwargs.(*pickle.Dict)
	}
	if out.States, err = e.items(o.States, depth); err != nil {
		return nil, err
	}
	if out.Items, err = e.items(o.Items, depth); err != nil {
		return nil, err
	}
	out.Pairs, err = e.pairs(o.Pairs, depth)
	return out, err
}

// reflect handles named types, typed slices, maps, structs and pointers.
func (e *Encoder) reflect(v reflect.Value, depth int) (any, error) {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if u := v.Uint(); u > math.MaxInt64 {
			return new(big.Int).SetUint64(u), nil
		}
		return int64(v.Uint()), nil //nolint:gosec // checked
	case reflect.Float32, reflect.Float64:
		return v.Float(), nil
	case reflect.Complex64, reflect.Complex128:
		return v.Complex(), nil
	case reflect.String:
		return v.String(), nil
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Slice {
			return pickle.Bytes(v.Bytes()), nil
		}
		items := make([]any, v.Len())
		for i := range items {
			item, err := e.value(v.Index(i).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			items[i] = item
		}
		return &pickle.List{Items: items}, nil
	case reflect.Map:
		return e.mapping(v, depth)
	case reflect.Struct:
		fields, err := pyconv.Fields(v.Type())
		if err != nil {
			return nil, err
		}
		d := &pickle.Dict{}
		for _, f := range fields {
			item, err := e.value(v.FieldByIndex(f.Index).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			d.Pairs = append(d.Pairs, pickle.Pair{Key: f.Name, Value: item})
		}
		return d, nil
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil, nil //nolint:nilnil // None
		}
		return e.value(v.Elem().Interface(), depth+1)
	default:
		return nil, badValue("a Go %v has no Python form", v.Type())
	}
}

func (e *Encoder) mapping(v reflect.Value, depth int) (any, error) {
	pairs, err := e.pairs(sortedPairs(v), depth)
	return &pickle.Dict{Pairs: pairs}, err
}

// sortedPairs returns the entries of a Go map, which have no order: sorted keys make equal maps equal bytes.
func sortedPairs(v reflect.Value) []py.Pair {
	pairs := make([]py.Pair, 0, v.Len())
	for iter := v.MapRange(); iter.Next(); {
		pairs = append(pairs, py.Pair{Key: iter.Key().Interface(), Value: iter.Value().Interface()})
	}
	slices.SortFunc(pairs, func(a, b py.Pair) int { return compareKeys(reflect.ValueOf(a.Key), reflect.ValueOf(b.Key)) })
	return pairs
}

func compareKeys(a, b reflect.Value) int {
	if a.Kind() != b.Kind() {
		return int(a.Kind()) - int(b.Kind())
	}
	switch a.Kind() {
	case reflect.String:
		return strings.Compare(a.String(), b.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return compareOrdered(a.Int(), b.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return compareOrdered(a.Uint(), b.Uint())
	case reflect.Float32, reflect.Float64:
		return compareOrdered(a.Float(), b.Float())
	default:
		return 0
	}
}

func compareOrdered[T int64 | uint64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// A value that is mentioned twice is sent once. Decoding makes one Go value of what a message mentions many times over, so
// sending such a value back must not write it many times: a few hundred bytes would become gigabytes. What is the same in Go
// (a slice, a map, a pointer, a long string) is the same at the receiver, as it is in Python.

// maxOutput bounds what an Encoder writes by default: the transports accept no longer payload.
const maxOutput = 1 << 30

// open stands for a value that is being encoded: an encoder that meets it again is inside it.
type open struct{}

func containsItself() error {
	return badValue("values nested deeper than %d, or one that contains itself", pyconv.MaxDepth)
}

func tooLong(most int) error {
	return cohort.Newf("rpc: encode value", cohort.TooLarge, "a value that takes more than %d bytes", most)
}

// most is the longest payload that the Encoder writes.
func (e *Encoder) most() int {
	if e.Most > 0 {
		return e.Most
	}
	return maxOutput
}
