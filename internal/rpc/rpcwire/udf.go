// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// UDF is a call of a Python function, or of a Go handler under such a name.
type UDF struct {
	Func   py.Global
	Args   []any
	Kwargs *py.Dict
}

// pickle returns the pickle of the call.
func (e *Encoder) udf(u UDF) ([]byte, error) {
	args, err := e.items(u.Args, 0)
	if err != nil {
		return nil, err
	}
	kwargs := &pickle.Dict{}
	if u.Kwargs != nil {
		if kwargs.Pairs, err = e.pairs(u.Kwargs.Pairs, 0); err != nil {
			return nil, err
		}
	}
	o := pickle.Call(pythonUDF, u.Func, &pickle.Tuple{Items: args}, kwargs)
	o.How = pickle.NewObj
	return pickle.AppendAtMost(make([]byte, 0, 256), o, pickle.DefaultProtocol, e.most())
}

func (d *Decoder) udf(data []byte) (UDF, error) {
	v, err := pickle.Decode(data, pickle.Limits{Depth: pyconv.MaxDepth})
	if err != nil {
		return UDF{}, err
	}
	o, ok := v.(*pickle.Object)
	if !ok || o.Class != any(pythonUDF) || len(o.Args.Items) != 3 {
		return UDF{}, badPayload("a %s where the call of a Python function is expected", pickle.TypeName(v))
	}
	name, ok := callee(o.Args.Items[0])
	if !ok {
		return UDF{}, badPayload("the call of a %s: a Go worker serves functions by name only", pickle.TypeName(o.Args.Items[0]))
	}
	args, ok1 := o.Args.Items[1].(*pickle.Tuple)
	kwargs, ok2 := o.Args.Items[2].(*pickle.Dict)
	if !ok1 || !ok2 {
		return UDF{}, badPayload("a call whose arguments are a %s and a %s", pickle.TypeName(o.Args.Items[1]),
			pickle.TypeName(o.Args.Items[2]))
	}
	u := UDF{Func: name}
	if u.Args, err = d.items(args.Items); err != nil {
		return UDF{}, err
	}
	pairs, err := d.pairs(kwargs.Pairs)
	if err != nil {
		return UDF{}, err
	}
	for _, p := range pairs {
		if _, ok := p.Key.(string); !ok {
			return UDF{}, badPayload("a keyword argument that is not a string")
		}
	}
	u.Kwargs = &py.Dict{Pairs: pairs}
	return u, nil
}

// PythonCall returns the payload of a PYTHON_CALL. The tensors are in e.Tensors afterwards. async tells a PyTorch
// callee that the function returns a future (rpc.functions.async_execution).
func (e *Encoder) PythonCall(u UDF, async bool) ([]byte, error) {
	if e.Native {
		return e.sealed(e.nativeUDF(append(make([]byte, 0, 128), nativeMark), u))
	}
	data, err := e.udf(u)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 1, 1+len(data))
	if async {
		out[0] = 1
	}
	return append(out, data...), nil
}

// PythonCall reads the payload of a PYTHON_CALL.
func (d *Decoder) PythonCall(payload []byte) (u UDF, async bool, err error) {
	if len(payload) == 0 {
		return UDF{}, false, badPayload("an empty PYTHON_CALL")
	}
	if isNative(payload) {
		r := newNativeReader(d, payload)
		u = r.udf()
		return u, false, r.finish()
	}
	u, err = d.udf(payload[1:])
	return u, payload[0] != 0, err
}

// PythonRet returns the payload of a PYTHON_RET. A failure is a *RemoteException value.
func (e *Encoder) PythonRet(v any) ([]byte, error) {
	if e.Native {
		return e.sealed(e.native(append(make([]byte, 0, 64), nativeMark), v, 0))
	}
	return e.Pickle(v)
}

// PythonRet reads the payload of a PYTHON_RET; a *RemoteException is a value here, for the caller to raise.
func (d *Decoder) PythonRet(payload []byte) (any, error) {
	if isNative(payload) {
		return d.nativeValue(payload)
	}
	return d.Unpickle(payload)
}

// tensorsAndPickle writes the tuple (tensors..., pickle as a string, ...) up to the string.
func (e *Encoder) tensorsAndPickle(j *pickle.JIT, data []byte) {
	for i := range e.Tensors {
		j.TensorID(i)
	}
	j.String(string(data))
}

// fromTable reads the tensors at the start of such a tuple.
func (d *Decoder) fromTable(items []any) ([]any, error) {
	tensors := make([]any, len(items))
	for i, item := range items {
		t, ok := tensorID(item, d.Tensors)
		if !ok {
			return nil, badPayload("a %s where a tensor of the message is expected", pickle.TypeName(item))
		}
		tensors[i] = t
	}
	return tensors, nil
}

// tensorID resolves the number of a tensor among TorchScript values.
func tensorID(v any, tensors []any) (any, bool) {
	i, ok := pickle.BuiltTensor(v)
	if !ok || i < 0 || i >= int64(len(tensors)) {
		return nil, false
	}
	return tensors[i], true
}

// RemoteUDF is a PYTHON_REMOTE_CALL: a call whose result stays at the callee, under these ids.
type RemoteUDF struct {
	UDF
	RRefPair
	Async bool
}

// PythonRemoteCall returns the payload of a PYTHON_REMOTE_CALL.
func (e *Encoder) PythonRemoteCall(r RemoteUDF) ([]byte, error) {
	if e.Native {
		return e.sealed(e.nativeUDF(r.native(append(make([]byte, 0, 128), nativeMark)), r.UDF))
	}
	data, err := e.udf(r.UDF)
	if err != nil {
		return nil, err
	}
	j := pickle.NewJIT(make([]byte, 0, len(data)+64))
	j.Mark()
	e.tensorsAndPickle(j, data)
	r.RRef.push(j)
	j.Put()
	r.Fork.push(j)
	j.Put()
	j.Bool(r.Async)
	j.Tuple()
	return j.Finish()
}

// PythonRemoteCall reads the payload of a PYTHON_REMOTE_CALL. Even when the call itself cannot be read, the ids are
// returned if they can, so that the failure can be stored under them.
func (d *Decoder) PythonRemoteCall(payload []byte) (RemoteUDF, error) {
	if isNative(payload) {
		n := newNativeReader(d, payload)
		r := RemoteUDF{RRefPair: n.pair()}
		if n.err != nil {
			return RemoteUDF{}, n.err
		}
		r.UDF = n.udf()
		return r, n.finish()
	}
	items, err := jitTuple(payload, -1)
	if err != nil {
		return RemoteUDF{}, err
	}
	if len(items) < 4 {
		return RemoteUDF{}, badPayload("a remote call of %d parts", len(items))
	}
	tail := items[len(items)-4:]
	data, ok1 := tail[0].(string)
	rref, ok2 := parseGlobalID(tail[1])
	fork, ok3 := parseGlobalID(tail[2])
	async, ok4 := tail[3].(bool)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return RemoteUDF{}, badPayload("a remote call whose parts have the wrong types")
	}
	r := RemoteUDF{RRefPair: RRefPair{RRef: rref, Fork: fork}, Async: async}
	tensors, err := d.fromTable(items[:len(items)-4])
	if err != nil {
		return r, err
	}
	inner := Decoder{Tensors: tensors, Arrive: d.Arrive}
	r.UDF, err = inner.udf([]byte(data))
	return r, err
}

// PythonFetchRet returns the payload of a PYTHON_RREF_FETCH_RET.
func (e *Encoder) PythonFetchRet(v any) ([]byte, error) {
	if e.Native {
		return e.PythonRet(v)
	}
	data, err := e.Pickle(v)
	if err != nil {
		return nil, err
	}
	j := pickle.NewJIT(make([]byte, 0, len(data)+64))
	n := len(e.Tensors) + 1
	if n > 3 {
		j.Mark()
	}
	e.tensorsAndPickle(j, data)
	if n > 3 {
		j.Tuple()
	} else {
		j.TupleOf(n)
	}
	return j.Finish()
}

// PythonFetchRet reads the payload of a PYTHON_RREF_FETCH_RET.
func (d *Decoder) PythonFetchRet(payload []byte) (any, error) {
	if isNative(payload) {
		return d.nativeValue(payload)
	}
	items, err := jitTuple(payload, -1)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, badPayload("an empty answer to a fetch")
	}
	data, ok := items[len(items)-1].(string)
	if !ok {
		return nil, badPayload("an answer to a fetch that ends in a %s", pickle.TypeName(items[len(items)-1]))
	}
	tensors, err := d.fromTable(items[:len(items)-1])
	if err != nil {
		return nil, err
	}
	inner := Decoder{Tensors: tensors, Arrive: d.Arrive}
	return inner.Unpickle([]byte(data))
}
