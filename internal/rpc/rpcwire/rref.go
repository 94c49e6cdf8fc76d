// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"fmt"
	"math"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// WorkerID numbers a worker. PyTorch has 16 bits for it.
type WorkerID int16

// GlobalID names a reference or a fork in the whole world: who made it, and a counter there.
type GlobalID struct {
	On    WorkerID
	Local int64
}

// String returns PyTorch's form.
func (g GlobalID) String() string {
	return fmt.Sprintf("GloballyUniqueId(created_on=%d, local_id=%d)", g.On, g.Local)
}

func (g GlobalID) push(j *pickle.JIT) {
	j.Int(int64(g.On))
	j.Int(g.Local)
	j.TupleOf(2)
}

func parseGlobalID(v any) (GlobalID, bool) {
	t, ok := v.(*pickle.Tuple)
	if !ok || len(t.Items) != 2 {
		return GlobalID{}, false
	}
	on, ok1 := parseWorkerID(t.Items[0])
	local, ok2 := t.Items[1].(int64)
	return GlobalID{on, local}, ok1 && ok2
}

func parseWorkerID(v any) (WorkerID, bool) {
	n, ok := v.(int64)
	return WorkerID(n), ok && n >= 0 && n <= math.MaxInt16 //nolint:gosec // checked
}

// TypePyObject is the type name of a reference to a Python object; any other is a TorchScript type.
const TypePyObject = "PyObject"

// RRefFork is a reference on its way to another worker: the seven numbers that PyTorch pickles.
type RRefFork struct {
	Owner    WorkerID
	RRef     GlobalID
	Fork     GlobalID
	Parent   WorkerID
	TypeName string
}

func (f RRefFork) tuple() *pickle.Tuple {
	return pickle.NewTuple(int64(f.Owner), int64(f.RRef.On), f.RRef.Local, int64(f.Fork.On), f.Fork.Local, int64(f.Parent), f.TypeName)
}

func (f RRefFork) push(j *pickle.JIT) {
	j.Global("torch.distributed.rpc", "rref")
	j.Mark()
	j.Int(int64(f.Owner))
	j.Int(int64(f.RRef.On))
	j.Int(f.RRef.Local)
	j.Int(int64(f.Fork.On))
	j.Int(f.Fork.Local)
	j.Int(int64(f.Parent))
	j.String(f.TypeName)
	j.Tuple()
	j.Reduce()
}

func parseRRefFork(items []any) (RRefFork, bool) {
	if len(items) != 7 {
		return RRefFork{}, false
	}
	var f RRefFork
	var ok [7]bool
	f.Owner, ok[0] = parseWorkerID(items[0])
	f.RRef.On, ok[1] = parseWorkerID(items[1])
	f.RRef.Local, ok[2] = items[2].(int64)
	f.Fork.On, ok[3] = parseWorkerID(items[3])
	f.Fork.Local, ok[4] = items[4].(int64)
	f.Parent, ok[5] = parseWorkerID(items[5])
	f.TypeName, ok[6] = items[6].(string)
	for _, good := range ok {
		if !good {
			return RRefFork{}, false
		}
	}
	return f, true
}

// RRefPair is the payload of REMOTE_RET, RREF_USER_DELETE and RREF_FORK_REQUEST: a reference and one of its forks. Key is in
// the creating calls of Go workers to each other: it proves later that a worker was given the reference.
type RRefPair struct {
	RRef, Fork GlobalID
	Key        [16]byte
}

// Encode returns the payload.
func (p RRefPair) Encode() ([]byte, error) {
	j := pickle.NewJIT(nil)
	p.RRef.push(j)
	j.Put()
	p.Fork.push(j)
	j.Put()
	j.TupleOf(2)
	return j.Finish()
}

// DecodeRRefPair reads the payload of such a message.
func DecodeRRefPair(payload []byte) (RRefPair, error) {
	items, err := jitTuple(payload, 2)
	if err != nil {
		return RRefPair{}, err
	}
	rref, ok1 := parseGlobalID(items[0])
	fork, ok2 := parseGlobalID(items[1])
	if !ok1 || !ok2 {
		return RRefPair{}, badPayload("ids of a reference and a fork are expected")
	}
	return RRefPair{RRef: rref, Fork: fork}, nil
}

// EncodeForkID returns the payload of RREF_CHILD_ACCEPT.
func EncodeForkID(fork GlobalID) ([]byte, error) {
	j := pickle.NewJIT(nil)
	fork.push(j)
	j.Put()
	j.TupleOf(1)
	return j.Finish()
}

// DecodeForkID reads the payload of RREF_CHILD_ACCEPT.
func DecodeForkID(payload []byte) (GlobalID, error) {
	items, err := jitTuple(payload, 1)
	if err != nil {
		return GlobalID{}, err
	}
	fork, ok := parseGlobalID(items[0])
	if !ok {
		return GlobalID{}, badPayload("the id of a fork is expected")
	}
	return fork, nil
}

// Fetch is the payload of the two RREF_FETCH_CALLs.
type Fetch struct {
	RRef GlobalID
	// From is a worker id; PyTorch writes the owner's.
	From WorkerID
}

// Encode returns the payload.
func (f Fetch) Encode() ([]byte, error) {
	j := pickle.NewJIT(nil)
	f.RRef.push(j)
	j.Int(int64(f.From))
	j.TupleOf(2)
	return j.Finish()
}

// DecodeFetch reads the payload of a fetch.
func DecodeFetch(payload []byte) (Fetch, error) {
	items, err := jitTuple(payload, 2)
	if err != nil {
		return Fetch{}, err
	}
	rref, ok1 := parseGlobalID(items[0])
	from, ok2 := parseWorkerID(items[1])
	if !ok1 || !ok2 {
		return Fetch{}, badPayload("the id of a reference and a worker id are expected")
	}
	return Fetch{rref, from}, nil
}

func badPayload(format string, args ...any) error {
	return cohort.Newf("rpc: decode payload", cohort.Protocol, format, args...)
}

// jitDecode reads a TorchScript pickle.
func jitDecode(payload []byte) (any, error) {
	return pickle.Decode(payload, pickle.Limits{RawStrings: true, JIT: true})
}

// jitTuple reads a TorchScript pickle that must be a tuple of n items, or of any number when n is negative.
func jitTuple(payload []byte, n int) ([]any, error) {
	v, err := jitDecode(payload)
	if err != nil {
		return nil, err
	}
	t, ok := v.(*pickle.Tuple)
	if !ok || n >= 0 && len(t.Items) != n {
		return nil, badPayload("a %s where a tuple is expected", pickle.TypeName(v))
	}
	return t.Items, nil
}

// scriptRRef is a reference among TorchScript values.
var scriptRRef = py.Global{Module: "torch.distributed.rpc", Name: "rref"}

const (
	// maxWrappers bounds the wrappers around a message.
	maxWrappers = 8
	// maxForksDepth is deeper than what is taken as a value, and deeper than what Python can write.
	maxForksDepth = 1 << 14
)

// Forks returns the references that a message of a PyTorch worker brings, whatever else in it cannot be read. It finds none in what is no
// pickle, and none in a message of a Go worker, which names them outside of its payload.
func Forks(kind Type, payload []byte) []RRefFork { return forks(kind, payload, 0) }

// forks is Forks inside so many wrappers.
func forks(kind Type, payload []byte, wrappers int) []RRefFork {
	if isNative(payload) || wrappers > maxWrappers || len(payload) == 0 {
		return nil
	}
	switch kind { //nolint:exhaustive // the others bring none
	case ForwardAutogradReq, ForwardAutogradResp:
		if a, inner, err := UnwrapAutograd(payload); err == nil {
			return forks(a.Inner, inner, wrappers+1)
		}
	case RunWithProfilingReq, RunWithProfilingResp:
		if p, inner, err := UnwrapProfiling(payload); err == nil {
			return forks(p.Inner, inner, wrappers+1)
		}
	case PythonCall:
		return pythonForks(payload[1:])
	case PythonRet:
		return pythonForks(payload)
	case PythonRemoteCall, PythonRRefFetchRet: // the pickle is a string among TorchScript values
		items, _ := jitTuple(payload, -1)
		for _, item := range items {
			if data, ok := item.(string); ok {
				return pythonForks([]byte(data))
			}
		}
	case ScriptCall, ScriptRemoteCall, ScriptRet, ScriptRRefFetchRet:
		if v, err := jitDecode(payload); err == nil {
			return forksOf(v)
		}
	}
	return nil
}

func pythonForks(data []byte) []RRefFork {
	v, err := pickle.Decode(data, pickle.Limits{Depth: maxForksDepth, Cycles: true})
	if err != nil {
		return nil
	}
	return forksOf(v)
}

// forksOf returns the references inside a decoded pickle.
func forksOf(v any) (all []RRefFork) {
	pickle.Walk(v, func(v any) {
		o, ok := v.(*pickle.Object)
		if !ok {
			return
		}
		name, _ := callee(o.Class)
		parts := o.Args.Items
		if name == rrefReceiver && len(parts) == 1 { // the tuple of them
			if t, is := parts[0].(*pickle.Tuple); is {
				parts = t.Items
			}
		}
		if f, is := parseRRefFork(parts); is && (name == rrefReceiver || name == scriptRRef) {
			all = append(all, f)
		}
	})
	return all
}
