// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"math"
	"math/big"
	"reflect"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// jitValue pushes a Go value in TorchScript's dialect.
func (e *Encoder) jitValue(j *pickle.JIT, v any, depth int) error {
	if depth > pyconv.MaxDepth {
		return badValue("values nested deeper than %d, or one that contains itself", pyconv.MaxDepth)
	}
	switch v := v.(type) {
	case nil:
		j.None()
	case bool:
		j.Bool(v)
	case int:
		j.Int(int64(v))
	case int64:
		j.Int(v)
	case float64:
		j.Float(v)
	case complex128:
		j.Complex(v)
	case string:
		j.String(v)
	case py.Device:
		j.Device(string(v))
	case *tensor.Tensor, *tensor.Sparse:
		e.jitTensor(j, v)
	case pyconv.Reference:
		f, err := e.reference(v)
		if err != nil {
			return err
		}
		f.push(j)
	case py.Tuple:
		return e.jitOnce(j, v, func() error { return e.jitTuple(j, v, depth) })
	case []int64:
		jitList(j, "int", v, j.Int)
	case []float64:
		jitList(j, "double", v, j.Float)
	case []bool:
		jitList(j, "bool", v, j.Bool)
	case []*tensor.Tensor:
		jitList(j, "tensor", v, func(x *tensor.Tensor) { e.jitTensor(j, x) })
	case py.Typed:
		return e.jitTyped(j, v, depth)
	case []any, *py.Dict:
		typed, ok := inferType(v)
		if !ok {
			return badValue("a list or dict of mixed or unknown types has no TorchScript type: use Typed")
		}
		return e.jitOnce(j, v, func() error { return e.jitTyped(j, py.Typed{Type: typed, Value: v}, depth) })
	default:
		if tensorlike.Is(v) {
			return e.jitValue(j, e.held(v), depth)
		}
		return e.jitReflect(j, v, depth)
	}
	if j.Len() > e.most() {
		return tooLong(e.most())
	}
	return nil
}

// jitList pushes a list whose items are all of one kind.
func jitList[T any](j *pickle.JIT, kind string, items []T, push func(T)) {
	j.OpenList(kind)
	for _, x := range items {
		push(x)
	}
	j.CloseList()
}

// jitTensor adds a tensor to the message and pushes its number.
func (e *Encoder) jitTensor(j *pickle.JIT, t any) {
	e.tensor(t)
	j.TensorID(e.index(t))
}

// jitOnce pushes a container, or refers to it if it was pushed before. Only what occurs more than once is remembered, as
// TorchScript's own pickler does: see jitScan.
func (e *Encoder) jitOnce(j *pickle.JIT, v any, push func() error) error {
	id, ok := pyconv.Identify(v)
	if !ok {
		return push()
	}
	at, again := e.jitted.Get(id)
	switch {
	case !again:
		return push()
	case at == jitOpen:
		return containsItself()
	case at >= 0:
		j.Get(at)
		return nil
	}
	e.jitted.Set(id, jitOpen)
	err := push()
	e.jitted.Set(id, j.Put())
	return err
}

const (
	jitTwice = -1 // it occurs more than once and was not pushed yet
	jitOpen  = -2 // it is being pushed
)

// jitScan finds the containers that occur more than once.
func (e *Encoder) jitScan(v any, seen *pyconv.Met[bool], depth int) {
	if depth > pyconv.MaxDepth {
		return // refused later
	}
	if t, ok := v.(py.Typed); ok {
		v = t.Value
	}
	switch v.(type) {
	case []any, py.Tuple, *py.Dict:
	default:
		return // of other values nothing is shared
	}
	if id, ok := pyconv.Identify(v); ok {
		if _, again := seen.Get(id); again {
			e.jitted.Set(id, jitTwice)
			return
		}
		seen.Set(id, true)
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			e.jitScan(item, seen, depth+1)
		}
	case py.Tuple:
		for _, item := range v {
			e.jitScan(item, seen, depth+1)
		}
	case *py.Dict:
		for _, p := range pyconv.Pairs(v) {
			e.jitScan(p.Key, seen, depth+1)
			e.jitScan(p.Value, seen, depth+1)
		}
	}
}

func (e *Encoder) index(t any) int {
	for i, x := range e.Tensors {
		if x == t {
			return i
		}
	}
	return 0
}

// jitReflect takes named types, short number types, slices and maps.
func (e *Encoder) jitReflect(j *pickle.JIT, v any, depth int) error {
	if b, ok := v.(*big.Int); ok && b != nil {
		return badValue("an integer of %d bits: TorchScript has 64", b.BitLen())
	}
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Bool:
		j.Bool(r.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		j.Int(r.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if r.Uint() > math.MaxInt64 {
			return badValue("the integer %d: TorchScript has 64 bits", r.Uint())
		}
		j.Int(int64(r.Uint())) //nolint:gosec // checked
	case reflect.Float32, reflect.Float64:
		j.Float(r.Float())
	case reflect.Complex64, reflect.Complex128:
		j.Complex(r.Complex())
	case reflect.String:
		j.String(r.String())
	case reflect.Pointer:
		if r.IsNil() {
			j.None()
			return nil
		}
		return e.jitValue(j, r.Elem().Interface(), depth+1)
	case reflect.Slice, reflect.Array:
		items := make([]any, r.Len())
		for i := range items {
			items[i] = r.Index(i).Interface()
		}
		return e.jitContainer(j, r.Type(), items, depth)
	case reflect.Map:
		return e.jitContainer(j, r.Type(), &py.Dict{Pairs: sortedPairs(r)}, depth)
	default:
		return badValue("a Go %T has no TorchScript form", v)
	}
	return nil
}

// jitContainer pushes a Go slice or map with the type that its Go type has in TorchScript, else the one that its members
// have in common.
func (e *Encoder) jitContainer(j *pickle.JIT, t reflect.Type, members any, depth int) error {
	if name, ok := scriptType(t); ok {
		return e.jitTyped(j, py.Typed{Type: name, Value: members}, depth)
	}
	return e.jitValue(j, members, depth+1)
}

// scriptType names what a Go type is in TorchScript; it reports false for types whose values differ in that.
func scriptType(t reflect.Type) (string, bool) {
	if t == reflect.TypeFor[*tensor.Tensor]() || t == reflect.TypeFor[*tensor.Sparse]() {
		return "Tensor", true
	}
	if t == reflect.TypeFor[py.Device]() {
		return "Device", true
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool", true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "int", true
	case reflect.Float32, reflect.Float64:
		return "float", true
	case reflect.Complex64, reflect.Complex128:
		return "complex", true
	case reflect.String:
		return "str", true
	case reflect.Slice, reflect.Array:
		elem, ok := scriptType(t.Elem())
		return "List[" + elem + "]", ok
	case reflect.Map:
		key, ok1 := scriptType(t.Key())
		elem, ok2 := scriptType(t.Elem())
		return "Dict[" + key + ", " + elem + "]", ok1 && ok2 && t.Key().Kind() != reflect.Array
	default:
		return "", false
	}
}

func (e *Encoder) jitTuple(j *pickle.JIT, items []any, depth int) error {
	if len(items) > 3 {
		j.Mark()
	}
	for _, item := range items {
		if err := e.jitValue(j, item, depth+1); err != nil {
			return err
		}
	}
	if len(items) > 3 {
		j.Tuple()
	} else {
		j.TupleOf(len(items))
	}
	return nil
}

func (e *Encoder) jitTyped(j *pickle.JIT, t py.Typed, depth int) error {
	if strings.ContainsAny(t.Type, "\n\x00") || !strings.HasPrefix(t.Type, "List[") && !strings.HasPrefix(t.Type, "Dict[") {
		return badValue("%q is not the type of a TorchScript list or dict", t.Type)
	}
	switch items := t.Value.(type) {
	case []any:
		switch t.Type {
		case "List[int]", "List[float]", "List[bool]", "List[Tensor]":
			j.OpenList(map[string]string{
				"List[int]": "int", "List[float]": "double", "List[bool]": "bool",
				"List[Tensor]": "tensor",
			}[t.Type])
			for _, item := range items {
				if err := e.jitValue(j, item, depth+1); err != nil {
					return err
				}
			}
			j.CloseList()
			return nil
		}
		j.OpenTagged()
		j.EmptyList()
		j.Mark()
		for _, item := range items {
			if err := e.jitValue(j, item, depth+1); err != nil {
				return err
			}
		}
		j.Appends()
	case *py.Dict:
		j.OpenTagged()
		j.EmptyDict()
		j.Mark()
		for _, p := range items.Pairs {
			if err := e.jitValue(j, p.Key, depth+1); err != nil {
				return err
			}
			if err := e.jitValue(j, p.Value, depth+1); err != nil {
				return err
			}
		}
		j.SetItems()
	default:
		return badValue("a %T with the TorchScript type %q", t.Value, t.Type)
	}
	j.CloseTagged(t.Type)
	return nil
}

// valueType names the TorchScript type of a value.
func valueType(v any) (string, bool) {
	if v == nil {
		return "", false
	}
	return scriptType(reflect.TypeOf(v))
}

// common names the type that all values have.
func common(values []any) (string, bool) {
	if len(values) == 0 {
		return "Tensor", true // TorchScript's own default for an empty list
	}
	first, ok := valueType(values[0])
	for _, v := range values[1:] {
		t, known := valueType(v)
		ok = ok && known && t == first
	}
	return first, ok
}

// inferType names the type of a list or dict whose members agree.
func inferType(v any) (string, bool) {
	if items, ok := v.([]any); ok {
		t, ok := common(items)
		return "List[" + t + "]", ok
	}
	d, ok := v.(*py.Dict)
	if !ok || d == nil {
		return "", false
	}
	keys, values := make([]any, len(d.Pairs)), make([]any, len(d.Pairs))
	for i, p := range d.Pairs {
		keys[i], values[i] = p.Key, p.Value
	}
	if len(keys) == 0 {
		return "Dict[str, Tensor]", true
	}
	k, ok1 := common(keys)
	t, ok2 := common(values)
	return "Dict[" + k + ", " + t + "]", ok1 && ok2
}

// jitValue converts a TorchScript value. Lists become []any, type tags are dropped.
func (d *Decoder) jitValue(v any) (any, error) {
	o, ok := v.(*pickle.Object)
	if !ok {
		switch v := v.(type) {
		case *pickle.Tuple:
			items, err := d.jitItems(v.Items)
			return py.Tuple(items), err
		case *pickle.List:
			return d.jitItems(v.Items)
		case *pickle.Dict:
			return d.jitDict(v)
		case *pickle.PersID:
			return nil, badPayload("a storage inside a value")
		}
		return d.value(v)
	}
	if t, found := tensorID(o, d.Tensors); found {
		return t, nil
	}
	if inner, tag := pickle.Untag(o); tag != "" {
		return d.jitShared(inner)
	}
	for _, kind := range []string{"int", "double", "bool", "tensor"} {
		if _, found := pickle.BuiltList(o, kind); found {
			return d.jitShared(o.Args.Items[0]) // not its items: many lists may be built of one
		}
	}
	g, ok := o.Class.(py.Global)
	if !ok {
		return nil, badPayload("a %s inside a TorchScript value", pickle.TypeName(o))
	}
	switch g {
	case py.Global{Module: "builtins", Name: "complex"}:
		return d.value(o)
	case py.Global{Module: "torch", Name: "device"}:
		if len(o.Args.Items) == 1 {
			if name, isText := o.Args.Items[0].(string); isText {
				return py.Device(name), nil
			}
		}
	case scriptRRef:
		return d.arrive(o.Args.Items)
	}
	return nil, cohort.Newf("rpc: decode value", cohort.NotSupported,
		"a TorchScript object of class %v: only plain values, lists, dicts, tensors and references are read", g)
}

func (d *Decoder) jitItems(in []any) ([]any, error) {
	out := make([]any, len(in))
	for i, item := range in {
		v, err := d.jitShared(item)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// jitShared converts each container once however often it is mentioned.
func (d *Decoder) jitShared(v any) (any, error) {
	if !pickle.Shared(v) {
		return d.jitValue(v)
	}
	if done, ok := d.memo[v]; ok {
		return done, nil
	}
	out, err := d.jitValue(v)
	if err == nil {
		if d.memo == nil {
			d.memo = map[any]any{}
		}
		d.memo[v] = out
	}
	return out, err
}

func (d *Decoder) jitDict(v *pickle.Dict) (any, error) {
	out := &py.Dict{}
	for _, p := range v.Pairs {
		key, err := d.jitShared(p.Key)
		if err != nil {
			return nil, err
		}
		value, err := d.jitShared(p.Value)
		if err != nil {
			return nil, err
		}
		out.Pairs = append(out.Pairs, py.Pair{Key: key, Value: value})
	}
	return out, nil
}
