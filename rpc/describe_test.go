// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/tensor"
)

type described struct{}

func (d *described) Pull() *tensor.Tensor                               { return nil }
func (d *described) PushGrad(_ context.Context, _ *tensor.Tensor) error { return nil }

// signature writes a description as a line of Python.
func signature(f FunctionInfo) string {
	var params []string
	for _, p := range f.Params {
		text := p.Rest + p.Name + ": " + p.Type
		if p.Optional {
			text += "?"
		}
		params = append(params, text)
	}
	kind := "def "
	if f.Method {
		kind = "method "
	}
	return fmt.Sprintf("%s%s(%s) -> %s %s", kind, f.Name, strings.Join(params, ", "), f.Result, f.Doc)
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	type config struct {
		LearningRate float64 `rpc:"lr,required"`
		Layers       []int
		hidden       int
	}
	_ = config{}.hidden
	r := NewRegistry().
		MustHandle("m.plain", func(int, string) bool { return true }).
		MustHandle("m.named", func(context.Context, float32, map[string][]byte) {}, Params("x", "names"), Doc("does something")).
		MustHandle("m.config", func(config) (*described, error) { return nil, nil }).
		MustHandle("m.rest", func(first any, _ ...float64) {}).
		MustHandle("m.raw", func(context.Context, *Request) (any, error) { return nil, nil }, Doc("raw")).
		MustHandle("m.later", func(*Ref[int]) *cohort.Future[[]string] { return nil }).
		MustClass("m.Server", &described{})
	if err := Handle(r, "m.typed", func(_ context.Context, n int) (string, error) { return strconv.Itoa(n), nil },
		Params("n")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"def m.config(lr: float, layers: list[int]?) -> m.Server ",
		"def m.later(arg0: torch.distributed.rpc.RRef) -> list[str] ",
		"def m.named(x: float, names: dict[str, bytes]) -> None does something",
		"def m.plain(arg0: int, arg1: str) -> bool ",
		"def m.raw(*args: typing.Any, **kwargs: typing.Any) -> typing.Any raw",
		"def m.rest(arg0: typing.Any, *arg1: float) -> None ",
		"def m.typed(n: int) -> str ",
		"method m.Server.pull() -> torch.Tensor ",
		"method m.Server.push_grad(arg0: torch.Tensor) -> None ",
	}
	var got []string
	for _, f := range r.Describe() {
		got = append(got, signature(f))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// TestDescribeFromAfar: another worker gets the same.
func TestDescribeFromAfar(t *testing.T) {
	t.Parallel()
	reg := NewRegistry().MustHandle("m.add", func(a, b int) int { return a + b }, Params("a", "b"), Doc("adds"))
	agents := world(t, 2, true, func(int) *Registry { return reg })
	got, err := Call[[]FunctionInfo](t.Context(), agents[0], agents[1].Name(), describeHandlers)
	if err != nil || len(got) != 1 || signature(got[0]) != "def m.add(a: int, b: int) -> int adds" {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestWrongArgumentsInside: functions that workers call themselves refuse wrong arguments as handlers do.
func TestWrongArgumentsInside(t *testing.T) {
	t.Parallel()
	agents := world(t, 2, true, func(int) *Registry { return NewRegistry() })
	for _, name := range []string{rpcworld.FuncToLeader, rpcworld.FuncToFollowers, rpcworld.FuncGatherLost, updateMembership} {
		_, err := Call[any](t.Context(), agents[0], agents[1].Name(), name, "only one")
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "TypeError: "+name+": wrong arguments") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestZeroRegistry: the zero value is an empty registry, and a nil option is none.
func TestZeroRegistry(t *testing.T) {
	t.Parallel()
	var reg Registry
	if err := reg.Handle("a.f", func() {}, nil); err != nil {
		t.Error(err)
	}
	if err := reg.Class("a.C", &described{}); err != nil {
		t.Error(err)
	}
	if err := reg.HandleOperator("a::op", func([]any) (any, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
	if got, want := reg.String(), "registry of 1 functions, 1 classes and 1 operators"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestHandleOperator: what cannot be an operator, or is one already, is refused.
func TestHandleOperator(t *testing.T) {
	t.Parallel()
	reg := NewRegistry()
	kernel := func([]any) (any, error) { return nil, nil }
	for _, c := range []struct {
		name string
		k    Kernel
		want error
	}{
		{"aten::a", kernel, nil},
		{"aten::a.Tensor", kernel, nil},
		{"aten::a", kernel, cohort.AlreadyExists},
		{"aten::b", nil, cohort.InvalidArgument},
		{"torch.add", kernel, cohort.InvalidArgument},
	} {
		if err := reg.HandleOperator(c.name, c.k); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}
