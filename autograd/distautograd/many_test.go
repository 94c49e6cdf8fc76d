// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/tensor"
)

var contexts = flag.Int("distautograd.contexts", 500, "how many contexts TestManyContexts opens one after the other")

// TestManyContexts opens and closes contexts over three workers: memory does not grow with their number. "make memory" runs it with ten
// thousand.
func TestManyContexts(t *testing.T) {
	ws := newWorld(t, 3, basics())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	one := func() {
		gctx, c, err := ws[0].engine.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		x := param(3)
		backward(gctx, t, c, call(gctx, t, ws[0], "w1", "t.via", []string{"w2"}, x).Sum())
		wantGrad(t, c, x, 18)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	rest := func() int64 {
		for _, w := range ws {
			w.noLeak(t)
		}
		return testkit.HeapBytes()
	}
	for range 200 {
		one()
	}
	before := rest()
	n := max(*contexts, 400) - 200
	for range n {
		one()
	}
	if grown := rest() - before; grown > 2<<20 {
		t.Errorf("%d bytes more after %d contexts", grown, n)
	}
	t.Logf("count: contexts of Go worlds: %d", n+200)
}

// TestThousandContexts has a thousand contexts open at once, and a pass in each of them at the same time. What they hold is given back.
func TestThousandContexts(t *testing.T) {
	const n, length = 1000, 2048 // more than fifty megabytes
	ws := newWorld(t, 3, basics())
	base := testContext(t)
	before := testkit.HeapBytes()
	func() {
		type opened struct {
			ctx  context.Context //nolint:containedctx // of the context
			c    *distautograd.Context
			x, y *autograd.Variable
		}
		all := make([]opened, n)
		for i := range all {
			ctx, c, err := ws[i%3].engine.Open(base)
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Parameter(tensor.Must(tensor.Full(tensor.Float64, float64(i), length)))
			all[i] = opened{ctx, c, x, call(ctx, t, ws[i%3], ws[(i+1)%3].name(), "t.via", []string{ws[(i+2)%3].name()}, x)}
		}
		for _, w := range ws {
			if s := w.engine.Stats(); s.Contexts != n {
				t.Errorf("%s has %+v", w.name(), s)
			}
		}
		passes := make(chan error, n)
		for _, o := range all {
			go func() { passes <- o.c.Backward(o.ctx, []*autograd.Variable{o.y.Sum()}) }()
		}
		for range n {
			if err := <-passes; err != nil {
				t.Fatal(err)
			}
		}
		for i, o := range all {
			want, err := tensor.Full(tensor.Float64, 6*float64(i), length)
			if err != nil || !tensor.Equal(o.c.Gradient(o.x), want) {
				t.Fatalf("context %d has gradient %v, %v", i, o.c.Gradient(o.x), err)
			}
			if err := o.c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}()
	for _, w := range ws {
		w.noLeak(t)
	}
	if grown := testkit.HeapBytes() - before; grown > 8<<20 {
		t.Errorf("%d bytes are left", grown)
	}
}
