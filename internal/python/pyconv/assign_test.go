// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pyconv

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc/py"
)

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

func TestAssign(t *testing.T) {
	var o outer
	err := Assign(&o, &py.Dict{Pairs: []py.Pair{
		{Key: "config", Value: &py.Dict{Pairs: []py.Pair{{Key: "rate", Value: int64(2)}, {Key: "names", Value: py.Tuple{"a", "b"}}}}},
		{Key: "ptr", Value: int64(5)},
		{Key: "by_id", Value: &py.Dict{Pairs: []py.Pair{{Key: int64(1), Value: "x"}}}},
		{Key: "any", Value: 1.5},
	}}, nil)
	five := 5
	if diff := cmp.Diff(outer{inner{2, []string{"a", "b"}}, &five, map[int]string{1: "x"}, 1.5}, o); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	for name, c := range map[string]struct{ dst, v any }{
		"overflow": {new(int8), int64(300)}, "negative": {new(uint), int64(-1)}, "float for int": {new(int), 1.0}, "None": {new(int), nil},
		"text": {new(int), "1"}, "float overflow": {new(float32), 1e300}, "array": {new([2]int), []any{int64(1)}},
		"a key that is not text": {new(inner), &py.Dict{Pairs: []py.Pair{{Key: int64(1), Value: 1.0}}}},
		"no pointer":             {5, int64(5)}, "bool for int": {new(int), true},
	} {
		if err := Assign(c.dst, c.v, nil); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var set map[string]struct{}
	if err := Assign(&set, py.Set{"a", "b"}, nil); err != nil || len(set) != 2 {
		t.Errorf("set: %v, %v", set, err)
	}
	var raw [2]byte
	if err := Assign(&raw, []byte{1, 2}, nil); err != nil || raw != [2]byte{1, 2} {
		t.Errorf("bytes: %v, %v", raw, err)
	}
}

// A key without a field is ignored, wherever it is; the field of a similar name keeps its value.
func TestAssignUnknownKeys(t *testing.T) {
	o := outer{Config: inner{Rate: 7}}
	err := Assign(&o, &py.Dict{Pairs: []py.Pair{
		{Key: "added_later", Value: "x"},
		{Key: "config", Value: &py.Dict{Pairs: []py.Pair{{Key: "ratte", Value: 1.0}, {Key: "names", Value: []any{"a"}}}}},
	}}, nil)
	if diff := cmp.Diff(outer{Config: inner{Rate: 7, Names: []string{"a"}}}, o); err != nil || diff != "" {
		t.Error(err, diff)
	}
	type strict struct {
		Must int `rpc:"must,required"`
	}
	if err := Assign(&strict{}, &py.Dict{Pairs: []py.Pair{{Key: "mist", Value: int64(1)}}}, nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a required field is missing: %v", err)
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
	if err := AssignArgs(&got, []any{int64(1)}, &py.Dict{Pairs: []py.Pair{{Key: "why", Value: "because"}}}, nil); err != nil ||
		got != (args{1, 3, "because", ""}) {
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
		if err := AssignArgs(&args{}, c.args, c.kwargs, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestAssignSharesToo: a typed variable is filled once for each source.
func TestAssignSharesToo(t *testing.T) {
	row := []any{int64(1), int64(2)}
	var v any = row
	for range 4 {
		level := make([]any, 1000)
		for i := range level {
			level[i] = v
		}
		v = level
	}
	var dst [][][][][]int
	begun := time.Now()
	if err := Assign(&dst, v, nil); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if dst[999][999][999][999][1] != 2 || &dst[0][0][0][0][0] != &dst[1][2][3][4][0] {
		t.Error("the rows differ")
	}
	var records []*struct{ Rows []map[string]int }
	shared := &py.Dict{Pairs: []py.Pair{{Key: "rows", Value: []any{&py.Dict{Pairs: []py.Pair{{Key: "a", Value: int64(1)}}}}}}}
	if err := Assign(&records, []any{shared, shared}, nil); err != nil || records[0] != records[1] || records[0].Rows[0]["a"] != 1 {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestContains(t *testing.T) {
	t.Parallel()
	pointer, other := new(int), new(int)
	endless := []any{nil, other}
	endless[0] = endless
	for name, c := range map[string]struct {
		value any
		want  bool
	}{
		"itself":         {pointer, true},
		"another":        {other, false},
		"nothing":        {nil, false},
		"in a list":      {[]any{1, py.Tuple{py.Set{pointer}}}, true},
		"as a key":       {py.NewDict(pointer, 1), true},
		"as a value":     {py.NewDict("k", py.FrozenSet{other, pointer}), true},
		"in an object":   {&py.Object{KwArgs: py.NewDict("k", pointer)}, true},
		"a list in self": {endless, false},
		"empty ones":     {[]any{(*py.Dict)(nil), (*py.Object)(nil), []any{}}, false},
	} {
		if got := Contains(c.value, pointer); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if bytes := py.ByteArray("x"); Contains([]any{bytes}, bytes) {
		t.Error("bytes are taken for a pointer")
	}
}
