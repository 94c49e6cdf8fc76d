// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// nested are values of which each level mentions the one below it twice: short on the wire, endless when written out.
func nested(levels int) map[string]any {
	all := map[string]any{}
	var list any = pickle.NewList("leaf")
	var tuple any = pickle.NewTuple("leaf")
	var dict any = &pickle.Dict{Pairs: []pickle.Pair{{Key: "leaf", Value: "leaf"}}}
	var object any = "leaf"
	var args any = pickle.NewTuple("leaf")
	var sets any = pickle.NewList("leaf")
	for range levels {
		list = pickle.NewList(list, list)
		tuple = pickle.NewTuple(tuple, tuple)
		dict = &pickle.Dict{Pairs: []pickle.Pair{{Key: "a", Value: dict}, {Key: "b", Value: dict}}}
		object = pickle.Call(py.Global{Module: "m", Name: "C"}, object, object)
		shared, _ := args.(*pickle.Tuple)
		args = pickle.NewTuple(&pickle.Object{Class: py.Global{Module: "m", Name: "C"}, Args: shared},
			&pickle.Object{Class: py.Global{Module: "m", Name: "D"}, Args: shared})
		inner, _ := sets.(*pickle.List)
		sets = pickle.NewList(pickle.Call(py.Global{Module: "builtins", Name: "frozenset"}, inner),
			pickle.Call(py.Global{Module: "builtins", Name: "frozenset"}, inner))
	}
	all["lists"], all["tuples"], all["dicts"], all["objects"], all["arguments"], all["sets"] = list, tuple, dict, object, args, sets
	wide := pickle.NewList()
	text, data, number := strings.Repeat("x", 10_000), pickle.Bytes(bytes.Repeat([]byte("y"), 10_000)),
		new(big.Int).Lsh(big.NewInt(1), 80_000)
	for range 1000 {
		wide.Items = append(wide.Items, text, data, number)
	}
	all["long strings, bytes and integers"] = wide
	return all
}

// forms are the ways to send a value.
var forms = map[string]func(*Encoder, any) ([]byte, error){
	"pickle": func(e *Encoder, v any) ([]byte, error) { return e.PythonRet(v) },
	"native": func(e *Encoder, v any) ([]byte, error) { e.Native = true; return e.PythonRet(v) },
	"script": func(e *Encoder, v any) ([]byte, error) { return e.ScriptRet(py.Tuple{v}) },
}

// TestWhatWasSharedIsShared: a worker that sends back what it was sent writes about as much as it read.
func TestWhatWasSharedIsShared(t *testing.T) {
	for name, v := range nested(60) {
		in, err := pickle.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		for form, encode := range forms {
			if form == "script" && name != "tuples" {
				continue // the others have no TorchScript type
			}
			t.Run(name+", "+form, func(t *testing.T) {
				begun := time.Now()
				got, err := (&Decoder{}).Unpickle(in)
				if err != nil {
					t.Fatal(err)
				}
				out, err := encode(&Encoder{Most: 1 << 20}, got)
				if err != nil {
					t.Fatal(err)
				}
				if len(out) > 4*len(in)+200 {
					t.Errorf("%d bytes became %d", len(in), len(out))
				}
				var again any
				if form == "script" {
					again, err = (&Decoder{}).ScriptRet(out)
				} else {
					again, err = (&Decoder{}).PythonRet(out)
				}
				if err != nil {
					t.Fatalf("reading it: %v", err)
				}
				if back, err := encode(&Encoder{}, again); err != nil || !bytes.Equal(back, out) && form != "script" {
					t.Errorf("it changed on its way: %v", err)
				}
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// TestScriptValuesAreReadOnce: tags and typed lists around one list do not multiply it.
func TestScriptValuesAreReadOnce(t *testing.T) {
	var v any = pickle.NewList(int64(1))
	for range 60 {
		build := func() any { return pickle.Call(py.Global{Module: "torch.jit._pickle", Name: "build_intlist"}, v) }
		v = pickle.NewList(build(), build())
	}
	data, err := pickle.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	if v, err = pickle.Decode(data, pickle.Limits{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, readErr := (&Decoder{}).jitValue(v)
		done <- readErr
	}()
	select {
	case err = <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it takes for ever")
	}
}

// TestGoValuesAreShared: a Go value that occurs twice arrives as one, whatever its type, and nothing that merely looks equal does.
func TestGoValuesAreShared(t *testing.T) {
	type point struct{ X, Y int }
	p, row, table := &point{1, 2}, []float64{1, 2}, map[string]int{"a": 1}
	number := 5
	for _, native := range []bool{false, true} {
		t.Run(fmt.Sprint("native ", native), func(t *testing.T) {
			e := &Encoder{Native: native}
			out, err := e.PythonRet([]any{
				p, p, row, row, table, table,
				point{1, 2},
				point{1, 2},
				[]any{},
				[]any{},
				&number,
				&number, []byte("x"), row,
			})
			if err != nil {
				t.Fatal(err)
			}
			v, err := (&Decoder{}).PythonRet(out)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := v.([]any)
			dict := func(i int) *py.Dict { d, _ := got[i].(*py.Dict); return d }
			row := func(i int) *any { l, _ := got[i].([]any); return &l[0] }
			if dict(0) != dict(1) || dict(4) != dict(5) || row(2) != row(3) || row(2) != row(13) {
				t.Error("what was one arrived as two")
			}
			if dict(6) == dict(7) {
				t.Error("two structs arrived as one")
			}
			if got[10] != any(int64(5)) || got[11] != any(int64(5)) {
				t.Errorf("two pointers to a number: %v, %v", got[10], got[11])
			}
			if text := py.Repr(v); text !=
				"[{'x': 1, 'y': 2}, {'x': 1, 'y': 2}, [1.0, 2.0], [1.0, 2.0], {'a': 1}, {'a': 1}, {'x': 1, 'y': 2}, {'x': 1, 'y': "+
					"2}, [], [], 5, 5, b'x', [1.0, 2.0]]" {
				t.Errorf("%s", text)
			}
		})
	}
}

// TestOutputIsBounded: what cannot be shared is bounded.
func TestOutputIsBounded(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for form, encode := range forms {
		var v []any
		for i := range 100 {
			v = append(v, fmt.Sprint(i, long))
		}
		for name, value := range map[string]any{"many": v, "one": strings.Repeat("x", 200_000)} {
			if _, err := encode(&Encoder{Most: 100_000}, value); !errors.Is(err, cohort.TooLarge) {
				t.Errorf("%s, %s: %v", form, name, err)
			}
		}
	}
}

// TestSelfContained: a value that contains itself is refused at once, however often it does.
func TestSelfContained(t *testing.T) {
	list := make([]any, 3)
	for i := range list {
		list[i] = list
	}
	for form, encode := range forms {
		if form == "script" {
			continue // it has no TorchScript type
		}
		if _, err := encode(&Encoder{}, list); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// TestHugeIntegers: an integer of four megabytes is refused in a line.
func TestHugeIntegers(t *testing.T) {
	huge := new(big.Int).Lsh(big.NewInt(1), 32<<20)
	var n int
	var u uint64
	var f float64
	for _, dst := range []any{&n, &u, &f} {
		begun := time.Now()
		err := pyconv.Assign(dst, huge, nil)
		if !errors.Is(err, cohort.InvalidArgument) || len(err.Error()) > 200 {
			t.Errorf("%T: %.200s", dst, err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%T took %v", dst, took)
		}
	}
	if text := py.Repr([]any{huge}); len(text) > 100 {
		t.Errorf("%d bytes of text", len(text))
	}
	if _, err := (&Encoder{}).ScriptRet(huge); !errors.Is(err, cohort.InvalidArgument) || len(err.Error()) > 200 {
		t.Errorf("%.200s", err)
	}
	if err := pyconv.Assign(&n, &py.Dict{Pairs: []py.Pair{{Key: huge, Value: huge}}}, nil); err == nil || len(err.Error()) > 200 {
		t.Errorf("%.200s", err)
	}
}

func TestEmbeddedStructs(t *testing.T) {
	type Base struct {
		ID   int
		Name string `rpc:"label"`
	}
	type hidden struct{ Depth int }
	type Kind string
	type Outer struct {
		Base
		hidden
		Kind
		Name string // hides that of Base, which has another name in Python
		ID   int    // hides that of Base
	}
	in := Outer{Base: Base{ID: 1, Name: "inner"}, hidden: hidden{3}, Kind: "k", Name: "outer", ID: 2}
	for _, native := range []bool{false, true} {
		data, err := (&Encoder{Native: native}).PythonRet(in)
		if err != nil {
			t.Fatal(err)
		}
		v, err := (&Decoder{}).PythonRet(data)
		if err != nil {
			t.Fatal(err)
		}
		if text := py.Repr(v); text != "{'label': 'inner', 'depth': 3, 'kind': 'k', 'name': 'outer', 'id': 2}" {
			t.Errorf("native %v: %s", native, text)
		}
		var out Outer
		if err := pyconv.Assign(&out, v, nil); err != nil || out.Base.Name != "inner" || out.Depth != 3 || out.Kind != "k" || out.ID != 2 {
			t.Errorf("%+v, %v", out, err)
		}
	}
	type Named struct {
		Base `rpc:"base"`
	}
	data, err := (&Encoder{}).PythonRet(Named{Base{1, "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := (&Decoder{}).PythonRet(data); py.Repr(v) != "{'base': {'id': 1, 'label': 'x'}}" {
		t.Errorf("%s", py.Repr(v))
	}
	type Pointed struct{ *Base }
	type other struct{ ID int }
	type Both struct {
		Base
		other
	}
	for _, bad := range []any{Pointed{}, Both{}} {
		if _, err := (&Encoder{}).PythonRet(bad); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%T: %v", bad, err)
		}
	}
}

// FuzzEncode reads a value, sends it back in every form and reads that: it is the same value, and not much longer.
func FuzzEncode(f *testing.F) {
	for _, v := range nested(10) {
		data, err := pickle.Encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := (&Decoder{}).Unpickle(data)
		if err != nil {
			return
		}
		for form, encode := range forms {
			out, err := encode(&Encoder{Most: 1 << 24}, v)
			if err != nil {
				continue // it has no such form
			}
			if len(out) > 40*len(data)+400 {
				t.Fatalf("%s: %d bytes became %d", form, len(data), len(out))
			}
			if form == "script" {
				if _, err = (&Decoder{}).ScriptRet(out); err != nil {
					t.Fatalf("%s: %v", form, err)
				}
				continue
			}
			again, err := (&Decoder{}).PythonRet(out)
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if a, b := py.Repr(v), py.Repr(again); a != b {
				t.Fatalf("%s: %s became %s", form, a, b)
			}
		}
	})
}
