// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// TestMain runs the tests, or one worker when a test started this binary again.
func TestMain(m *testing.M) {
	if spec := os.Getenv(mortalEnv); spec != "" {
		os.Exit(mortal(spec))
	}
	goleak.VerifyTestMain(m)
}

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

func testLogger() *slog.Logger {
	if os.Getenv("RPC_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// world starts agents w0, w1, ... in one process, with the same handlers.
func world(tb testing.TB, n int, static bool, reg func(i int) *Registry, opts ...Option) []*Agent {
	tb.Helper()
	ctx := testContext(tb)
	st := store.NewMemory()
	agents := make([]*Agent, n)
	errs := make([]error, n)
	join := func(i int) {
		o := append([]Option{WithRank(cohort.Rank(i)), WithAddr("127.0.0.1:0"), WithLogger(testLogger())}, opts...)
		if static {
			o = append(o, WithWorldSize(n))
		}
		if reg != nil {
			o = append(o, WithHandlers(reg(i)))
		}
		agents[i], errs[i] = Join(ctx, st, fmt.Sprintf("w%d", i), o...)
	}
	var wg sync.WaitGroup
	for i := range agents {
		if static {
			wg.Go(func() { join(i) })
		} else {
			join(i)
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			tb.Fatalf("join w%d: %v", i, err)
		}
	}
	tb.Cleanup(func() {
		var wg sync.WaitGroup
		for _, a := range agents {
			wg.Go(func() { _ = a.Close() })
		}
		wg.Wait()
		_ = st.Close()
	})
	return agents
}

// shutdown ends all agents gracefully.
func shutdown(tb testing.TB, agents []*Agent) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, a := range agents {
		wg.Go(func() {
			if err := a.Shutdown(ctx); err != nil {
				tb.Errorf("shutdown %s: %v", a.Name(), err)
			}
		})
	}
	wg.Wait()
}

// transports runs a test over both wires of Go workers.
func transports(t *testing.T, test func(t *testing.T, opts ...Option)) {
	t.Helper()
	t.Run("cohort", func(t *testing.T) { test(t) })
	t.Run("uv", func(t *testing.T) { test(t, WithTransports(TransportUV)) })
}

func TestCall(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		for _, static := range []bool{true, false} {
			t.Run(fmt.Sprintf("static=%v", static), func(t *testing.T) {
				reg := NewRegistry().
					MustHandle("math.add", func(a, b int) int { return a + b }).
					MustHandle("math.scale", func(_ context.Context, in struct {
						X      []float64
						Factor float64
						Shift  float64 `rpc:"shift"`
					},
					) ([]float64, error) {
						out := make([]float64, len(in.X))
						for i, x := range in.X {
							out[i] = x*in.Factor + in.Shift
						}
						return out, nil
					})
				agents := world(t, 3, static, func(int) *Registry { return reg }, opts...)
				ctx := testContext(t)
				for _, from := range agents {
					for _, to := range agents {
						got, err := Call[int](ctx, from, to.Name(), "math.add", 2, 3)
						if err != nil || got != 5 {
							t.Fatalf("%s to %s: %v, %v", from.Name(), to.Name(), got, err)
						}
						xs, err := Call[[]float64](ctx, from, to.Name(), "math.scale", []float64{1, 2}, 2, Kw{"shift": 1})
						if err != nil || len(xs) != 2 || xs[1] != 5 {
							t.Fatalf("%s to %s: %v, %v", from.Name(), to.Name(), xs, err)
						}
					}
				}
				shutdown(t, agents)
			})
		}
	})
}
