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

// The opcodes of protocols 0 to 5, with CPython's names.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opFloat           = 'F'
	opInt             = 'I'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opLong            = 'L'
	opBinInt2         = 'M'
	opNone            = 'N'
	opPersID          = 'P'
	opBinPersID       = 'Q'
	opReduce          = 'R'
	opString          = 'S'
	opBinString       = 'T'
	opShortBinString  = 'U'
	opUnicode         = 'V'
	opBinUnicode      = 'X'
	opAppend          = 'a'
	opBuild           = 'b'
	opGlobal          = 'c'
	opDict            = 'd'
	opEmptyDict       = '}'
	opAppends         = 'e'
	opGet             = 'g'
	opBinGet          = 'h'
	opInst            = 'i'
	opLongBinGet      = 'j'
	opList            = 'l'
	opEmptyList       = ']'
	opObj             = 'o'
	opPut             = 'p'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opSetItems        = 'u'
	opBinFloat        = 'G'
	opProto           = 0x80
	opNewObj          = 0x81
	opExt1            = 0x82
	opExt2            = 0x83
	opExt4            = 0x84
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opLong4           = 0x8b
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opNewObjEx        = 0x92
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
	opByteArray8      = 0x96
	opNextBuffer      = 0x97
	opReadOnlyBuffer  = 0x98
)

// The words and classes that nearly every pickle of PyTorch's RPC contains, ready as values, so that reading them takes
// no memory.
var (
	knownWords = func() map[string]any {
		words := map[string]any{}
		for _, w := range []string{
			"torch.distributed.rpc.internal", "PythonUDF", "RemoteException", "_InternalRPCPickler", "_tensor_receiver",
			"_py_rref_receiver", "_InternalRPCPickler._tensor_receiver", "_InternalRPCPickler._py_rref_receiver",
			"builtins", "getattr", "PyObject", "storage", "cpu", "0", "1", "2", "3", "Dict[str, str]", "",
		} {
			words[w] = w
		}
		return words
	}()
	knownGlobals = func() map[Global]any {
		globals := map[Global]any{}
		for _, g := range []Global{
			{Module: "torch.distributed.rpc.internal", Name: "PythonUDF"},
			{Module: "torch.distributed.rpc.internal", Name: "_InternalRPCPickler"},
			{Module: "torch.distributed.rpc.internal", Name: "_InternalRPCPickler._tensor_receiver"},
			{Module: "torch.distributed.rpc.internal", Name: "_InternalRPCPickler._py_rref_receiver"},
			{Module: "builtins", Name: "getattr"},
			{Module: "collections", Name: "OrderedDict"},
			{Module: "torch.jit._pickle", Name: "build_tensorlist"},
			{Module: "torch.jit._pickle", Name: "build_tensor_from_id"},
			{Module: "torch._utils", Name: "_rebuild_tensor_v2"},
			{Module: "torch", Name: "FloatStorage"},
			{Module: "torch", Name: "DoubleStorage"},
			{Module: "torch", Name: "LongStorage"},
		} {
			globals[g] = g
		}
		return globals
	}()
)

// maxWord is longer than every known word.
const maxWord = 48

func boxed(g Global) any {
	if v, ok := knownGlobals[g]; ok {
		return v
	}
	return g
}
