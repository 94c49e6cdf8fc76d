// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"bytes"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

func TestValuesRoundTrip(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1, 2, 3}, 3))
	s := &tensor.Sparse{Shape: []int{4}, Indices: tensor.Must(tensor.From([]int64{0, 3}, 1, 2)), Values: tensor.Must(tensor.From([]float64{1, 2}, 2))}
	ref := fork{Owner: 1, RRef: GlobalID{1, 2}, Fork: GlobalID{3, 4}, Parent: 3, TypeName: TypePyObject}
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
		"channel": make(chan int), "function": func() {}, "itself": loop, "reference": fork{}, "list as key": &py.Dict{Pairs: []py.Pair{{Key: []any{}, Value: 1}}},
		"not UTF-8": "\xff",
	} {
		if _, err := (&Encoder{}).Pickle(v); !errors.Is(err, dist.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, v := range map[string]any{
		"mixed list": []any{1, "a"}, "big": new(big.Int).Lsh(big.NewInt(1), 80), "wrong type": py.Typed{Type: "Foo", Value: []any{}}, "struct": struct{ A int }{1},
	} {
		if _, err := (&Encoder{}).ScriptRet(v); !errors.Is(err, dist.InvalidArgument) {
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
		{fork{Owner: 1, TypeName: "Tensor"}, fork{Owner: 1, TypeName: "Tensor"}},
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

func TestAssign(t *testing.T) {
	type inner struct {
		Rate  float64
		Names []string
	}
	type outer struct {
		Config inner
		Ptr    *int
		ByID   map[int]string
		Any    any
	}
	var o outer
	err := Assign(&o, &py.Dict{Pairs: []py.Pair{
		{Key: "config", Value: &py.Dict{Pairs: []py.Pair{{Key: "rate", Value: int64(2)}, {Key: "names", Value: py.Tuple{"a", "b"}}}}},
		{Key: "ptr", Value: int64(5)},
		{Key: "by_id", Value: &py.Dict{Pairs: []py.Pair{{Key: int64(1), Value: "x"}}}},
		{Key: "any", Value: 1.5},
	}})
	five := 5
	if diff := cmp.Diff(outer{inner{2, []string{"a", "b"}}, &five, map[int]string{1: "x"}, 1.5}, o); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	for name, c := range map[string]struct{ dst, v any }{
		"overflow": {new(int8), int64(300)}, "negative": {new(uint), int64(-1)}, "float for int": {new(int), 1.0}, "None": {new(int), nil},
		"text": {new(int), "1"}, "float overflow": {new(float32), 1e300}, "array": {new([2]int), []any{int64(1)}},
		"unknown field": {new(inner), &py.Dict{Pairs: []py.Pair{{Key: "ratte", Value: 1.0}}}}, "no pointer": {5, int64(5)}, "bool for int": {new(int), true},
	} {
		if err := Assign(c.dst, c.v); !errors.Is(err, dist.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var set map[string]struct{}
	if err := Assign(&set, py.Set{"a", "b"}); err != nil || len(set) != 2 {
		t.Errorf("set: %v, %v", set, err)
	}
	var raw [2]byte
	if err := Assign(&raw, []byte{1, 2}); err != nil || raw != [2]byte{1, 2} {
		t.Errorf("bytes: %v, %v", raw, err)
	}
}

func TestAssignArgs(t *testing.T) {
	type args struct {
		X     int `rpc:"x,required"`
		Scale float64
		Note  string `rpc:"why"`
		Skip  string `rpc:"-"`
	}
	got := args{Scale: 3}
	if err := AssignArgs(&got, []any{int64(1)}, &py.Dict{Pairs: []py.Pair{{Key: "why", Value: "because"}}}); err != nil || got != (args{1, 3, "because", ""}) {
		t.Fatalf("%+v, %v", got, err)
	}
	for want, c := range map[string]struct {
		args   []any
		kwargs *py.Dict
	}{
		`argument "x" is missing`:                    {nil, nil},
		`unexpected keyword argument "y"`:            {[]any{int64(1)}, &py.Dict{Pairs: []py.Pair{{Key: "y", Value: nil}}}},
		`argument "x" is given twice`:                {[]any{int64(1)}, &py.Dict{Pairs: []py.Pair{{Key: "x", Value: int64(1)}}}},
		`4 positional arguments, the function takes`: {[]any{int64(1), 1.0, "", ""}, nil},
	} {
		if err := AssignArgs(&args{}, c.args, c.kwargs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestStorageIsCutLikePyTorchs(t *testing.T) {
	big := tensor.Must(tensor.New(tensor.Float32, 4096)) // 16 KiB
	part, err := big.Narrow(0, 10, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, storages, err := EncodeTensors([]any{part.SetRequiresGrad(true)})
	if err != nil || storages[0].Len() != 2048*4 {
		t.Errorf("half of 16 KiB sends %d bytes, %v", storages[0].Len(), err)
	}
	part, _ = big.Narrow(0, 10, 2049)
	if _, storages, _ = EncodeTensors([]any{part}); storages[0].Len() != 16<<10 {
		t.Errorf("more than half sends %d bytes", storages[0].Len())
	}
	small := tensor.Must(tensor.New(tensor.Float32, 100))
	part, _ = small.Narrow(0, 0, 1)
	if _, storages, _ = EncodeTensors([]any{part, small}); len(storages) != 1 || storages[0].Len() != 400 {
		t.Errorf("a small view sends %d storages", len(storages))
	}
}

func TestBadTables(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1, 2, 3, 4}, 2, 2))
	table, storages, err := EncodeTensors([]any{x})
	if err != nil {
		t.Fatal(err)
	}
	swap := func(from, to string) []byte { return bytes.Replace(table, []byte(from), []byte(to), 1) }
	for name, b := range map[string][]byte{
		"another storage": swap("X\x01\x00\x00\x000", "X\x01\x00\x00\x007"), "too long": swap("K\x04tQ", "K\x09tQ"),
		"another device": swap("X\x03\x00\x00\x00cpu", "X\x03\x00\x00\x00gpu"), "unknown type": swap("FloatStorage", "QUInt8Storage"),
		"beyond its storage": swap("(K\x02K\x02t", "(K\x02K\x09t"), "negative": swap("(K\x02K\x02t", "(K\x02J\xff\xff\xff\xfft"),
		"not a list": []byte("\x80\x02N."), "empty": nil, "another global": swap("_rebuild_tensor_v2", "_rebuild_tensor_v3"),
	} {
		if got, err := DecodeTensors(b, storages); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	bad := &tensor.Sparse{Shape: []int{2}, Indices: tensor.Must(tensor.From([]int64{5}, 1, 1)), Values: tensor.Must(tensor.From([]float32{1}, 1))}
	if _, _, err := EncodeTensors([]any{bad}); !errors.Is(err, dist.InvalidArgument) {
		t.Errorf("an index outside: %v", err)
	}
}

func TestExceptions(t *testing.T) {
	for _, c := range []struct {
		class      ErrorClass
		text, wire string
	}{{ErrorUnknown, "bad", "bad"}, {ErrorTimeout, "late", "RPCErr:1:late"}, {ErrorUnknown, "RPCErr:1:fake", "RPCErr:0:RPCErr:1:fake"}} {
		b := EncodeException(c.class, c.text)
		class, text := DecodeException(b)
		if string(b) != c.wire || class != c.class || text != c.text {
			t.Errorf("%q is %q, read as %v %q", c.text, b, class, text)
		}
	}
	if err := ExceptionError("rpc: call", "w", []byte("RPCErr:1:x")); !errors.Is(err, dist.DeadlineExceeded) {
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

func FuzzCompactTable(f *testing.F) {
	x := tensor.Must(tensor.From([]float32{1, 2, 3, 4}, 2, 2))
	frame, err := (&Message{Type: PythonCall, Tensors: []any{x, x}, Payload: []byte("p")}).Frame()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame.Payload, 16)
	s := &tensor.Sparse{Shape: []int{4}, Indices: tensor.Must(tensor.From([]int64{0, 3}, 1, 2)), Values: tensor.Must(tensor.From([]float64{1, 2}, 2))}
	if frame, err = (&Message{Type: PythonCall, Tensors: []any{s}}).Frame(); err != nil {
		f.Fatal(err)
	}
	f.Add(frame.Payload, 16)
	f.Fuzz(func(t *testing.T, payload []byte, n int) {
		if n < 0 || n > 1<<16 {
			return
		}
		st := []*tensor.Storage{tensor.WrapStorage(make([]byte, n), "fuzz", nil), tensor.WrapStorage(make([]byte, n), "fuzz", nil)}
		m, err := DecodeFrame(&cohortwire.Frame{Type: 0x102, Payload: payload, Storages: st})
		if err != nil {
			return
		}
		if _, err := m.Frame(); err != nil {
			t.Fatal(err)
		}
	})
}
