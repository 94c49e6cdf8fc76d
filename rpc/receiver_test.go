// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
)

// adder has a method of each form that is called in its own way.
type adder struct{ n int64 }

func (a *adder) Any(v any) any { return a.n + v.(int64) } //nolint:errcheck,forcetypeassert // the test's own

func (a *adder) AnyOrError(_ context.Context, v any) (any, error) { return a.Any(v), nil }

func (a *adder) Typed(v int64) int64 { return a.n + v }

func (a *adder) Whole(_ context.Context, r *Request) (any, error) { return a.Any(r.Args[0]), nil }

// A method is called on the object behind the reference, whatever its form.
func TestReceiverOfMethod(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustClass("t.Adder", (*adder)(nil)).MustHandle("t.adder", func(n int64) *adder { return &adder{n} })
	})
	ctx := testContext(t)
	ref, err := Remote[any](ctx, agents[0], "w1", "t.adder", 40)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"Any", "AnyOrError", "Typed", "Whole"} {
		if got, err := CallMethod[int64](ctx, ref, method, 2); err != nil || got != 42 {
			t.Errorf("%s: %d, %v", method, got, err)
		}
	}
	_ = ref.Close()
	shutdown(t, agents)
}
