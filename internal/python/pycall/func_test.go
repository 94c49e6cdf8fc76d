// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pycall

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc/py"
)

type whole struct{ name string }

type settings struct {
	Rate  float64 `rpc:",required"`
	Steps int
}

type table struct {
	Sizes map[string]int
	Rate  float64
}

func kw(pairs ...any) *py.Dict {
	d := &py.Dict{}
	for i := 0; i < len(pairs); i += 2 {
		d.Pairs = append(d.Pairs, py.Pair{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// run calls a function as a worker does. ran is false when the arguments did not fit.
func run(t *testing.T, fn any, params []string, args []any, kwargs *py.Dict) (any, bool, error) {
	t.Helper()
	f, err := New(reflect.ValueOf(fn), Shape{Params: params, Whole: reflect.TypeFor[*whole]()})
	if err != nil {
		t.Fatalf("%T: %v", fn, err)
	}
	type outcome struct {
		v   any
		err error
	}
	outcomes := make(chan outcome, 2)
	done := func(got any, failed error) { outcomes <- outcome{got, failed} }
	if !f.Plain(t.Context(), args, kwargs, done) {
		in, bad := f.Bind(t.Context(), args, kwargs, &whole{"it"})
		if bad != nil {
			return nil, false, bad
		}
		f.Run(in, done)
	}
	o := <-outcomes // a future reports in a separate goroutine
	if len(outcomes) > 0 {
		t.Errorf("%T: done was called twice", fn)
	}
	return o.v, true, o.err
}

func TestCalls(t *testing.T) {
	failure := errors.New("no")
	promise := cohort.NewPromise[string]()
	promise.Complete("later", nil)
	for name, c := range map[string]struct {
		fn     any
		params []string
		args   []any
		kwargs *py.Dict
		want   any
		err    string // of the function
		misfit string // of the arguments
	}{
		"nothing": {fn: func() {}, want: nil},
		"context": {
			fn:   func(ctx context.Context, a int) int { return a + len(ctx.Err().Error()) },
			args: []any{"x"}, misfit: "argument 1",
		},
		"plain":         {fn: func(v any) any { return v }, args: []any{int64(7)}, want: int64(7)},
		"plain by name": {fn: func(v any) any { return v }, params: []string{"v"}, kwargs: kw("v", "x"), want: "x"},
		"by position":   {fn: func(a, b int) int { return a - b }, args: []any{int64(5), int64(3)}, want: 2},
		"by name": {
			fn: func(a, b int) int { return a - b }, params: []string{"a", "b"}, args: []any{int64(5)},
			kwargs: kw("b", int64(3)), want: 2,
		},
		"no names": {fn: func(a int) int { return a }, kwargs: kw("a", int64(3)), misfit: "unexpected keyword argument"},
		"twice": {
			fn: func(a int) int { return a }, params: []string{"a"}, args: []any{int64(1)},
			kwargs: kw("a", int64(3)), misfit: "given twice",
		},
		"missing": {
			fn: func(a, b int) int { return a }, params: []string{"a", "b"}, args: []any{int64(1)},
			misfit: `argument "b" is missing`,
		},
		"too many": {
			fn: func(a int) int { return a }, args: []any{int64(1), int64(2)},
			misfit: "2 positional arguments, the function takes 1",
		},
		"variadic":       {fn: func(a int, more ...string) int { return a + len(more) }, args: []any{int64(1), "x", "y"}, want: 3},
		"variadic, none": {fn: func(more ...string) int { return len(more) }, want: 0},
		"variadic misfit": {
			fn: func(more ...string) int { return len(more) }, args: []any{int64(1)},
			misfit: "arguments from 1 on",
		},
		"struct": {
			fn: func(s settings) float64 { return s.Rate * float64(s.Steps) }, args: []any{0.5},
			kwargs: kw("steps", int64(4)), want: 2.0,
		},
		"struct as a dict": {fn: func(s settings) float64 { return s.Rate }, args: []any{kw("rate", 0.25)}, want: 0.25},
		"struct as a larger dict": {
			fn: func(s settings) float64 { return s.Rate }, args: []any{kw("rate", 0.25, "later", "x")},
			want: 0.25,
		},
		"unknown keyword": {
			fn: func(s settings) float64 { return s.Rate }, args: []any{0.5}, kwargs: kw("later", "x"),
			misfit: `unexpected keyword argument "later"`,
		},
		"dict of the first field": {
			fn:   func(s table) int { return s.Sizes["rate"] + s.Sizes["x"] },
			args: []any{kw("rate", int64(3), "x", int64(4))}, want: 7,
		},
		"struct incomplete": {fn: func(s settings) float64 { return s.Rate }, misfit: `argument "rate" is missing`},
		"whole":             {fn: func(w *whole) string { return w.name }, args: []any{"ignored"}, want: "it"},
		"error":             {fn: func() error { return failure }, err: "no"},
		"value and error":   {fn: func() (int, error) { return 3, failure }, err: "no"},
		"value, no error":   {fn: func() (int, error) { return 3, nil }, want: 3},
		"future":            {fn: func() *cohort.Future[string] { return promise.Future() }, want: "later"},
		"nil future":        {fn: func() *cohort.Future[string] { return nil }, err: "a nil future"},
	} {
		v, ran, err := run(t, c.fn, c.params, c.args, c.kwargs)
		switch {
		case c.misfit != "":
			if ran || err == nil || !strings.Contains(err.Error(), c.misfit) {
				t.Errorf("%s: ran %v, %v; want %q", name, ran, err, c.misfit)
			}
		case c.err != "":
			if !ran || err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: ran %v, %v; want %q", name, ran, err, c.err)
			}
		case !ran || err != nil || v != c.want:
			t.Errorf("%s: %v (%T), %v; want %v", name, v, v, err, c.want)
		}
	}
}

func TestRefusedForms(t *testing.T) {
	var none func()
	for want, fn := range map[string]any{
		"not a function":                     5,
		"which no value fits":                func(chan int) {},
		"want at most a result and an error": func() (int, int, error) { return 0, 0, nil },
		"must be an error":                   func() (int, string) { return 0, "" },
	} {
		if _, err := New(reflect.ValueOf(fn), Shape{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v, want %q", fn, err, want)
		}
	}
	for _, fn := range []reflect.Value{{}, reflect.ValueOf(none)} {
		if _, err := New(fn, Shape{}); err == nil {
			t.Errorf("%v was taken", fn)
		}
	}
	if _, err := New(reflect.ValueOf(func(int) {}), Shape{Params: []string{"a", "b"}}); err == nil {
		t.Error("two names for one parameter")
	}
}

func TestDescription(t *testing.T) {
	f, err := New(reflect.ValueOf(func(_ context.Context, a int, more ...float64) (*cohort.Future[string], error) {
		return nil, nil
	}), Shape{Params: []string{"a", "more"}})
	if err != nil {
		t.Fatal(err)
	}
	params, known := f.Parameters()
	want := []Param{{Name: "a", Type: reflect.TypeFor[int]()}, {Name: "more", Type: reflect.TypeFor[float64](), Rest: true}}
	if !known || !reflect.DeepEqual(params, want) || f.Result() != reflect.TypeFor[string]() {
		t.Errorf("%+v, %v, %v", params, known, f.Result())
	}
	f, err = New(reflect.ValueOf(func(settings) {}), Shape{})
	if err != nil {
		t.Fatal(err)
	}
	params, known = f.Parameters()
	want = []Param{{Name: "rate", Type: reflect.TypeFor[float64]()}, {Name: "steps", Type: reflect.TypeFor[int](), Optional: true}}
	if !known || !reflect.DeepEqual(params, want) || f.Result() != nil {
		t.Errorf("%+v, %v, %v", params, known, f.Result())
	}
	if f, _ = New(reflect.ValueOf(func(*whole) {}), Shape{Whole: reflect.TypeFor[*whole]()}); f == nil {
		t.Fatal("refused")
	} else if _, known = f.Parameters(); known {
		t.Error("a function that takes the whole call names its parameters")
	}
	// A struct of arguments is told from a struct that is one argument.
	if f, _ = New(reflect.ValueOf(func(settings) {}), Shape{Single: []reflect.Type{reflect.TypeFor[settings]()}}); f == nil {
		t.Fatal("refused")
	} else if params, _ = f.Parameters(); len(params) != 1 || params[0].Type != reflect.TypeFor[settings]() {
		t.Errorf("%+v", params)
	}
}
