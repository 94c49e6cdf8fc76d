// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package operators_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

const (
	zeros  = "aten::zeros(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
	add    = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
	mul    = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"
	clone  = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"
	matmul = "aten::matmul(Tensor self, Tensor other) -> Tensor"
	sum    = "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"
)

// pair starts a caller and a worker with the given options.
func pair(t *testing.T, opts ...rpc.Option) (context.Context, *rpc.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	st := store.NewMemory()
	var agents [2]*rpc.Agent
	var errs [2]error
	var work sync.WaitGroup
	for i := range agents {
		work.Go(func() {
			all := append([]rpc.Option{rpc.WithRank(cohort.Rank(i)), rpc.WithWorldSize(2), rpc.WithAddr("127.0.0.1:0")}, opts...)
			agents[i], errs[i] = rpc.Join(ctx, st, fmt.Sprintf("w%d", i), all...)
		})
	}
	work.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = agents[0].Close(), agents[1].Close() })
	return ctx, agents[0]
}

func TestOffByDefault(t *testing.T) {
	ctx, a := pair(t)
	x := tensor.Must(tensor.From([]float32{1, 2}, 2))
	_, err := rpc.Call[any](ctx, a, "w1", mul, x, x)
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), "operators.Serve()") {
		t.Errorf("got %v", err)
	}
}

func TestServed(t *testing.T) {
	ctx, a := pair(t, operators.Serve())
	x := tensor.Must(tensor.From([]float32{1, 2, 3}, 3))
	got, err := rpc.Call[*tensor.Tensor](ctx, a, "w1", mul, x, x)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := tensor.Copy[float32](got); err != nil || !slices.Equal(data, []float32{1, 4, 9}) {
		t.Errorf("got %v, %v", data, err)
	}
	if !slices.Contains(operators.Names(), "aten::mul.Tensor") {
		t.Error(operators.Names())
	}
}

// A few bytes ask for a lot of memory or time: they are refused before anything is allocated, and what was reserved is free
// again afterwards.
func TestBudget(t *testing.T) {
	ctx, a := pair(t, operators.Serve(operators.WithBudget(1<<20)))
	tall, wide := tensor.Must(tensor.New(tensor.Float32, 20_000, 1)), tensor.Must(tensor.New(tensor.Float32, 1, 20_000))
	one := tensor.Must(tensor.New(tensor.Float32, 1))
	expanded := tensor.Must(one.Expand(1 << 24))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, c := range map[string]struct {
		fn   string
		args []any
	}{
		"zeros":              {zeros, []any{[]any{int64(50), int64(32768), int64(32768)}, nil, nil, nil, nil}},
		"zeros, overflowing": {zeros, []any{[]any{int64(1 << 30), int64(1 << 30), int64(1 << 30)}, nil, nil, nil, nil}},
		"broadcast":          {add, []any{tall, wide, int64(1)}},
		"expanded":           {clone, []any{expanded, nil}},
		"expanded sum":       {sum, []any{expanded, nil}},
		"product":            {matmul, []any{tall, wide}},
	} {
		if _, err := rpc.Call[any](ctx, a, "w1", c.fn, c.args...); !errors.Is(err, cohort.Exhausted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("%d bytes were allocated on the way to the refusals", grown)
	}
	for range 50 { // each needs more than half of the budget
		if _, err := rpc.Call[any](ctx, a, "w1", zeros, []any{int64(200_000)}, nil, nil, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// Many calls at once get what is left of the budget or are refused, and all that they had is free afterwards.
func TestBudgetIsShared(t *testing.T) {
	ctx, a := pair(t, operators.Serve(operators.WithBudget(1<<20)))
	x := tensor.Must(tensor.New(tensor.Float32, 30_000))
	var work sync.WaitGroup
	for range 64 {
		work.Go(func() {
			if _, err := rpc.Call[any](ctx, a, "w1", mul, x, x); err != nil && !errors.Is(err, cohort.Exhausted) {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if _, err := rpc.Call[any](ctx, a, "w1", mul, x, x); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
