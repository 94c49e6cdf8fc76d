// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// endsBadly is an interceptor whose end does not return.
func endsBadly(end func()) func(context.Context, CallInfo) (context.Context, func(error), error) {
	return func(context.Context, CallInfo) (context.Context, func(error), error) {
		return nil, func(error) { end() }, nil
	}
}

// badHolder cannot report what it holds.
type badHolder struct{ end func() }

func (h *badHolder) HeldReferences() []AnyRef { h.end(); return nil }

// TestFunctionsGivenToAnAgent: a hook, an interceptor, the end of one, an allocator or a handler of logs that panics or ends its
// goroutine takes neither the process nor an agent with it: calls of every kind end, and so does Shutdown.
func TestFunctionsGivenToAnAgent(t *testing.T) {
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		interceptor := func(_ context.Context, call CallInfo) (context.Context, func(error), error) {
			if strings.HasPrefix(call.Func, "m.") { // not the workers' own
				end()
			}
			return nil, nil, nil
		}
		for where, c := range map[string]struct {
			opt   Option
			codes []cohort.Code // of a call that fails
		}{
			"hook":                       {WithHook(func(observe.Event) { end() }), nil},
			"logger":                     {WithLogger(testkit.BadLogger(end)), nil},
			"call interceptor":           {WithCallInterceptors(interceptor), []cohort.Code{cohort.Internal}},
			"end of a call interceptor":  {WithCallInterceptors(endsBadly(end)), nil},
			"serve interceptor":          {WithServeInterceptors(interceptor), []cohort.Code{cohort.Internal, cohort.Remote}},
			"end of a serve interceptor": {WithServeInterceptors(endsBadly(end)), nil},
			"allocator": {
				WithAlloc(func(int) (*tensor.Storage, error) { end(); return nil, nil }),
				[]cohort.Code{cohort.PeerLost, cohort.Unavailable},
			},
		} {
			t.Run(how+" in "+where, func(t *testing.T) {
				transports(t, func(t *testing.T, opts ...Option) {
					t.Helper()
					ctx := testContext(t)
					reg := NewRegistry().
						MustHandle("m.echo", func(x *tensor.Tensor) *tensor.Tensor { return x }).
						MustHandle("m.panic", func() { panic("a bug") }).
						MustHandle("m.holder", func() *badHolder { return &badHolder{end} })
					agents := world(t, 2, true, func(int) *Registry { return reg }, append(opts, c.opt)...)
					x := tensor.Must(tensor.New(tensor.Float32, 1<<10))
					want := func(what string, err error) {
						t.Helper()
						if c.codes == nil && err != nil || c.codes != nil && !slices.Contains(c.codes, cohort.CodeOf(err)) {
							t.Errorf("%s: %v, want %v", what, err, c.codes)
						}
					}
					for _, to := range []string{"w1", "w0"} {
						if where == "allocator" && to == "w0" {
							continue // nothing is received
						}
						_, err := Call[*tensor.Tensor](ctx, agents[0], to, "m.echo", x)
						want("call", err)
						_, err = Async[*tensor.Tensor](ctx, agents[0], to, "m.echo", x).Await(ctx)
						want("asynchronous call", err)
						if _, err = Call[any](ctx, agents[0], to, "m.panic"); err == nil {
							t.Error("the panic of a handler was lost")
						}
						ref, err := Remote[any](ctx, agents[0], to, "m.holder")
						if err == nil {
							_ = ref.Confirmed(ctx)
							agents[0].References()
							agents[1].References()
							_ = ref.Close()
						}
					}
					if where != "allocator" && c.codes == nil {
						shutdown(t, agents)
					}
				})
			})
		}
	}
}

// TestPanicsAreReported to the agent's logger, or to the program's if there is none, but not without end: peers may cause them.
func TestPanicsAreReported(t *testing.T) {
	bug := func() { panic("a bug") }
	for name, c := range map[string]struct {
		opt  Option
		call func(*config)
	}{
		"hook": {WithHook(func(observe.Event) { bug() }), func(c *config) { c.hook.Emit(observe.Event{}) }},
		"interceptor": {WithCallInterceptors(func(context.Context, CallInfo) (context.Context, func(error), error) {
			bug()
			return nil, nil, nil
		}), func(c *config) {
			if _, _, err := c.intercept(t.Context(), c.calling, CallInfo{}); err == nil || !strings.Contains(err.Error(), "a bug") {
				t.Errorf("an interceptor that panics: %v", err)
			}
		}},
		"end of an interceptor": {WithServeInterceptors(endsBadly(bug)), func(c *config) {
			_, end, err := c.intercept(t.Context(), c.serving, CallInfo{})
			if err != nil {
				t.Fatal(err)
			}
			end(nil)
		}},
		"allocator": {WithAlloc(func(int) (*tensor.Storage, error) { bug(); return nil, nil }), func(c *config) {
			if _, err := c.alloc(1); cohort.CodeOf(err) != cohort.Internal {
				t.Errorf("an allocator that panics: %v", err)
			}
		}},
	} {
		for _, own := range []bool{true, false} {
			var agents, programs testkit.Log
			before := slog.Default()
			defer slog.SetDefault(before)
			slog.SetDefault(programs.Logger(slog.LevelInfo))
			opts, told, other := []Option{c.opt}, &programs, &agents
			if own {
				opts, told, other = append(opts, WithLogger(agents.Logger(slog.LevelInfo))), &agents, &programs
			}
			cfg, err := newConfig(opts)
			if err != nil {
				t.Fatal(err)
			}
			for range 150 {
				c.call(cfg)
			}
			if n := strings.Count(told.String(), "panic in a callback"); n != 100 || other.String() != "" {
				t.Errorf("%s, logger %v: told %d times; elsewhere: %s", name, own, n, other)
			}
		}
	}
}
