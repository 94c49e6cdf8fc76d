// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"math/big"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Decoder turns Python pickles into Go values:
//
//	None, bool, int, float, complex, str    nil, bool, int64 or *big.Int, float64, complex128, string
//	bytes, bytearray                        []byte, ByteArray
//	list, tuple, dict, set, frozenset       []any, Tuple, *Dict, Set, FrozenSet
//	tensors                                 *tensor.Tensor, *Sparse
//	references                              what Arrive makes of them
//	classes and functions                   Global
//	WorkerInfo, RemoteException             WorkerInfo, *RemoteException
//	anything else                           *Object
//
// A list or dict that the pickle mentions twice is the same Go value twice.
type Decoder struct {
	// Tensors are the tensors of the message.
	Tensors []any
	// Arrive makes the reference of a fork that came. Nil refuses references.
	Arrive func(RRefFork) (any, error)

	memo map[any]any
}

// Unpickle reads a Python pickle.
func (d *Decoder) Unpickle(data []byte) (any, error) {
	v, err := pickle.Decode(data, pickle.Limits{Depth: pyconv.MaxDepth})
	if err != nil {
		return nil, err
	}
	return d.value(v)
}

func (d *Decoder) value(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, *big.Int, py.Global:
		return v, nil
	case pickle.Bytes:
		return []byte(v), nil
	case *pickle.ByteArray:
		return py.ByteArray(v.Data), nil
	}
	shared := pickle.Shared(v)
	if shared {
		if done, ok := d.memo[v]; ok {
			return done, nil
		}
	}
	out, err := d.container(v)
	if err != nil {
		return nil, err
	}
	if shared {
		if d.memo == nil {
			d.memo = map[any]any{}
		}
		d.memo[v] = out
	}
	return out, nil
}

func (d *Decoder) container(v any) (any, error) {
	switch v := v.(type) {
	case *pickle.List:
		return d.items(v.Items)
	case *pickle.Tuple:
		items, err := d.items(v.Items)
		return py.Tuple(items), err
	case *pickle.Set:
		items, err := d.items(v.Items)
		return py.Set(items), err
	case *pickle.FrozenSet:
		items, err := d.items(v.Items)
		return py.FrozenSet(items), err
	case *pickle.Dict:
		pairs, err := d.pairs(v.Pairs)
		return &py.Dict{Pairs: pairs}, err
	case *pickle.Object:
		return d.object(v)
	default:
		return nil, badPayload("a %s inside a value", pickle.TypeName(v))
	}
}

func (d *Decoder) items(in []any) ([]any, error) {
	out := make([]any, len(in))
	for i, item := range in {
		v, err := d.value(item)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (d *Decoder) pairs(in []pickle.Pair) ([]py.Pair, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]py.Pair, len(in))
	for i, p := range in {
		k, err := d.value(p.Key)
		if err != nil {
			return nil, err
		}
		v, err := d.value(p.Value)
		if err != nil {
			return nil, err
		}
		out[i] = py.Pair{Key: k, Value: v}
	}
	return out, nil
}

// maxQualified bounds names that are put together from attributes of attributes.
const maxQualified = 1 << 10

// callee returns what an object's class is when it can be named: a global, or an attribute of one.
func callee(class any) (py.Global, bool) {
	switch c := class.(type) {
	case py.Global:
		return c, true
	case *pickle.Object:
		if c.How != pickle.Reduce || len(c.Args.Items) != 2 ||
			!pickle.IsGlobal(c.Class, "builtins", "getattr") && !pickle.IsGlobal(c.Class, "__builtin__", "getattr") {
			return py.Global{}, false
		}
		base, ok1 := callee(c.Args.Items[0])
		name, ok2 := c.Args.Items[1].(string)
		if !ok1 || !ok2 || len(base.Name)+len(name) >= maxQualified {
			return py.Global{}, false
		}
		return py.Global{Module: base.Module, Name: base.Name + "." + name}, true
	}
	return py.Global{}, false
}

func (d *Decoder) object(o *pickle.Object) (any, error) {
	name, named := callee(o.Class)
	if named && len(o.Items) == 0 && o.KwArgs == nil {
		if v, known, err := d.known(name, o); known || err != nil {
			return v, err
		}
	}
	if named { // a bound attribute by itself: getattr(module.Class, "method")
		if g, ok := callee(o); ok {
			return g, nil
		}
	}
	return d.opaque(o)
}

// known handles the objects that have a Go form. It reports false for all others.
func (d *Decoder) known(name py.Global, o *pickle.Object) (any, bool, error) {
	args := o.Args.Items
	switch name {
	case tensorReceiver:
		if len(args) == 1 {
			if i, ok := args[0].(int64); ok && i >= 0 && i < int64(len(d.Tensors)) {
				return d.Tensors[i], true, nil
			}
		}
		return nil, true, badPayload("a tensor that the message does not have (it has %d)", len(d.Tensors))
	case rrefReceiver:
		if len(args) != 1 {
			return nil, true, badPayload("a remote reference of %d parts", len(args))
		}
		t, ok := args[0].(*pickle.Tuple)
		if !ok {
			return nil, true, badPayload("a remote reference made of a %s", pickle.TypeName(args[0]))
		}
		v, err := d.arrive(t.Items)
		return v, true, err
	case remoteException:
		if len(args) == 2 {
			msg, ok1 := args[0].(string)
			class, ok2 := parseExceptionClass(args[1])
			if ok1 && ok2 {
				return &RemoteException{msg, class}, true, nil
			}
		}
		return nil, true, badPayload("an exception without text and class")
	case workerInfo:
		v, err := worker(o)
		return v, true, err
	}
	switch {
	case name.Name == "complex" && isBuiltins(name.Module) && len(args) == 2:
		re, ok1 := args[0].(float64)
		im, ok2 := args[1].(float64)
		return complex(re, im), ok1 && ok2, nil
	case name == py.Global{Module: "collections", Name: "OrderedDict"} && len(args) == 0 && len(o.States) == 0:
		pairs, err := d.pairs(o.Pairs)
		return &py.Dict{Pairs: pairs}, true, err
	case name == py.Global{Module: "torch", Name: "Size"} && len(args) == 1 && len(o.States) == 0:
		if t, ok := args[0].(*pickle.Tuple); ok {
			v, err := d.value(t)
			return v, true, err
		}
	case name == py.Global{Module: "_codecs", Name: "encode"} && len(args) == 2: // bytes in protocol 2
		if s, ok := args[0].(string); ok && args[1] == any("latin1") {
			b, ok := unlatin1(s)
			return b, ok, nil
		}
	case name.Name == "bytearray" && isBuiltins(name.Module) && len(args) == 1:
		if b, ok := args[0].(pickle.Bytes); ok {
			return py.ByteArray(b), true, nil
		}
	case name.Name == "bytearray" && isBuiltins(name.Module) && len(args) == 0: // Python's form of an empty one
		return py.ByteArray{}, true, nil
	case (name.Name == "set" || name.Name == "frozenset") && isBuiltins(name.Module) && len(args) == 1:
		if l, ok := args[0].(*pickle.List); ok {
			v, err := d.value(l) // not its items: many sets may be made of one list
			items, _ := v.([]any)
			if name.Name == "set" {
				return py.Set(items), true, err
			}
			return py.FrozenSet(items), true, err
		}
	}
	return nil, false, nil
}

func isBuiltins(module string) bool { return module == "builtins" || module == "__builtin__" }

func unlatin1(s string) ([]byte, bool) {
	b := make([]byte, 0, len(s))
	for _, c := range s {
		if c > 0xff {
			return nil, false
		}
		b = append(b, byte(c)) //nolint:gosec // checked
	}
	return b, true
}

func (d *Decoder) arrive(items []any) (any, error) {
	f, ok := parseRRefFork(items)
	if !ok {
		return nil, badPayload("a remote reference whose seven parts have the wrong types")
	}
	if d.Arrive == nil {
		return nil, cohort.New("rpc: decode value", cohort.NotSupported, "a remote reference cannot be received here")
	}
	return d.Arrive(f)
}

// worker reads a WorkerInfo: the arguments of a call, or the state (name, id).
func worker(o *pickle.Object) (WorkerInfo, error) {
	parts := o.Args.Items
	if len(o.States) == 1 {
		if t, ok := o.States[0].(*pickle.Tuple); ok {
			parts = t.Items
		}
	}
	if len(parts) == 2 {
		name, ok1 := parts[0].(string)
		id, ok2 := parseWorkerID(parts[1])
		if ok1 && ok2 {
			return WorkerInfo{name, id}, nil
		}
	}
	return WorkerInfo{}, badPayload("a WorkerInfo without name and id")
}

func (d *Decoder) opaque(o *pickle.Object) (any, error) {
	class, err := d.value(o.Class)
	if err != nil {
		return nil, err
	}
	if _, made := o.Class.(*pickle.Object); made {
		switch class.(type) {
		case py.Global, *py.Object:
		default: // a set or tensor, say: Python could not call it either
			return nil, badPayload("a call of a value, not of a function or class")
		}
	}
	out := &py.Object{Class: class, New: o.How != pickle.Reduce}
	args, err := d.value(o.Args) // not its items: many objects may have one tuple of arguments
	if err != nil {
		return nil, err
	}
	out.Args, _ = args.(py.Tuple)
	if o.KwArgs != nil {
		kwargs, kwErr := d.value(o.KwArgs)
		if kwErr != nil {
			return nil, kwErr
		}
		out.KwArgs, _ = kwargs.(*py.Dict)
	}
	if out.States, err = d.items(o.States); err != nil {
		return nil, err
	}
	if out.Items, err = d.items(o.Items); err != nil {
		return nil, err
	}
	out.Pairs, err = d.pairs(o.Pairs)
	return out, err
}

// WorkerInfo is a worker as PyTorch passes it around.
type WorkerInfo struct {
	Name string
	ID   WorkerID
}

// RemoteException is what a Python callee answers when the function raised: the text with traceback, and the class.
type RemoteException struct {
	Msg   string
	Class py.Global
}

const rpcInternal = "torch.distributed.rpc.internal"

// The receivers are written by their dotted names, which protocol 4 allows and Python resolves.
var (
	tensorReceiver  = py.Global{Module: rpcInternal, Name: "_InternalRPCPickler._tensor_receiver"}
	rrefReceiver    = py.Global{Module: rpcInternal, Name: "_InternalRPCPickler._py_rref_receiver"}
	pythonUDF       = py.Global{Module: rpcInternal, Name: "PythonUDF"}
	remoteException = py.Global{Module: rpcInternal, Name: "RemoteException"}
	workerInfo      = py.Global{Module: "torch._C._distributed_rpc", Name: "WorkerInfo"}
)
