// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package py

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

// TestKeysAreEqualAsInPython: every pair below was compared with == and hash in CPython 3.
func TestKeysAreEqualAsInPython(t *testing.T) {
	type name string
	huge := new(big.Int).Lsh(big.NewInt(1), 70)
	for _, same := range [][]any{
		{1, int64(1), uint8(1), 1.0, float32(1), true, big.NewInt(1)},
		{0, false, math.Copysign(0, -1)},
		{"a", name("a")},
		{[]byte("a"), []byte("a")},
		{huge, float64(1 << 70), new(big.Int).Set(huge)},
		{uint64(1 << 63), float64(1 << 63), new(big.Int).Lsh(big.NewInt(1), 63)},
		{Tuple{1, "a"}, Tuple{int64(1), "a"}, Tuple{true, "a"}, Tuple{1.0, name("a")}},
		{Tuple{Tuple{1}, huge}, Tuple{Tuple{true}, float64(1 << 70)}},
		{Global{Module: "m", Name: "f"}, Global{Module: "m", Name: "f"}},
		{nil, nil},
	} {
		for _, x := range same {
			for _, y := range same {
				if d := NewDict(x, "found"); !has(d, y) {
					t.Errorf("%#v and %#v are two keys", x, y)
				}
			}
		}
	}
	different := []any{
		nil, 0, 1, 1.5, "1", []byte("1"),
		Tuple{1},
		Tuple{"1"},
		Tuple{1, 2},
		Tuple{Tuple{1}, 2},
		Tuple{},
		huge,
		Global{Module: "1"},
		FrozenSet{1},
	}
	for i, x := range different {
		for j, y := range different {
			if d := NewDict(x, "found"); has(d, y) != (i == j) {
				t.Errorf("%#v and %#v are one key: %v", x, y, has(d, y))
			}
		}
	}
	if d := (&Dict{Pairs: []Pair{{Key: []any{1}, Value: 1}}}); has(d, []any{1}) {
		t.Error("a list is a key")
	}
}

// has asks in both ways, which must agree.
func has(d *Dict, key any) bool {
	_, got := d.Get(key)
	_, indexed := d.Index()(key)
	if got != indexed {
		panic(fmt.Sprintf("Get says %v and Index %v", got, indexed))
	}
	return got
}

func TestDict(t *testing.T) {
	d := NewDict("b", 2, "a", 1)
	d.Set("c", 3)
	d.Set("b", 4) // keeps its place
	d.Delete("a")
	d.Delete("nothing")
	if d.String() != "{'b': 4, 'c': 3}" || d.Len() != 2 {
		t.Errorf("got %v", d)
	}
	d.Pairs = append(d.Pairs, Pair{Key: "b", Value: 5})
	if v, _ := d.Get("b"); v != 5 {
		t.Errorf("the last entry counts, got %v", v)
	}
	if v, _ := d.Index()("b"); v != 5 {
		t.Errorf("the last entry counts, got %v", v)
	}
	var keys []any
	for k := range d.All() {
		keys = append(keys, k)
		if k == "c" {
			break
		}
	}
	if fmt.Sprint(keys) != "[b c]" {
		t.Errorf("keys %v", keys)
	}
	var none *Dict
	if none.Len() != 0 || has(none, "a") || none.String() != "{}" {
		t.Error("a nil dict is not empty")
	}
	for range none.All() {
		t.Error("a nil dict has entries")
	}
	defer func() {
		if recover() == nil {
			t.Error("a key without a value")
		}
	}()
	odd := []any{"a"}
	NewDict(odd...) //nolint:staticcheck // that is what it panics at
}

func ExampleDict() {
	d := NewDict("lr", 0.1, "betas", Tuple{0.9, 0.999})
	d.Set("lr", 0.01)
	lr, _ := d.Get("lr")
	fmt.Println(d, lr)
	// Output: {'lr': 0.01, 'betas': (0.9, 0.999)} 0.01
}
