// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// addSchema is torch.add as a builtin operator, and addOperator its name in events.
const (
	addSchema   = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
	addOperator = "torch.ops.aten.add"
)

// adders add two tensors: a handler, the builtin operator and a script function.
var adders = []string{"t.add", addSchema, "__torch__.t.add"}

// addArgs are the arguments of one of them.
func addArgs(fn string, a, b any) []any {
	if fn == addSchema {
		return []any{a, b, 1}
	}
	return []any{a, b}
}

// serve registers what every worker of the tests serves: the functions at the top of PyTorch's rpc_test.py.
func serve(n *node) {
	n.reg.MustHandle("t.add", add, rpc.Params("a", "b")).
		MustHandle("t.echo", func(x any) any { return x }, rpc.Params("x")).
		MustHandle("t.nothing", func() {}).
		MustHandle("t.kwargs", func(a struct{ A, B, C int }) int { return a.A + a.B + a.C }).
		MustHandle("t.sum", func(list []int) (sum int) {
			for _, x := range list {
				sum += x
			}
			return sum
		}).
		MustHandle("t.raise", func() error { return rpc.Raise("ValueError", "Expected error") }).
		MustHandle("t.raise_escaped", func() error { return rpc.Raise("ValueError", "Expected error escaped\nwith \"quotes\", \\ and ü") }).
		MustHandle("t.plain_error", func() error { return errors.New("a plain Go error") }).
		MustHandle("t.panic", func() { panic("Expected panic") }).
		MustHandle("t.sleep", sleep).
		MustHandle("t.sleep_add", func(ctx context.Context, seconds float64, a, b any) (any, error) {
			if err := sleep(ctx, seconds); err != nil {
				return nil, err
			}
			return add(a, b)
		}).
		MustHandle("t.who", func(_ context.Context, r *rpc.Request) (any, error) { return r.From.Name, nil }).
		MustHandle("t.here", func() string { return n.self().Name() }).
		MustHandle("t.nonzero", nonzero).
		MustHandle("t.heavy", func(t any) (any, error) {
			for range 10 {
				var err error
				if t, err = add(t, t); err != nil {
					return nil, err
				}
			}
			return t, nil
		}).
		// A chain of calls around the ring of workers.
		MustHandle("t.nested", func(ctx context.Context, to string, a, b any) (any, error) {
			return rpc.Call[any](ctx, n.self(), to, "t.add", a, b)
		}).
		MustHandle("t.relay", func(ctx context.Context, to []string) (int, error) {
			if len(to) == 0 {
				return 0, nil
			}
			hops, err := rpc.Call[int](ctx, n.self(), to[0], "t.relay", to[1:])
			return hops + 1, err
		})
}

func sleep(ctx context.Context, seconds float64) error {
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return cohort.FromContext(ctx, "t: sleep")
	}
}

// nonzero is torch.nonzero of a matrix.
func nonzero(t *tensor.Tensor) (*tensor.Tensor, error) {
	values, err := tensor.Copy[float32](t)
	if err != nil {
		return nil, err
	}
	var found []int64
	for i, v := range values {
		if v != 0 {
			found = append(found, int64(i/t.Dim(1)), int64(i%t.Dim(1)))
		}
	}
	return tensor.From(found, len(found)/2, 2)
}
