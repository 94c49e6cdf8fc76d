// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//nolint:errcheck // a type assertion that fails fails the test
package pickle

import (
	"bytes"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
)

// same compares values without the reader's own notes; big integers by value, NaN equal to NaN.
var same = cmp.Options{
	cmpopts.IgnoreFields(List{}, "node"), cmpopts.IgnoreFields(Tuple{}, "node"), cmpopts.IgnoreFields(Dict{}, "node"),
	cmpopts.IgnoreFields(Set{}, "node"), cmpopts.IgnoreFields(FrozenSet{}, "node"), cmpopts.IgnoreFields(Object{}, "node"),
	cmpopts.IgnoreFields(PersID{}, "node"), cmpopts.EquateEmpty(), cmpopts.EquateNaNs(),
	cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 }),
}

func TestWhatCPythonWrites(t *testing.T) {
	for name, c := range map[string]struct {
		pickle string
		want   any
	}{
		"protocol 0 list": {
			"(lp0\nI1\naI01\naI00\naNaF2.5\naL12345678901234567890L\na.",
			NewList(int64(1), true, false, nil, 2.5, bigInt("12345678901234567890")),
		},
		"protocol 0 text":     {"V\\u20ac\\\\n\xe9\np0\n.", "€\\\\né"},
		"protocol 0 string":   {"S'a\\'\\x41\\n'\np0\n.", "a'A\n"},
		"protocol 0 dict":     {"(dp0\nVk\np1\nI7\ns.", &Dict{Pairs: []Pair{{Key: "k", Value: int64(7)}}}},
		"protocol 0 instance": {"(i__main__\nC\np0\n.", Call(Global{Module: "__main__", Name: "C"})},
		"protocol 1 object":   {"(c__main__\nC\nK\x01o.", Call(Global{Module: "__main__", Name: "C"}, int64(1))},
		"protocol 0 persid":   {"Pthing\n.", &PersID{ID: "thing"}},
		"protocol 2 long": {
			"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x80.",
			bigInt("-9223372036854775808").Mul(bigInt("-9223372036854775808"), big.NewInt(256)),
		},
		"protocol 4 set":    {"\x80\x04\x8f\x94(K\x01K\x02\x90.", &Set{Items: []any{int64(1), int64(2)}}},
		"protocol 4 frozen": {"\x80\x04(K\x01\x91\x94.", &FrozenSet{Items: []any{int64(1)}}},
		"protocol 5 bytes":  {"\x80\x05\x96\x02\x00\x00\x00\x00\x00\x00\x00ab\x94.", &ByteArray{Data: []byte("ab")}},
		"memo by position":  {"\x80\x04]\x94(h\x00]\x94h\x01e0N.", nil},
		"lone surrogate":    {"\x80\x04\x8c\x03\xed\xa0\x80\x94.", "\xed\xa0\x80"},
		"dup and pop":       {"\x80\x02K\x01K\x0220\x86.", NewTuple(int64(1), int64(2))},
		"newobj_ex": {
			"\x80\x04c__main__\nC\n)}\x92.",
			&Object{How: NewObjEx, Class: Global{Module: "__main__", Name: "C"}, Args: &Tuple{}, KwArgs: &Dict{}},
		},
		"build": {
			"\x80\x02c__main__\nC\n)\x81}b.",
			&Object{How: NewObj, Class: Global{Module: "__main__", Name: "C"}, Args: &Tuple{}, States: []any{&Dict{}}},
		},
	} {
		got, err := Decode([]byte(c.pickle), Limits{Cycles: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, got, same); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func bigInt(s string) *big.Int {
	v, ok := new(big.Int).SetString(s, 10)
	if !ok {
		panic(s)
	}
	return v
}

func TestDecodeRefuses(t *testing.T) {
	deep := "\x80\x02)" + strings.Repeat("\x85", 100_000) + "."
	topDown := "\x80\x02]q\x00" // a chain that grows inside a list that is already inside: the stack stays flat
	var topDownSb73 strings.Builder
	for i := range 300 {
		n := string([]byte{byte(i), byte(i >> 8), 0, 0})
		next := string([]byte{byte(i + 1), byte((i + 1) >> 8), 0, 0})
		topDownSb73.WriteString("j" + n + "]r" + next + "a0")
	}
	topDown += topDownSb73.String()
	topDown += "h\x00."
	for name, c := range map[string]struct {
		pickle string
		limits Limits
		code   cohort.Code
	}{
		"empty":               {"", Limits{}, cohort.Protocol},
		"no stop":             {"\x80\x02N", Limits{}, cohort.Protocol},
		"left over":           {"\x80\x02N.N", Limits{}, cohort.Protocol},
		"empty stack":         {"\x80\x02.", Limits{}, cohort.Protocol},
		"mark as result":      {"\x80\x02(.", Limits{}, cohort.Protocol},
		"no mark":             {"\x80\x02Nt.", Limits{}, cohort.Protocol},
		"unknown opcode":      {"\x80\x02\xff.", Limits{}, cohort.Protocol},
		"protocol 6":          {"\x80\x06N.", Limits{}, cohort.NotSupported},
		"extension":           {"\x80\x02\x82\x01.", Limits{}, cohort.NotSupported},
		"out of band":         {"\x80\x05\x97.", Limits{}, cohort.NotSupported},
		"huge string":         {"\x80\x02X\xff\xff\xff\xffa.", Limits{}, cohort.Protocol},
		"huge bytes":          {"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa.", Limits{}, cohort.Protocol},
		"huge frame":          {"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", Limits{}, cohort.Protocol},
		"not UTF-8":           {"\x80\x02X\x01\x00\x00\x00\xff.", Limits{}, cohort.Protocol},
		"unknown memo":        {"\x80\x02h\x05.", Limits{}, cohort.Protocol},
		"memo too big":        {"\x80\x02N\x94N\x94N\x94.", Limits{Memo: 2}, cohort.TooLarge},
		"far memo":            {"\x80\x02Nr\xff\xff\xff\xffNr\xfe\xff\xff\xffNr\xfd\xff\xff\xff.", Limits{Memo: 2}, cohort.TooLarge},
		"too many values":     {"\x80\x02NNNNNN.", Limits{Values: 5}, cohort.TooLarge},
		"too long":            {"\x80\x02NNNNNN.", Limits{Bytes: 5}, cohort.TooLarge},
		"deep":                {deep, Limits{}, cohort.TooLarge},
		"deep from above":     {topDown, Limits{}, cohort.TooLarge},
		"contains itself":     {"\x80\x02]q\x00h\x00a.", Limits{}, cohort.NotSupported},
		"object in itself":    {"\x80\x02cm\nC\n)\x81q\x00h\x00b.", Limits{}, cohort.NotSupported},
		"list as key":         {"\x80\x02}]Ns.", Limits{}, cohort.Protocol},
		"call of a string":    {"\x80\x02X\x01\x00\x00\x00a)R.", Limits{}, cohort.Protocol},
		"arguments not tuple": {"\x80\x02cm\nC\nNR.", Limits{}, cohort.Protocol},
		"build of a list":     {"\x80\x02]Nb.", Limits{}, cohort.Protocol},
		"append to a tuple":   {"\x80\x02)Na.", Limits{}, cohort.Protocol},
		"odd items":           {"\x80\x02}(Nu.", Limits{}, cohort.Protocol},
		"many digits":         {"L" + strings.Repeat("9", 5000) + "L\n.", Limits{}, cohort.Protocol},
		"jit: protocol 4":     {"\x80\x04N.", Limits{JIT: true}, cohort.NotSupported},
		"jit: bytes":          {"\x80\x02C\x01a.", Limits{JIT: true}, cohort.Protocol},
		"jit: short long":     {"\x80\x02\x8a\x01\x01.", Limits{JIT: true}, cohort.Protocol},
	} {
		if _, err := Decode([]byte(c.pickle), c.limits); !errors.Is(err, c.code) {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
}

// TestMemoBombStaysSmall reads a pickle whose expansion would have 2^50 items: sharing keeps it small.
func TestMemoBombStaysSmall(t *testing.T) {
	b := []byte("\x80\x04]\x94")
	for i := range 50 {
		b = append(b, '0', ']', opMemoize, '(', 'h', byte(i), 'h', byte(i), 'e')
	}
	v, err := Decode(append(b, '.'), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	l := v.(*List)
	if l.Items[0] != l.Items[1] || !Shared(l.Items[0]) || Shared(l) {
		t.Fatal("the items are not shared")
	}
}

func TestCyclesAreKept(t *testing.T) {
	l := NewList(int64(1))
	l.Items = append(l.Items, l)
	d := &Dict{Pairs: []Pair{{Key: "me", Value: nil}}}
	tuple := NewTuple(d, l)
	d.Pairs[0].Value = tuple // a tuple that contains itself through a dict
	for _, protocol := range []int{2, 4} {
		b, err := Append(nil, tuple, protocol)
		if err != nil {
			t.Fatal(err)
		}
		v, err := Decode(b, Limits{Cycles: true})
		if err != nil {
			t.Fatal(err)
		}
		got := v.(*Tuple)
		if inner := got.Items[0].(*Dict).Pairs[0].Value; inner != any(got) {
			t.Errorf("protocol %d: the tuple is not itself", protocol)
		}
		if list := got.Items[1].(*List); list.Items[1] != any(list) {
			t.Errorf("protocol %d: the list is not itself", protocol)
		}
	}
	o := Call(Global{Module: "m", Name: "C"})
	o.Args.Items = []any{o.Args}
	if _, err := Encode(o); err == nil {
		t.Error("a tuple that contains itself directly was written")
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, v := range map[string]any{
		"a Go struct": struct{}{}, "a Go slice": []int{1}, "not UTF-8": "\xff", "no module": Global{Module: "", Name: "x"},
		"newline": Global{Module: "m", Name: "a\nb"}, "a map": map[string]int{},
	} {
		if _, err := Encode(v); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Append(nil, nil, 3); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("protocol 3: %v", err)
	}
	if _, err := Append(nil, Global{Module: "m", Name: "A.b"}, 2); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("nested name in protocol 2: %v", err)
	}
	j := NewJIT(nil)
	j.Global("m", "a\nb")
	if _, err := j.Finish(); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("jit: %v", err)
	}
}

func TestEncodeIsStable(t *testing.T) {
	v := NewTuple(NewList(int64(1), "a", nil), &Dict{Pairs: []Pair{{Key: "k", Value: 2.5}}}, Bytes("b"), true)
	want := "\x80\x04\x95\x21\x00\x00\x00\x00\x00\x00\x00(]\x94" +
		"(K\x01\x8c\x01aNe}\x94\x8c\x01kG@\x04\x00\x00\x00\x00\x00\x00sC\x01b\x88t\x94."
	got, err := Encode(v)
	if err != nil || string(got) != want {
		t.Fatalf("%v\n got %q\nwant %q", err, got, want)
	}
	if got, _ = Encode(nil); string(got) != "\x80\x04N." {
		t.Fatalf("None is %q", got)
	}
}

// values draws what both sides have.
func values(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Custom(func(t *rapid.T) any { return rapid.Bool().Draw(t, "bool") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.Int64().Draw(t, "int") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.Float64().Draw(t, "float") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "str") }),
		rapid.Custom(func(t *rapid.T) any { return Bytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) }),
		rapid.Custom(func(t *rapid.T) any {
			b := rapid.SliceOfN(rapid.Byte(), 9, 300).Draw(t, "big")
			v := new(big.Int).SetBytes(b)
			if rapid.Bool().Draw(t, "negative") {
				v.Neg(v)
			}
			return shrink(v)
		}),
		rapid.Just[any](Global{Module: "collections", Name: "OrderedDict"}),
	)
	if depth == 0 {
		return leaf
	}
	inner := values(depth - 1)
	hashable := rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "key") })
	return rapid.OneOf(
		leaf,
		rapid.Custom(func(t *rapid.T) any { return NewList(rapid.SliceOfN(inner, 0, 6).Draw(t, "list")...) }),
		rapid.Custom(func(t *rapid.T) any { return NewTuple(rapid.SliceOfN(inner, 0, 6).Draw(t, "tuple")...) }),
		rapid.Custom(func(t *rapid.T) any {
			d := &Dict{}
			for _, k := range rapid.SliceOfNDistinct(hashable, 0, 5, func(k any) string { return k.(string) }).Draw(t, "keys") {
				d.Pairs = append(d.Pairs, Pair{Key: k, Value: inner.Draw(t, "value")})
			}
			return d
		}),
		rapid.Custom(func(t *rapid.T) any {
			return &Set{Items: rapid.SliceOfNDistinct(hashable, 0, 5, func(k any) string { return k.(string) }).Draw(t, "set")}
		}),
		rapid.Custom(func(t *rapid.T) any {
			return Call(Global{Module: "m", Name: "f"}, rapid.SliceOfN(inner, 0, 3).Draw(t, "args")...)
		}),
	)
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := values(4).Draw(t, "value")
		b, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(v, got, same); diff != "" {
			t.Fatal(diff)
		}
		again, err := Encode(got)
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("written again: %v\n%q\n%q", err, b, again)
		}
	})
}

func TestIntegersAreShortest(t *testing.T) {
	for _, c := range []struct {
		value int64
		want  string
	}{
		{0, "K\x00"},
		{255, "K\xff"},
		{256, "M\x00\x01"},
		{65536, "J\x00\x00\x01\x00"},
		{-1, "J\xff\xff\xff\xff"},
		{1 << 31, "\x8a\x05\x00\x00\x00\x80\x00"},
		{-1 << 31, "J\x00\x00\x00\x80"},
		{-(1 << 31) - 1, "\x8a\x05\xff\xff\xff\x7f\xff"},
		{math.MaxInt64, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"},
		{math.MinInt64, "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"},
	} {
		if got := string(appendInt(nil, c.value)); got != c.want {
			t.Errorf("%d is %q, want %q", c.value, got, c.want)
		}
	}
}

// FuzzDecode reads anything; what is read can be written, and what was written is read as the same value.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.",
		"\x80\x02(X\x03\x00\x00\x00abcq\x00K\x00K\x02\x86q\x01\x89t.",
		"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01Neu.",
		"(lp0\nI1\naV\\u20ac\np1\naS'x'\np2\na.", "\x80\x04\x8f\x94(K\x01\x90.", "\x80\x02]q\x00h\x00a.",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = Decode(data, Limits{JIT: true, RawStrings: true})
		if v, err := Decode(data, Limits{Cycles: true, RawStrings: true, Values: 10_000, Memo: 1000}); err == nil {
			_, _ = Encode(v)
		}
		v, err := Decode(data, Limits{Values: 10_000, Memo: 1000})
		if err != nil {
			return
		}
		b, err := Encode(v)
		if err != nil {
			return // names that are not names
		}
		if len(b) > 64*len(data)+64 {
			t.Fatalf("%d bytes became %d", len(data), len(b))
		}
		w, err := Decode(b, Limits{})
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		c, err := Encode(w)
		if err != nil || !bytes.Equal(b, c) {
			t.Fatalf("not stable: %v\n%q\n%q", err, b, c)
		}
	})
}
