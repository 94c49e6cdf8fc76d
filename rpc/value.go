// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// Value stands for any value that can travel. In Go they are
//
//	None, bool, int, float, complex, str    nil, bool, int64 or *big.Int, float64, complex128, string
//	bytes, bytearray                        []byte, ByteArray
//	list, tuple, dict, set, frozenset       []any, Tuple, *Dict, Set, FrozenSet
//	torch.Tensor, torch.sparse_coo          *tensor.Tensor, *Sparse
//	RRef                                    *Ref[T]
//	classes and functions                   Global
//	any other Python object                 *Object, which can be kept and sent back
//
// Where Go code names a type (a result, a field, a parameter) values are converted: an int fits a float64, a tuple or
// set a slice, a dict a map or struct, None a pointer, slice, map or struct{}. A number that does not fit is an error.
// Printed, the types of this package look as they do in Python.
type Value = any

// The Python types that Go has no type for.
type (
	// Tuple is a Python tuple. A Go slice is a list.
	Tuple = rpcwire.Tuple
	// Set is a Python set.
	Set = rpcwire.Set
	// FrozenSet is a Python frozenset.
	FrozenSet = rpcwire.FrozenSet
	// Dict is a Python dict in insertion order. Go maps and structs are dicts too.
	Dict = rpcwire.Dict
	// Pair is one entry of a Dict.
	Pair = rpcwire.Pair
	// ByteArray is a Python bytearray. A Go []byte is bytes.
	ByteArray = rpcwire.ByteArray
	// Global is a Python class or function by its module and name.
	Global = rpcwire.Global
	// Object is a Python object that has no Go form.
	Object = rpcwire.Object
	// Sparse is a tensor in coordinate form (torch.sparse_coo).
	Sparse = rpcwire.Sparse
	// Typed is a TorchScript list or dict with its type, such as "Dict[str, int]".
	Typed = rpcwire.Typed
	// Device is a torch.device inside a TorchScript value.
	Device = rpcwire.Device
)

// Kw holds the keyword arguments of a call; it is the last argument.
type Kw map[string]any

// Assign stores a received value in the variable that dst points to, converting as results and arguments are.
func Assign(dst any, v Value) error { return rpcwire.Assign(dst, v) }

// splitArgs separates positional and keyword arguments.
func splitArgs(args []any) ([]any, *rpcwire.Dict) {
	if len(args) == 0 {
		return nil, nil
	}
	kw, ok := args[len(args)-1].(Kw)
	if !ok {
		return args, nil
	}
	d := &rpcwire.Dict{}
	for _, name := range sortedNames(kw) {
		d.Pairs = append(d.Pairs, rpcwire.Pair{Key: name, Value: kw[name]})
	}
	return args[:len(args)-1], d
}

const (
	scriptPrefix = "__torch__."
	opsPrefix    = "torch.ops."
)

// target says what a function name means on the wire.
type target struct {
	udf    rpcwire.Global
	schema string // of a builtin operator
	script string // of a TorchScript function or a builtin: the qualified name
}

func (t target) isScript() bool { return t.script != "" }

// check refuses what no worker could be asked for.
func (t target) check(op, fn string, kwargs *rpcwire.Dict) error {
	var e *dist.Error
	switch {
	case t.isScript() && kwargs.Len() > 0:
		e = dist.New(op, dist.InvalidArgument, "TorchScript functions and operators take positional arguments only")
	case t.isScript():
		return nil
	case strings.HasPrefix(t.udf.Name, ":"):
		e = dist.New(op, dist.InvalidArgument, "an operator is called by its whole schema, such as aten::mul.Tensor(Tensor self, Tensor other) -> Tensor")
	case t.udf.Module == "" || t.udf.Name == "":
		e = dist.New(op, dist.InvalidArgument, "not the name of a function: want module.function")
	default:
		return nil
	}
	e.Key = fn
	return e
}

// parseTarget reads a function name; see the package documentation.
func parseTarget(fn string) target {
	switch {
	case strings.HasPrefix(fn, scriptPrefix):
		return target{script: fn}
	case strings.Contains(fn, "::") && strings.Contains(fn, "("):
		name, _, _ := strings.Cut(fn, "(")
		name, _, _ = strings.Cut(name, ".")
		return target{schema: fn, script: opsPrefix + strings.ReplaceAll(name, "::", ".")}
	}
	return target{udf: rpcwire.Func(fn)}
}
