// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package py

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/tensor"
)

// TestRepr compares with what CPython 3 prints for the same values.
func TestRepr(t *testing.T) {
	two := tensor.Must(tensor.From([]float32{1, 2}, 2))
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, "None"},
		{true, "True"},
		{int64(-3), "-3"},
		{new(big.Int).Lsh(big.NewInt(1), 70), "1180591620717411303424"},
		{1.0, "1.0"},
		{-0.5, "-0.5"},
		{1e16, "1e+16"},
		{1e-5, "1e-05"},
		{0.0001, "0.0001"},
		{123456789012345.6, "123456789012345.6"},
		{math.Inf(-1), "-inf"},
		{math.NaN(), "nan"},
		{complex(1, 2), "(1+2j)"},
		{complex(0, -1.5), "-1.5j"},
		{complex(2, -1), "(2-1j)"},
		{"it's", `"it's"`},
		{`it's "so"`, `'it\'s "so"'`},
		{"a\nb\t\x00é\\", `'a\nb\t\x00é\\'`},
		{[]byte("a'\x00\xff\n"), `b"a'\x00\xff\n"`},
		{ByteArray("x"), "bytearray(b'x')"},
		{[]any{int64(1), "a", nil}, "[1, 'a', None]"},
		{Tuple{}, "()"},
		{Tuple{int64(1)}, "(1,)"},
		{Set{}, "set()"},
		{Set{int64(1), int64(2)}, "{1, 2}"},
		{FrozenSet{}, "frozenset()"},
		{FrozenSet{"q"}, "frozenset({'q'})"},
		{&Dict{Pairs: []Pair{{"a", int64(1)}, {int64(2), &Dict{}}}}, "{'a': 1, 2: {}}"},
		{Global{Module: "m", Name: "C"}, "m.C"},
		{&Object{Class: Global{Module: "m", Name: "C"}, States: []any{&Dict{Pairs: []Pair{{"n", int64(3)}}}}}, "<m.C object {'n': 3}>"},
		{two, "tensor([1., 2.])"},
		{
			&tensor.Sparse{Shape: []int{2, 2}, Indices: two, Values: two},
			"tensor(indices=tensor([1., 2.]), values=tensor([1., 2.]), size=(2, 2), layout=torch.sparse_coo)",
		},
	} {
		if got := Repr(c.v); got != c.want {
			t.Errorf("%#v: got %s, want %s", c.v, got, c.want)
		}
	}
	if got := fmt.Sprint(Tuple{"a"}, &Dict{}, Set{int64(1)}, FrozenSet{}, &Object{Class: Global{Module: "m", Name: "C"}},
		ByteArray("b"), Pair{Key: "k", Value: 1.0}, Typed{Type: "List[int]", Value: []any{}}, Device("cpu"), Device("cuda:1")); got !=
		"('a',) {} {1} frozenset() <m.C object> bytearray(b'b') 'k': 1.0 []device(type='cpu')device(type='cuda', index=1)" {
		t.Errorf("printed %s", got)
	}
}

// TestReprIsBounded prints a list that is short on the wire and would be endless in print.
func TestReprIsBounded(t *testing.T) {
	v := []any{"x"}
	for range 60 {
		v = []any{v, v, &Dict{Pairs: []Pair{{"k", v}}}}
	}
	started := time.Now()
	if s := Repr(v); len(s) > 2*maxRepr || !strings.Contains(s, "...") {
		t.Errorf("%d characters", len(s))
	}
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}
