// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// notes collects what interceptors saw, in order.
type notes struct {
	mu struct {
		sync.Mutex
		lines []string
	}
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lines = append(n.mu.lines, fmt.Sprintf(format, args...))
}

func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.mu.lines
	n.mu.lines = nil
	return lines
}

func (n *notes) interceptor(name string) Interceptor {
	return func(ctx context.Context, call CallInfo) (context.Context, func(error), error) {
		if strings.HasPrefix(call.Func, "torch.") || strings.HasPrefix(call.Func, "cohort.") {
			return nil, nil, nil // the workers' own
		}
		n.add("%s %s %s %v [%s]", name, call.Peer, call.Func, call.Remote, observe.Trace(ctx))
		return observe.WithTrace(ctx, observe.Trace(ctx)+name), func(err error) { n.add("%s ends: %v", name, cohort.CodeOf(err)) }, nil
	}
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestInterceptors: both sides see calls from begin to end, pass contexts on, and a trace travels with calls, also to oneself.
func TestInterceptors(t *testing.T) {
	t.Parallel()
	var n notes
	reg := NewRegistry().
		MustHandle("m.trace", func(ctx context.Context) string { return observe.Trace(ctx) }).
		MustHandle("m.fail", func() error { return cohort.New("m", cohort.NotFound, "nothing here") }).
		MustHandle("m.panic", func() { panic("a bug") }).
		MustHandle("m.later", func(ctx context.Context) *cohort.Future[string] {
			p := cohort.NewPromise[string]()
			go p.Complete(observe.Trace(ctx), nil)
			return p.Future()
		})
	agents := world(t, 2, true, func(int) *Registry { return reg },
		WithCallInterceptors(n.interceptor("A"), n.interceptor("B")), WithServeInterceptors(n.interceptor("S")))
	ctx := observe.WithTrace(t.Context(), parent)
	me, peer := agents[0].Name(), agents[1].Name()
	for _, to := range []string{peer, me} {
		expect := func(what, fn, code string, remote bool) {
			t.Helper()
			want := []string{
				fmt.Sprintf("A %s %s %v [%s]", to, fn, remote, parent), fmt.Sprintf("B %s %s %v [%sA]", to, fn, remote, parent),
				fmt.Sprintf("S %s %s %v [%sAB]", me, fn, remote, parent), "S ends: " + code, "B ends: " + code, "A ends: " + code,
			}
			got := n.take()
			if remote { // its sending ends at any moment
				slices.Sort(got)
				slices.Sort(want)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s to %s:\n got %q\nwant %q", what, to, got, want)
			}
		}
		got, err := Call[string](ctx, agents[0], to, "m.trace")
		if got != parent+"ABS" || err != nil {
			t.Errorf("call: %q, %v", got, err)
		}
		expect("call", "m.trace", "unknown error", false)
		if got, err = Async[string](ctx, agents[0], to, "m.later").Await(ctx); got != parent+"ABS" || err != nil {
			t.Errorf("async: %q, %v", got, err)
		}
		expect("async", "m.later", "unknown error", false)
		if _, err = Call[any](ctx, agents[0], to, "m.fail"); err == nil {
			t.Error("m.fail does not fail")
		}
		lines := n.take()
		if len(lines) != 6 || lines[3] != "S ends: not found" {
			t.Errorf("failure: %q", lines)
		}
		if _, err = Call[any](ctx, agents[0], to, "m.panic"); err == nil {
			t.Error("m.panic does not fail")
		}
		if lines = n.take(); len(lines) != 6 {
			t.Errorf("panic: %q", lines)
		}
		ref, err := Remote[string](ctx, agents[0], to, "m.trace")
		if err != nil {
			t.Fatal(err)
		}
		if got, err = ref.Fetch(ctx); got != parent+"ABS" || err != nil {
			t.Errorf("remote: %q, %v", got, err)
		}
		expect("remote", "m.trace", "unknown error", true)
		_ = ref.Close()
	}
}

// TestInterceptorsRefuse: an interceptor can refuse a call on either side; those that have begun are notified of the end.
func TestInterceptorsRefuse(t *testing.T) {
	t.Parallel()
	var n notes
	refuse := func(ctx context.Context, call CallInfo) (context.Context, func(error), error) {
		if call.Func == "m.secret" {
			return ctx, nil, cohort.New("auth", cohort.InvalidArgument, "not for "+call.Peer)
		}
		return nil, nil, nil
	}
	ran := false
	reg := NewRegistry().MustHandle("m.secret", func() { ran = true }).MustHandle("m.open", func() int { return 7 })
	here := world(t, 2, true, func(int) *Registry { return reg }, WithCallInterceptors(n.interceptor("A"), refuse))
	there := world(t, 2, true, func(int) *Registry { return reg }, WithServeInterceptors(n.interceptor("S"), refuse))
	for _, agents := range [][]*Agent{here, there} {
		_, err := Call[any](t.Context(), agents[0], agents[1].Name(), "m.secret")
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "not for") {
			t.Errorf("call: %v", err)
		}
		if _, err = Async[any](t.Context(), agents[0], agents[1].Name(), "m.secret").Await(t.Context()); !errors.Is(err,
			cohort.InvalidArgument) {
			t.Errorf("async: %v", err)
		}
		for _, line := range n.take() {
			if strings.Contains(line, "ends") && !strings.HasSuffix(line, "invalid argument") {
				t.Errorf("%q", line)
			}
		}
		if v, err := Call[int](t.Context(), agents[0], agents[1].Name(), "m.open"); v != 7 || err != nil {
			t.Errorf("an open function: %d, %v", v, err)
		}
		n.take()
	}
	if _, err := Remote[any](t.Context(), here[0], here[1].Name(), "m.secret"); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("remote: %v", err)
	}
	if ran {
		t.Error("a call that was refused has run")
	}
	long := observe.WithTrace(t.Context(), strings.Repeat("x", 65))
	if _, err := Call[int](long, there[0], there[1].Name(), "m.open"); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a trace that is too long: %v", err)
	}
}
