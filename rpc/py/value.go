// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package py

import (
	"iter"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
)

// Tuple is a Python tuple. A Go slice is a list.
type Tuple []any

// Set is a Python set: its members, in the order they were sent.
type Set []any

// FrozenSet is a Python frozenset.
type FrozenSet []any

// ByteArray is a Python bytearray. A Go []byte is bytes.
type ByteArray []byte

// Global is a Python class or function by its module and qualified name.
type Global struct{ Module, Name string }

// Func splits "module.function" at the last dot. A method or nested name is written with a colon behind the module:
// "package.module:Class.method".
func Func(name string) Global {
	if module, qualified, ok := strings.Cut(name, ":"); ok {
		return Global{Module: module, Name: qualified}
	}
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return Global{Module: name[:i], Name: name[i+1:]}
	}
	return Global{Module: "builtins", Name: name}
}

// Object is a Python object that has no Go form: the call that would make it. It can be kept and sent back.
type Object struct {
	// Class is what would be called: a [Global] or an *Object.
	Class any
	// New says that Class.__new__ is called instead of Class.
	New bool
	// Args and KwArgs are the arguments of that call.
	Args   Tuple
	KwArgs *Dict
	// States are given to __setstate__, or update __dict__.
	States []any
	// Items are appended to an object that is a list, Pairs are set in one that is a dict.
	Items []any
	Pairs []Pair
}

// Typed is a TorchScript list or dict with its type, such as "Dict[str, int]". Go slices and maps show their type ([]string is
// List[str], map[int][]float64 is Dict[int, List[float]]); use Typed for lists and dicts whose members do not show it, such as an
// empty []any or one of tuples.
type Typed struct {
	Type  string
	Value any
}

// Device is a torch.device inside a TorchScript value.
type Device string

// Pair is one entry of a Dict.
type Pair struct{ Key, Value any }

// Dict is a Python dict in insertion order. Go maps and structs are dicts too, where the order does not matter.
//
// Keys are equal as they are in Python: 1, 1.0 and True are one key, whichever Go type they have.
type Dict struct{ Pairs []Pair }

// NewDict returns a Dict of keys and values in turn: NewDict("a", 1, "b", 2). It panics if the last key has no value.
func NewDict(keysAndValues ...any) *Dict {
	if len(keysAndValues)%2 != 0 {
		panic("py.NewDict: the last key has no value")
	}
	d := &Dict{}
	for kv := range slices.Chunk(keysAndValues, 2) {
		d.Set(kv[0], kv[1])
	}
	return d
}

// Get returns the value of a key; if the key occurs twice, the last one counts. It compares the keys one by one: use [Dict.Index]
// for many lookups in a large dict.
func (d *Dict) Get(key any) (any, bool) {
	if d == nil {
		return nil, false
	}
	want := canonical(key)
	for _, p := range slices.Backward(d.Pairs) {
		if canonical(p.Key) == want {
			return p.Value, true
		}
	}
	return nil, false
}

// Set adds or replaces the entry of a key.
func (d *Dict) Set(key, value any) {
	want := canonical(key)
	for i := range d.Pairs {
		if canonical(d.Pairs[i].Key) == want {
			d.Pairs[i].Value = value
			return
		}
	}
	d.Pairs = append(d.Pairs, Pair{key, value})
}

// Delete removes the entry of a key, if there is one.
func (d *Dict) Delete(key any) {
	want := canonical(key)
	d.Pairs = slices.DeleteFunc(d.Pairs, func(p Pair) bool { return canonical(p.Key) == want })
}

// Len returns the number of entries; a nil Dict has none.
func (d *Dict) Len() int {
	if d == nil {
		return 0
	}
	return len(d.Pairs)
}

// All iterates over the entries in their order.
func (d *Dict) All() iter.Seq2[any, any] {
	return func(yield func(any, any) bool) {
		if d == nil {
			return
		}
		for _, p := range d.Pairs {
			if !yield(p.Key, p.Value) {
				return
			}
		}
	}
}

// Index returns a function that does what Get does, through a table that is built once. It does not see later changes to the
// dict.
func (d *Dict) Index() func(key any) (any, bool) {
	table := make(map[any]any, d.Len())
	for k, v := range d.All() {
		table[canonical(k)] = v
	}
	return func(key any) (any, bool) {
		v, ok := table[canonical(key)]
		return v, ok
	}
}

// The forms of keys that Go cannot compare, or compares differently from Python.
type (
	bytesKey string // bytes
	tupleKey string // a tuple, by what it looks like
	bigKey   string // an int beyond 64 bits, or a float that is one
	odd      struct{ at any }
)

// canonical returns what stands for a key: equal for keys that are equal in Python, and comparable.
func canonical(key any) any {
	switch k := key.(type) {
	case nil, string, Global:
		return k
	case int64:
		return k
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case []byte:
		return bytesKey(k)
	case *big.Int:
		if k != nil && k.IsInt64() {
			return k.Int64()
		}
		return bigKey(k.String())
	case Tuple:
		return tupleKey(tupleText(k))
	case FrozenSet:
		return tupleKey(Repr(k))
	}
	r := reflect.ValueOf(key)
	switch {
	case r.CanInt():
		return r.Int()
	case r.CanUint():
		if n := r.Uint(); n <= math.MaxInt64 {
			return int64(n)
		}
		return bigKey(new(big.Int).SetUint64(r.Uint()).String())
	case r.CanFloat():
		return canonicalFloat(r.Float())
	case r.Kind() == reflect.String:
		return r.String()
	case r.Comparable():
		return key
	}
	return odd{new(byte)} // a list or dict, which cannot be a key in Python: equal to nothing
}

func canonicalFloat(f float64) any {
	if f != math.Trunc(f) || math.IsInf(f, 0) {
		return f
	}
	if f >= -(1<<63) && f < 1<<63 {
		return int64(f)
	}
	n, _ := big.NewFloat(f).Int(nil)
	return bigKey(n.String())
}

// tupleText is the text of a tuple's members in their canonical form.
func tupleText(t Tuple) string {
	same := make(Tuple, len(t))
	for i, v := range t {
		switch c := canonical(v).(type) {
		case bytesKey:
			same[i] = []byte(c)
		case tupleKey:
			same[i] = Global{Name: string(c)} // printed as it is
		case bigKey:
			same[i] = Global{Name: string(c)}
		default:
			same[i] = c
		}
	}
	return Repr(same)
}
