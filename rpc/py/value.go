// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package py

import "strings"

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
