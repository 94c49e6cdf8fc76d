// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"errors"
	"math/big"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

func TestValuesRoundTrip(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1, 2, 3}, 3))
	s := &tensor.Sparse{
		Shape: []int{4}, Indices: tensor.Must(tensor.From([]int64{0, 3}, 1, 2)),
		Values: tensor.Must(tensor.From([]float64{1, 2}, 2)),
	}
	ref := fork{RRefFork: RRefFork{Owner: 1, RRef: GlobalID{1, 2}, Fork: GlobalID{3, 4}, Parent: 3, TypeName: TypePyObject}}
	huge, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	for _, v := range []any{
		nil, true, int64(-7), huge, 2.5, 1 + 2i, "text",
		[]byte{0, 255},
		py.ByteArray("b"),
		[]any{int64(1), "x"},
		py.Tuple{},
		py.Tuple{nil},
		py.Set{"a"},
		py.FrozenSet{int64(1)},
		&py.Dict{Pairs: []py.Pair{{Key: "k", Value: []any{2.5}}, {Key: int64(1), Value: nil}}}, py.Func("m:A.b"), x, s, ref,
		WorkerInfo{"w", 3},
		&RemoteException{"bad", py.Func("builtins.ValueError")},
		&RemoteException{"bad", py.Func("package.module.Error")},
		&py.Object{Class: py.Func("m.C"), New: true, Args: py.Tuple{x}, States: []any{&py.Dict{Pairs: []py.Pair{{Key: "a", Value: s}}}}},
		[]any{py.Tuple{x, []any{x, ref}}},
	} {
		enc := &Encoder{Fork: forkOf}
		b, err := enc.Pickle(v)
		if err != nil {
			t.Errorf("%T: %v", v, err)
			continue
		}
		dec := &Decoder{Tensors: enc.Tensors, Arrive: arrive}
		got, err := dec.Unpickle(b)
		if err != nil || text(got) != text(v) {
			t.Errorf("%s became %s, %v", text(v), text(got), err)
		}
	}
	enc := &Encoder{}
	if _, err := enc.Pickle(py.Tuple{x, []any{x}}); err != nil || len(enc.Tensors) != 1 {
		t.Errorf("one tensor twice is %d entries, %v", len(enc.Tensors), err)
	}
}

// TestEmptyByteArray reads an empty bytearray as CPython writes it in protocol 4: a call without arguments.
func TestEmptyByteArray(t *testing.T) {
	dec := &Decoder{}
	got, err := dec.Unpickle([]byte("\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94\x8c\tbytearray\x94\x93\x94)R\x94."))
	if b, ok := got.(py.ByteArray); err != nil || !ok || len(b) != 0 {
		t.Errorf("got %#v, %v", got, err)
	}
}

func TestEncodeRefusesWhatHasNoPythonForm(t *testing.T) {
	loop := []any{nil}
	loop[0] = loop
	for name, v := range map[string]any{
		"channel": make(chan int), "function": func() {}, "itself": loop, "reference": fork{},
		"list as key": &py.Dict{Pairs: []py.Pair{{Key: []any{}, Value: 1}}},
		"not UTF-8":   "\xff",
	} {
		if _, err := (&Encoder{}).Pickle(v); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, v := range map[string]any{
		"mixed list": []any{1, "a"}, "big": new(big.Int).Lsh(big.NewInt(1), 80),
		"wrong type": py.Typed{Type: "Foo", Value: []any{}}, "struct": struct{ A int }{1},
	} {
		if _, err := (&Encoder{}).ScriptRet(v); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("TorchScript %s: %v", name, err)
		}
	}
}

func TestScriptValues(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1}, 1))
	for _, c := range []struct{ in, want any }{
		{nil, nil},
		{true, true},
		{3, int64(3)},
		{int64(1) << 50, int64(1) << 50},
		{2.5, 2.5},
		{1i, 1i},
		{"s\xff", "s\xff"},
		{py.Device("cpu"), py.Device("cpu")},
		{[]int64{1, 2}, []any{int64(1), int64(2)}},
		{[]float64{1}, []any{1.0}},
		{[]bool{true}, []any{true}},
		{[]string{"a"}, []any{"a"}},
		{py.Tuple{x, 1}, py.Tuple{x, int64(1)}},
		{[]*tensor.Tensor{x}, []any{x}},
		{map[string]string{"a": "b"}, &py.Dict{Pairs: []py.Pair{{Key: "a", Value: "b"}}}},
		{[]any{1, 2}, []any{int64(1), int64(2)}},
		{&py.Dict{Pairs: []py.Pair{{Key: "a", Value: 1}}}, &py.Dict{Pairs: []py.Pair{{Key: "a", Value: int64(1)}}}},
		{py.Typed{Type: "List[Tuple[int, str]]", Value: []any{py.Tuple{1, "a"}}}, []any{py.Tuple{int64(1), "a"}}},
		{[]string{}, []any{}},
		{[]int(nil), []any{}},
		{[2]int32{1, 2}, []any{int64(1), int64(2)}},
		{[][]float32{{1}, {}}, []any{[]any{1.0}, []any{}}},
		{[]complex128{1i}, []any{1i}},
		{map[string]float64{"b": 2, "a": 1}, &py.Dict{Pairs: []py.Pair{{Key: "a", Value: 1.0}, {Key: "b", Value: 2.0}}}},
		{map[int][]string{3: {"x"}}, &py.Dict{Pairs: []py.Pair{{Key: int64(3), Value: []any{"x"}}}}},
		{map[string]*tensor.Tensor{"t": x}, &py.Dict{Pairs: []py.Pair{{Key: "t", Value: x}}}},
		{map[string]any{"a": 1, "b": 2}, &py.Dict{Pairs: []py.Pair{{Key: "a", Value: int64(1)}, {Key: "b", Value: int64(2)}}}},
		{uint8(3), int64(3)},
		{float32(1), 1.0},
		{fork{RRefFork: RRefFork{Owner: 1, TypeName: "Tensor"}}, fork{RRefFork: RRefFork{Owner: 1, TypeName: "Tensor"}}},
	} {
		enc := &Encoder{Fork: forkOf}
		b, err := enc.ScriptRet(c.in)
		if err != nil {
			t.Errorf("%T: %v", c.in, err)
			continue
		}
		got, err := (&Decoder{Tensors: enc.Tensors, Arrive: arrive}).ScriptRet(b)
		if err != nil || text(got) != text(c.want) {
			t.Errorf("%s became %s, %v", text(c.in), text(got), err)
		}
	}
}

func TestExceptions(t *testing.T) {
	for _, c := range []struct {
		class      errorClass
		text, wire string
	}{{ErrorUnknown, "bad", "bad"}, {ErrorTimeout, "late", "RPCErr:1:late"}, {ErrorUnknown, "RPCErr:1:fake", "RPCErr:0:RPCErr:1:fake"}} {
		b := EncodeException(c.class, c.text)
		class, text := DecodeException(b)
		if string(b) != c.wire || class != c.class || text != c.text {
			t.Errorf("%q is %q, read as %v %q", c.text, b, class, text)
		}
	}
	if err := ExceptionError("rpc: call", "w", []byte("RPCErr:1:x")); !errors.Is(err, cohort.DeadlineExceeded) {
		t.Errorf("timeout: %v", err)
	}
}

// TestMemoBombConvertsOnce converts a pickle whose expansion would never end.
func TestMemoBombConvertsOnce(t *testing.T) {
	var v any = pickle.NewList()
	for range 60 {
		v = pickle.NewList(v, v)
	}
	b, err := pickle.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Decoder{}).Unpickle(b); err != nil {
		t.Fatal(err)
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range captured(f) {
		if !m.Cut {
			f.Add(m.Payloads[0], m.Payloads[2], m.Payloads[3], len(m.Storages))
		}
	}
	f.Fuzz(func(t *testing.T, kind, payload, table []byte, storages int) {
		raw := &toFuzz{kind, payload, table, storages}
		m, err := raw.decode()
		if err != nil {
			return
		}
		out, tensors, _, err := again(m)
		if err != nil {
			return
		}
		if _, err := (&Message{Type: m.Type, Payload: out, Tensors: tensors}).Encode(); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := again(&Message{Type: m.Type, Payload: out, Tensors: tensors}); err != nil {
			t.Fatalf("%v: what we wrote is not read: %v\n%q", m.Type, err, out)
		}
	})
}

// arrived is a frame as its receiver sees it.
func arrived(f *cohortwire.Frame) *cohortwire.Frame {
	return &cohortwire.Frame{Type: f.Type, ID: f.ID, Payload: slices.Concat(f.Prefix, f.Payload), Storages: f.Storages}
}
