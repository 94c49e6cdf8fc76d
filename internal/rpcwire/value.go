// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/pickle"
	"github.com/cohort-dist/cohort/tensor"
)

// Tuple is a Python tuple. A Go slice is a list.
type Tuple []any

// Set is a Python set: its members, in the order they were sent.
type Set []any

// FrozenSet is a Python frozenset.
type FrozenSet []any

// ByteArray is a Python bytearray. A Go []byte is bytes.
type ByteArray []byte

// Pair is one entry of a Dict.
type Pair struct{ Key, Value any }

// Dict is a Python dict in insertion order.
type Dict struct{ Pairs []Pair }

// Get returns the entry of a string key; the last one counts.
func (d *Dict) Get(key string) (any, bool) {
	if d != nil {
		for _, v := range slices.Backward(d.Pairs) {
			if k, ok := v.Key.(string); ok && k == key {
				return v.Value, true
			}
		}
	}
	return nil, false
}

// Set adds or replaces the entry of a string key.
func (d *Dict) Set(key string, value any) {
	for i := range d.Pairs {
		if k, ok := d.Pairs[i].Key.(string); ok && k == key {
			d.Pairs[i].Value = value
			return
		}
	}
	d.Pairs = append(d.Pairs, Pair{key, value})
}

// Len returns the number of entries; a nil Dict has none.
func (d *Dict) Len() int {
	if d == nil {
		return 0
	}
	return len(d.Pairs)
}

// Global is a class or function by its module and qualified name.
type Global = pickle.Global

// Func splits "module.function" at the last dot. A method or nested name is written with a colon after the module:
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

// Object is a Python object that has no Go form: what would be called to make it. It can be kept and sent back.
type Object struct {
	// Class is what would be called: a Global or an *Object.
	Class any
	// New says that Class.__new__ is called instead of Class.
	New    bool
	Args   Tuple
	KwArgs *Dict
	States []any
	Items  []any
	Pairs  []Pair
}

// WorkerInfo is a worker as PyTorch passes it around.
type WorkerInfo struct {
	Name string
	ID   WorkerID
}

// RemoteException is what a Python callee answers when the function raised: the text with traceback, and the class.
type RemoteException struct {
	Msg   string
	Class Global
}

// Reference is a remote reference inside a value. The agent's reference types implement it; the codec asks the agent
// for the fork to send, and for the reference that an arriving fork becomes.
type Reference interface{ IsReference() }

// TensorHolder is a value of the program that stands for a tensor, such as one that gradients are recorded for. It is sent as
// its tensor, and whoever sends the message finds it in Encoder.Holders. Where one arrives, it is because an extension of the
// agent has put it into the tensors of the message; it fits where a tensor does.
type TensorHolder interface{ HeldTensor() *tensor.Tensor }

// TensorTarget is a type of the program that a received tensor can be made into.
type TensorTarget interface{ AssignTensor(*tensor.Tensor) error }

const rpcInternal = "torch.distributed.rpc.internal"

// The receivers are written by their dotted names, which protocol 4 allows and Python resolves.
var (
	tensorReceiver  = Global{Module: rpcInternal, Name: "_InternalRPCPickler._tensor_receiver"}
	rrefReceiver    = Global{Module: rpcInternal, Name: "_InternalRPCPickler._py_rref_receiver"}
	pythonUDF       = Global{Module: rpcInternal, Name: "PythonUDF"}
	remoteException = Global{Module: rpcInternal, Name: "RemoteException"}
	workerInfo      = Global{Module: "torch._C._distributed_rpc", Name: "WorkerInfo"}
)
