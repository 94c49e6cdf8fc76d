// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"strings"

	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// ScriptUDF is a SCRIPT_CALL: a builtin operator by its schema, or a TorchScript function by its qualified name.
type ScriptUDF struct {
	// Schema is the whole text of a builtin's schema, "aten::add.Tensor(...) -> Tensor"; empty for a function.
	Schema string
	// Name is "torch.ops.aten.add" or "__torch__.module.function".
	Name string
	// Stack are all arguments in schema order, defaults filled in.
	Stack []any
	// Async marks a TorchScript function that returns a future.
	Async bool
}

// Operator returns "aten::add.Tensor" of a builtin's schema, which names the overload in every PyTorch version.
func (s ScriptUDF) Operator() string {
	name, _, _ := strings.Cut(s.Schema, "(")
	return name
}

func (e *Encoder) scriptItems(s ScriptUDF) []any {
	items := append([]any{}, s.Stack...)
	if s.Schema != "" {
		return append(items, s.Schema, s.Name)
	}
	return append(items, s.Async, s.Name)
}

// ScriptCall returns the payload of a SCRIPT_CALL.
func (e *Encoder) ScriptCall(s ScriptUDF) ([]byte, error) {
	if e.Native {
		return e.sealed(e.nativeScript(append(make([]byte, 0, 192), nativeMark), s))
	}
	j := pickle.NewJIT(make([]byte, 0, 256))
	items := e.scriptItems(s)
	e.jitScan(py.Tuple(items), &pyconv.Met[bool]{}, 0)
	if err := e.jitTuple(j, items, 0); err != nil {
		return nil, err
	}
	return j.Finish()
}

func (d *Decoder) script(items []any) (ScriptUDF, error) {
	if len(items) < 2 {
		return ScriptUDF{}, badPayload("a TorchScript call of %d parts", len(items))
	}
	name, ok := items[len(items)-1].(string)
	if !ok {
		return ScriptUDF{}, badPayload("a TorchScript call without a name")
	}
	s := ScriptUDF{Name: name}
	switch second := items[len(items)-2].(type) {
	case string:
		s.Schema = second
	case bool:
		s.Async = second
	default:
		return ScriptUDF{}, badPayload("a TorchScript call with neither schema nor flag")
	}
	var err error
	s.Stack, err = d.jitItems(items[:len(items)-2])
	return s, err
}

// ScriptCall reads the payload of a SCRIPT_CALL.
func (d *Decoder) ScriptCall(payload []byte) (ScriptUDF, error) {
	if isNative(payload) {
		r := newNativeReader(d, payload)
		s := r.script()
		return s, r.finish()
	}
	items, err := jitTuple(payload, -1)
	if err != nil {
		return ScriptUDF{}, err
	}
	return d.script(items)
}

// RemoteScriptUDF is a SCRIPT_REMOTE_CALL.
type RemoteScriptUDF struct {
	ScriptUDF
	RRefPair
}

// ScriptRemoteCall returns the payload of a SCRIPT_REMOTE_CALL.
func (e *Encoder) ScriptRemoteCall(r RemoteScriptUDF) ([]byte, error) {
	if e.Native {
		return e.sealed(e.nativeScript(r.native(append(make([]byte, 0, 192), nativeMark)), r.ScriptUDF))
	}
	j := pickle.NewJIT(make([]byte, 0, 256))
	j.Mark() // at least four items
	items := e.scriptItems(r.ScriptUDF)
	e.jitScan(py.Tuple(items), &pyconv.Met[bool]{}, 0)
	for _, item := range items {
		if err := e.jitValue(j, item, 1); err != nil {
			return nil, err
		}
	}
	r.RRef.push(j)
	r.Fork.push(j)
	j.Tuple()
	return j.Finish()
}

// ScriptRemoteCall reads the payload of a SCRIPT_REMOTE_CALL.
func (d *Decoder) ScriptRemoteCall(payload []byte) (RemoteScriptUDF, error) {
	if isNative(payload) {
		n := newNativeReader(d, payload)
		r := RemoteScriptUDF{RRefPair: n.pair()}
		if n.err != nil {
			return RemoteScriptUDF{}, n.err
		}
		r.ScriptUDF = n.script()
		return r, n.finish()
	}
	items, err := jitTuple(payload, -1)
	if err != nil {
		return RemoteScriptUDF{}, err
	}
	if len(items) < 4 {
		return RemoteScriptUDF{}, badPayload("a remote call of %d parts", len(items))
	}
	rref, ok1 := parseGlobalID(items[len(items)-2])
	fork, ok2 := parseGlobalID(items[len(items)-1])
	if !ok1 || !ok2 {
		return RemoteScriptUDF{}, badPayload("a remote call without ids")
	}
	r := RemoteScriptUDF{RRefPair: RRefPair{RRef: rref, Fork: fork}}
	r.ScriptUDF, err = d.script(items[:len(items)-2])
	return r, err
}

// ScriptRet returns the payload of a SCRIPT_RET.
func (e *Encoder) ScriptRet(v any) ([]byte, error) {
	if e.Native {
		return e.sealed(e.native(append(make([]byte, 0, 64), nativeMark), v, 0))
	}
	j := pickle.NewJIT(make([]byte, 0, 128))
	e.jitScan(v, &pyconv.Met[bool]{}, 0)
	if err := e.jitValue(j, v, 0); err != nil {
		return nil, err
	}
	return j.Finish()
}

// ScriptRet reads the payload of a SCRIPT_RET.
func (d *Decoder) ScriptRet(payload []byte) (any, error) {
	if isNative(payload) {
		return d.nativeValue(payload)
	}
	v, err := jitDecode(payload)
	if err != nil {
		return nil, err
	}
	return d.jitShared(v)
}

// ScriptFetchRet returns the payload of a SCRIPT_RREF_FETCH_RET.
func (e *Encoder) ScriptFetchRet(v any) ([]byte, error) {
	if e.Native {
		return e.ScriptRet(v)
	}
	return e.ScriptRet(py.Tuple{v})
}

// ScriptFetchRet reads the payload of a SCRIPT_RREF_FETCH_RET.
func (d *Decoder) ScriptFetchRet(payload []byte) (any, error) {
	if isNative(payload) {
		return d.nativeValue(payload)
	}
	items, err := jitTuple(payload, 1)
	if err != nil {
		return nil, err
	}
	return d.jitShared(items[0])
}
