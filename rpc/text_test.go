// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/aten"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// TestErrorTexts pins what a user reads when a call is wrong: once, in plain words, with a code to ask for. A call of this
// worker to itself says the same as one to another.
func TestErrorTexts(t *testing.T) {
	type point struct{ X, Y int }
	reg := NewRegistry().
		MustHandle("m.sub", func(a, b int) int { return a - b }, Params("a", "b")).
		MustHandle("m.plain", func(n int) int { return n }).
		MustHandle("m.points", func(_ []map[string]point, _ int) {}).
		MustHandle("m.point", func(p point) int { return p.X }).
		MustHandle("m.none", func() {})
	budget := aten.NewBudget(1 << 20)
	mulTensor := func(stack []any) (any, error) { v, _, err := budget.Run("aten::mul.Tensor", stack); return v, err }
	agents := world(t, 2, true, func(int) *Registry { return reg }, WithOperators(map[string]Kernel{"aten::mul.Tensor": mulTensor}))
	ctx := testContext(t)
	x := tensor.Must(tensor.From([]float32{1}, 1))
	const mul = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"
	for _, c := range []struct {
		fn   string
		args []any
		code cohort.Code
		want string
	}{
		{
			"m.sub",
			[]any{1},
			cohort.InvalidArgument,
			`TypeError: rpc: arguments "m.sub": invalid argument: argument "b" is missing; the function takes a, b`,
		},
		{
			"m.sub",
			[]any{"x", 1},
			cohort.InvalidArgument,
			`TypeError: rpc: arguments "m.sub": invalid argument: argument "a": a Python str does not fit a Go int`,
		},
		{"m.sub", []any{uint64(1 << 63), 1}, cohort.InvalidArgument, `argument "a": 9223372036854775808 does not fit a Go int`},
		{"m.sub", []any{1, Kw{"a": 1}}, cohort.InvalidArgument, `invalid argument: argument "a" is given twice`},
		{"m.sub", []any{1, 2, Kw{"c": 1}}, cohort.InvalidArgument, `unexpected keyword argument "c"; the function takes a, b`},
		{"m.plain", nil, cohort.InvalidArgument, `argument 1 is missing; the function takes (int) by position`},
		{"m.plain", []any{x}, cohort.InvalidArgument, `argument 1: a tensor does not fit a Go int`},
		{
			"m.points",
			[]any{[]any{map[string]any{"k": map[string]any{"x": "s"}}}, 1},
			cohort.InvalidArgument,
			`argument 1: at [0]['k'].x: a Python str does not fit a Go int`,
		},
		{
			"m.point",
			[]any{1.5},
			cohort.InvalidArgument,
			`rpc: arguments "m.point": invalid argument: argument "x": a Python float does not fit a Go int`,
		},
		{"m.nosuch", nil, cohort.NotFound, `AttributeError: the Go worker "W" has no handler "m.nosuch"`},
		{"__torch__.m.nosuch", []any{1}, cohort.NotFound, `AttributeError: the Go worker "W" has no handler "m.nosuch"`},
		{"", nil, cohort.InvalidArgument, `(peer W): not the name of a function: want module.function`},
		{"m.", nil, cohort.InvalidArgument, `(peer W): not the name of a function: want module.function`},
		{"aten::mul.Tensor", []any{x, x}, cohort.InvalidArgument, `an operator is called by its whole schema`},
		{mul, []any{x, Kw{"other": x}}, cohort.InvalidArgument, `positional arguments only`},
		{mul, []any{x}, cohort.InvalidArgument, `rpc: operator "aten::mul.Tensor": invalid argument: argument 2 is missing`},
		{"aten::svd(Tensor self) -> Tensor", []any{x}, cohort.NotSupported, `this Go worker has no kernel for this operator`},
	} {
		for _, to := range []string{"w0", "w1"} {
			_, err := Call[any](ctx, agents[0], to, c.fn, c.args...)
			want := strings.NewReplacer(`"W"`, `"`+to+`"`, "(peer W)", "(peer "+to+")").Replace(c.want)
			if err == nil || !strings.HasSuffix(err.Error(), want) && !strings.Contains(err.Error(), want) || !errors.Is(err, c.code) {
				t.Errorf("%s at %s:\ngot  %v (%v)\nwant %s (%v)", c.fn, to, err, cohort.CodeOf(err), want, c.code)
			}
		}
	}
	if _, err := Call[string](ctx, agents[0], "w1", "m.plain", 3); !errors.Is(err, cohort.Mismatch) ||
		errors.Is(err, cohort.InvalidArgument) ||
		err.Error() != `rpc: result "m.plain": mismatch: a Python int does not fit a Go string` {
		t.Errorf("a result of another type: %v", err)
	}
	if _, err := Call[struct{}](ctx, agents[0], "w1", "m.none"); err != nil {
		t.Errorf("no result as struct{}: %v", err)
	}
	if _, err := Call[any](ctx, agents[0], "w9", "m.none"); !errors.Is(err, cohort.NotFound) ||
		!strings.Contains(err.Error(), "known are w0, w1") {
		t.Errorf("an unknown worker: %v", err)
	}
	ref, err := Remote[any](ctx, agents[0], "w1", "aten::svd(Tensor self) -> Tensor", x)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ref.Fetch(ctx); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("the result of an operator without kernel: %v", err)
	}
	_ = ref.Close()
	shutdown(t, agents)
}

// TestHandlerForms registers every documented form of a handler, and some that can never be called.
func TestHandlerForms(t *testing.T) {
	whole := func(r *Request) string { return fmt.Sprint(r.From.Name, " ", r.Func, " ", r.Args, " ", r.Kwargs) }
	reg := NewRegistry().
		MustHandle("m.request", whole).
		MustHandle("m.request_ctx", func(_ context.Context, r *Request) string { return whole(r) }).
		MustHandle("m.request_err", func(r *Request) (int, error) { return len(r.Args), nil }).
		MustHandle("m.request_any", func(_ context.Context, r *Request) (any, error) { return whole(r), nil })
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	for fn, want := range map[string]any{
		"m.request": "w0 m.request [1 ('a',)] {'k': None}", "m.request_ctx": "w0 m.request_ctx [1 ('a',)] {'k': None}",
		"m.request_err": int64(2), "m.request_any": "w0 m.request_any [1 ('a',)] {'k': None}",
	} {
		got, err := Call[any](ctx, agents[0], "w1", fn, 1, py.Tuple{"a"}, Kw{"k": nil})
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v, %v", fn, got, err)
		}
	}
	for _, bad := range []any{
		func(chan int) {}, func(int, func()) {}, func() (int, int) { return 0, 0 },
		func() (int, error, error) { return 0, nil, nil }, 3, nil,
	} {
		if err := reg.Handle("m.bad", bad); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%T: %v", bad, err)
		}
	}
	shutdown(t, agents)
}

// TestNodeErrors reads PyTorch's texts of errors outside the user's function, as both versions send them.
func TestNodeErrors(t *testing.T) {
	for _, c := range []struct {
		text string
		want RemoteError
	}{
		{
			"Error on Node 0: ModuleNotFoundError: No module named 'nomod'\n\nAt:\n  internal.py(160): deserialize\n",
			RemoteError{
				Kind: "ModuleNotFoundError", Message: "No module named 'nomod'",
				Stack: "  internal.py(160): deserialize\n", Code: cohort.NotFound,
			},
		},
		{
			"AttributeError: Can't pickle local object 'f.<locals>.<lambda>'\n\nAt:\n  internal.py(133): serialize\n",
			RemoteError{
				Kind: "AttributeError", Message: "Can't pickle local object 'f.<locals>.<lambda>'",
				Stack: "  internal.py(133): serialize\n", Code: cohort.Remote,
			},
		},
		{
			"Error on Node 3: Cannot find matching operator for schema aten::no()\nException raised from matchOperator at " +
				"script_call.cpp:151 (most recent call first):\nframe #0\n",
			RemoteError{
				Kind: "RuntimeError", Message: "Cannot find matching operator for schema aten::no()",
				Stack: "Exception raised from matchOperator at script_call.cpp:151 (most recent call first):\nframe #0\n",
				Code:  cohort.NotFound,
			},
		},
		{
			"Error on Node 1: attempted to get undefined function f",
			RemoteError{Kind: "RuntimeError", Message: "attempted to get undefined function f", Code: cohort.NotFound},
		},
		{
			"Error on Node 1: expected 2 inputs, but got only 1",
			RemoteError{Kind: "RuntimeError", Message: "expected 2 inputs, but got only 1", Code: cohort.InvalidArgument},
		},
		{"Error on Node 1: plain", RemoteError{Kind: "RuntimeError", Message: "plain", Code: cohort.Remote}},
		{"not a class: x\n\nAt:\n y", RemoteError{Kind: "RuntimeError", Message: "not a class: x\n\nAt:\n y", Code: cohort.Remote}},
		{"", RemoteError{Kind: "RuntimeError", Code: cohort.Remote}},
	} {
		c.want.Worker, c.want.near = "w", true
		got := exceptionError("rpc: call", "f", "w", []byte(c.text))
		if diff := cmp.Diff(&c.want, got, cmp.AllowUnexported(RemoteError{})); diff != "" {
			t.Errorf("%q:\n%s", c.text, diff)
		}
	}
}

// TestRaisedByCall distinguishes a call that could not be made from a function that failed: their exceptions have the same class.
func TestRaisedByCall(t *testing.T) {
	const begin = "On WorkerInfo(id=0, name=py0):\nX\nTraceback (most recent call last):\n" +
		"  File \"/lib/torch/distributed/rpc/internal.py\", line 206, in _run_function\n    result = " +
		"python_udf.func(*python_udf.args, **python_udf.kwargs)\n"
	const proxy = "  File \"/lib/torch/distributed/rpc/rref_proxy.py\", line 11, in _local_invoke\n    return " +
		"getattr(rref.local_value(), func_name)(*args, **kwargs)\n"
	const inside = "  File \"train.py\", line 3, in f\n    return g(x)\n"
	const nested = inside + "  File \"/lib/torch/distributed/rpc/internal.py\", line 220, in _handle_exception\n    raise exc\n"
	for _, c := range []struct {
		class, text string
		code        cohort.Code
	}{
		{"TypeError", begin + "TypeError: f() missing 1 required positional argument: 'a'\n", cohort.InvalidArgument},
		{"TypeError", begin + inside + "TypeError: unsupported operand type(s)\n", cohort.Remote},
		{"TypeError", begin + nested + "TypeError: f() missing 1 required positional argument: 'a'\n", cohort.Remote},
		{"AttributeError", begin + proxy + "AttributeError: 'Acc' object has no attribute 'nosuch'\n", cohort.NotFound},
		{"AttributeError", begin + proxy + inside + "AttributeError: 'NoneType' object has no attribute 'x'\n", cohort.Remote},
		{"ModuleNotFoundError", begin + inside + "ModuleNotFoundError: No module named 'numpy'\n", cohort.Remote},
		{"AttributeError", "On WorkerInfo(id=0, name=py0):\nAttributeError(\"X Default RPC pickler does not serialize\")\n" +
			"Traceback (most recent call last):\n  File \"x\", line 1, in y\nAttributeError: X Default RPC pickler does not " +
			"serialize\n    function code.\n", cohort.NotFound},
	} {
		e := raised("py0", &rpcwire.RemoteException{Msg: c.text, Class: py.Global{Module: "builtins", Name: c.class}})
		if e.Code != c.code || e.Kind != c.class || strings.Contains(e.Message, "pickler") || strings.Contains(e.Message, "\n") {
			t.Errorf("%s\nbecame %#v, want %v", c.text, e, c.code)
		}
	}
}

// TestFetchErrorTexts: the error of a fetch names the operation once, and the object, and has one code, at the owner as elsewhere.
func TestFetchErrorTexts(t *testing.T) {
	reg := NewRegistry().MustHandle("m.make", func() (int, error) { return 0, errors.New("badly made") })
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	for _, to := range []string{"w0", "w1"} {
		ref, err := Remote[int](ctx, agents[0], to, "m.make")
		if err != nil {
			t.Fatal(err)
		}
		_, err = ref.Fetch(ctx)
		if err == nil || !strings.HasPrefix(err.Error(), "rpc: fetch \"") || strings.Count(err.Error(), "fetch") != 1 ||
			!errors.Is(err, cohort.Remote) {
			t.Errorf("at %s: %v", to, err)
		}
		_ = ref.Close()
	}
}
