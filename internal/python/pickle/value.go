// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"math/big"
	"slices"

	"github.com/cohort-dist/cohort/rpc/py"
)

// Bytes is a Python bytes object.
type Bytes []byte

// ByteArray is a Python bytearray.
type ByteArray struct{ Data []byte }

// node is what the reader knows about a container; see graph.go.
type node struct {
	depth  int32
	state  uint8
	shared bool
}

// List is a Python list.
type List struct {
	Items []any
	node
}

// Tuple is a Python tuple.
type Tuple struct {
	Items []any
	node
}

// Pair is one entry of a Dict.
type Pair struct{ Key, Value any }

// Dict is a Python dict in insertion order. A key that a pickle sets twice is there twice; the later one counts.
type Dict struct {
	Pairs []Pair
	node
}

// Set is a Python set.
type Set struct {
	Items []any
	node
}

// FrozenSet is a Python frozenset.
type FrozenSet struct {
	Items []any
	node
}

// Global is a class or function by reference: its module and its qualified name.
type Global = py.Global

// How describes what would have been done to make an Object.
type How uint8

// The ways an Object is made.
const (
	Reduce   How = iota // Class(*Args)
	NewObj              // Class.__new__(Class, *Args)
	NewObjEx            // Class.__new__(Class, *Args, **KwArgs)
)

// Object is a value that only Python could make: a call that the reader did not do.
type Object struct {
	How How
	// Class is what would be called: a Global, or an Object (such as getattr(class, "name")).
	Class any
	// Args are the positional arguments.
	Args *Tuple
	// KwArgs are the keyword arguments of NewObjEx.
	KwArgs *Dict
	// States are the arguments of BUILD, in order; normally none or one.
	States []any
	// Items and Pairs were appended or set after the object was made (list and dict subclasses, OrderedDict).
	Items []any
	Pairs []Pair
	node
}

// PersID is a persistent id: a value that the pickle names and the program provides.
type PersID struct {
	ID any
	node
}

// NewTuple returns a tuple of items.
func NewTuple(items ...any) *Tuple { return &Tuple{Items: items} }

// NewList returns a list of items.
func NewList(items ...any) *List { return &List{Items: items} }

// Call returns the Object that a call of class with args stands for.
func Call(class any, args ...any) *Object {
	return &Object{Class: class, Args: NewTuple(args...)}
}

// IsGlobal reports whether v is the class or function of that module and name.
func IsGlobal(v any, module, name string) bool {
	g, ok := v.(Global)
	return ok && g.Module == module && g.Name == name
}

// Set adds or replaces an entry with a string key.
func (d *Dict) Set(key string, value any) {
	for i := range d.Pairs {
		if k, ok := d.Pairs[i].Key.(string); ok && k == key {
			d.Pairs[i].Value = value
			return
		}
	}
	d.Pairs = append(d.Pairs, Pair{Key: key, Value: value})
}

// Get returns the entry of a string key.
func (d *Dict) Get(key string) (any, bool) {
	for _, v := range slices.Backward(d.Pairs) {
		if k, ok := v.Key.(string); ok && k == key {
			return v.Value, true
		}
	}
	return nil, false
}

// TypeName returns the Python name of a value's type, for messages.
func TypeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int, int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case complex128:
		return "complex"
	case string:
		return "str"
	case Bytes:
		return "bytes"
	case *ByteArray:
		return "bytearray"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *Set:
		return "set"
	case *FrozenSet:
		return "frozenset"
	case Global:
		return v.String()
	case *Object:
		if g, ok := v.Class.(Global); ok {
			return g.String()
		}
		return "object"
	case *PersID:
		return "persistent id"
	default:
		return "unknown"
	}
}
