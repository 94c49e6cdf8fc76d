// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"math"
	"math/big"
	"math/cmplx"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// anyValue draws a value of the model.
func anyValue(tensors []any) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }), rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return v }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return py.ByteArray(v) }),
		rapid.Map(rapid.Int64(), func(v int64) any { return new(big.Int).Lsh(big.NewInt(v|1), 70) }),
		rapid.Map(rapid.Float64(), func(v float64) any { return complex(v, -v) }), rapid.SampledFrom(tensors),
		rapid.Just[any](py.Global{Module: "torch", Name: "Tensor"}), rapid.Just[any](WorkerInfo{Name: "w", ID: 3}),
	)
	var value *rapid.Generator[any]
	value = rapid.Custom(func(t *rapid.T) any {
		items := func() []any {
			return rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return value }), 0, 3).Draw(t, "items")
		}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			return append([]any{}, items()...)
		case 1:
			return append(py.Tuple{}, items()...)
		case 2:
			return &py.Dict{Pairs: pairsOfValues(items())}
		case 3:
			return py.Set{rapid.String().Draw(t, "member")}
		default:
			return leaf.Draw(t, "leaf")
		}
	})
	return value
}

func pairsOfValues(values []any) []py.Pair {
	var pairs []py.Pair
	for i, v := range values {
		pairs = append(pairs, py.Pair{Key: int64(i), Value: v})
	}
	return pairs
}

// TestNativeMeansThePickle checks that a value arrives in the short form exactly as it does in a pickle.
func TestNativeMeansThePickle(t *testing.T) {
	tensors := []any{tensor.Must(tensor.From([]float32{1, 2}, 2)), tensor.Must(tensor.From([]int64{3}, 1))}
	same := cmp.Options{
		cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 }),
		cmp.Comparer(func(a, b *tensor.Tensor) bool { return a == b }),
		cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }),
		cmp.Comparer(func(a, b complex128) bool { return a == b || cmplx.IsNaN(a) && cmplx.IsNaN(b) }),
	}
	rapid.Check(t, func(t *rapid.T) {
		v := anyValue(tensors).Draw(t, "value")
		pickled, native := &Encoder{}, &Encoder{Native: true}
		want, err := pickled.PythonRet(v)
		if err != nil {
			t.Skip(err) // no value of the model: a dict as a key
		}
		got, err := native.PythonRet(v)
		if err != nil {
			t.Fatalf("%#v: %v", v, err)
		}
		if !isNative(got) || isNative(want) {
			t.Fatal("the forms cannot be told apart")
		}
		a, err := (&Decoder{Tensors: pickled.Tensors}).PythonRet(want)
		if err != nil {
			t.Fatal(err)
		}
		b, err := (&Decoder{Tensors: native.Tensors}).PythonRet(got)
		if err != nil {
			t.Fatalf("%#v: %v", v, err)
		}
		if diff := cmp.Diff(a, b, same); diff != "" {
			t.Fatalf("%#v: %s", v, diff)
		}
	})
}

func TestNativeStructsAndCalls(t *testing.T) {
	type inner struct{ A int }
	type outer struct {
		Name string
		List []inner
		Map  map[string]uint8
		Ptr  *inner
		None *inner
	}
	v := outer{Name: "n", List: []inner{{1}}, Map: map[string]uint8{"b": 2, "a": 1}, Ptr: &inner{2}}
	for _, native := range []bool{false, true} {
		e := &Encoder{Native: native}
		u := UDF{Func: py.Func("m.f"), Args: []any{v, 1, float32(0.5)}, Kwargs: &py.Dict{Pairs: []py.Pair{{Key: "k", Value: "v"}}}}
		payload, err := e.PythonRemoteCall(RemoteUDF{UDF: u, RRefPair: RRefPair{GlobalID{1, 2}, GlobalID{1, 3}, [16]byte{4, 15: 5}}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := (&Decoder{}).PythonRemoteCall(payload)
		if err != nil {
			t.Fatal(err)
		}
		if want := ([16]byte{4, 15: 5}); native && got.Key != want || !native && got.Key != ([16]byte{}) {
			t.Errorf("native=%v: key %x", native, got.Key)
		}
		if got.Func != u.Func || got.RRef != (GlobalID{1, 2}) || got.Fork != (GlobalID{1, 3}) || got.Kwargs.Len() != 1 {
			t.Errorf("native=%v: %+v", native, got)
		}
		var back outer
		if err := pyconv.Assign(&back, got.Args[0], nil); err != nil || !cmp.Equal(back, v) {
			t.Errorf("native=%v: %+v, %v", native, back, err)
		}
	}
}

// TestNativeScript checks TorchScript calls: the same stack in both forms.
func TestNativeScript(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1}, 1))
	s := ScriptUDF{
		Schema: "aten::f(Tensor self) -> Tensor", Name: "torch.ops.aten.f",
		Stack: []any{
			x, 1, 2.5, "text", nil, true,
			[]int64{1, 2},
			[]float64{0.5},
			py.Device("cpu"),
			py.Typed{Type: "List[str]", Value: []any{"a"}},
		},
	}
	var got [2]RemoteScriptUDF
	for i, native := range []bool{false, true} {
		e := &Encoder{Native: native}
		payload, err := e.ScriptRemoteCall(RemoteScriptUDF{
			ScriptUDF: s,
			RRefPair:  RRefPair{GlobalID{1, 2}, GlobalID{1, 3}, [16]byte{4, 15: 5}},
		})
		if err != nil || isNative(payload) != native {
			t.Fatalf("native=%v: %v", native, err)
		}
		if got[i], err = (&Decoder{Tensors: e.Tensors}).ScriptRemoteCall(payload); err != nil {
			t.Fatal(err)
		}
	}
	if got[1].Key != ([16]byte{4, 15: 5}) {
		t.Errorf("key %x", got[1].Key)
	}
	got[0].Key = got[1].Key // on PyTorch's wire there is none
	if diff := cmp.Diff(got[0], got[1], cmp.Comparer(func(a, b *tensor.Tensor) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func FuzzNative(f *testing.F) {
	for _, v := range []any{
		nil,
		[]any{int64(1), "a", 2.5},
		&py.Dict{Pairs: []py.Pair{{Key: "k", Value: py.Tuple{true}}}},
		&py.Object{Class: py.Global{Module: "m", Name: "C"}},
	} {
		b, err := (&Encoder{Native: true}).PythonRet(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		if !isNative(data) {
			data = append([]byte{nativeMark}, data...)
		}
		d := &Decoder{Arrive: func(RRefFork) (any, error) { return 1, nil }}
		_, _ = d.PythonRet(data)
		_, _, _ = d.PythonCall(data)
		_, _ = d.PythonRemoteCall(data)
		_, _ = d.ScriptRemoteCall(data)
	})
}
