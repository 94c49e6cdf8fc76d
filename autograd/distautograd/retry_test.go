// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// faultyWorld is newWorld whose engines' messages each fail three times.
func faultyWorld(t *testing.T, n int, f distautograd.Fault) ([]*worker, []func() int) {
	t.Helper()
	ctx := testContext(t)
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	reg, _ := tensorHandlers(dense)
	var ws []*worker
	var counts []func() int
	for i := range n {
		e := distautograd.New()
		join, count := e.FaultyJoin(f)
		a, err := rpc.Join(ctx, st, fmt.Sprintf("w%d", i), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), join)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		ws, counts = append(ws, &worker{engine: e, agent: a}), append(counts, count)
	}
	return ws, counts
}

// TestFaultyAgent: with agents that fail to send messages of the engines, lose their answers, or send them twice, each three times,
// every worker opens a context with every other: the clean-ups reach all of them, and passes have the right gradients, or the error of
// the function that failed.
func TestFaultyAgent(t *testing.T) {
	for name, f := range map[string]distautograd.Fault{
		"refuse": distautograd.Refuse, "lose answer": distautograd.LoseAnswer,
		"repeat": distautograd.Repeat,
	} {
		t.Run(name, func(t *testing.T) {
			ws, counts := faultyWorld(t, 4, f)
			modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
				t.Helper()
				for _, w := range ws {
					ctx, c, err := w.engine.Open(testContext(t))
					if err != nil {
						t.Fatal(err)
					}
					x, y := dense.param(1), dense.param(2)
					var loss *autograd.Variable
					for _, to := range ws {
						if to == w {
							continue
						}
						out := call(ctx, t, w, to.name(), "s.add", x, y).Sum()
						if loss == nil {
							loss = out
						} else {
							loss = loss.Add(out)
						}
					}
					backward(ctx, t, c, loss, opts...)
					if err := x.Add(y).Sum().Scale(3).Backward(ctx); err != nil {
						t.Fatal(err)
					}
					wantLocal(t, c, x, y)
					if err := c.Close(); err != nil {
						t.Fatal(err)
					}
					if err := c.Backward(ctx, []*autograd.Variable{loss}); !errors.Is(err, cohort.Closed) {
						t.Errorf("a pass of a closed context: %v", err)
					}
				}
				for _, w := range ws {
					w.noLeak(t)
				}
			})
			for i, count := range counts {
				if count() < len(ws)-1 {
					t.Errorf("only %d messages of w%d have failed", count(), i)
				}
			}
		})
	}
}
