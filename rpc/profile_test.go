// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
)

// names returns the names of the events that ran at a worker.
func (p *Profile) names(worker cohort.Rank) []string {
	var all []string
	for _, e := range p.Events() {
		if e.Worker == worker {
			all = append(all, e.Name)
		}
	}
	slices.Sort(all)
	return all
}

// TestProfile: a profile holds the calls of its context and, of every worker that they reach, what ran there; other calls are
// not in it.
func TestProfile(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().
			MustHandle("p.leaf", func(ctx context.Context) int {
				RecordFunction(ctx, "inner")()
				return 7
			}).
			MustHandle("p.relay", func(ctx context.Context) (int, error) {
				return Call[int](ctx, AgentFrom(ctx), "w2", "p.leaf")
			}).
			MustHandle("p.later", func(ctx context.Context) *cohort.Future[int] { return Async[int](ctx, AgentFrom(ctx), "w2", "p.leaf") }).
			MustHandle("p.fail", func() error { return errors.New("no") })
		agents := world(t, 3, true, func(int) *Registry { return reg }, opts...)
		background := testContext(t)
		ctx, p := WithProfile(background)
		if n, err := Call[int](ctx, agents[0], "w1", "p.relay"); n != 7 || err != nil {
			t.Fatal(n, err)
		}
		const outer, inner = "rpc_sync#p.relay(w0 -> w1)", "#remote_op: rpc_sync#p.leaf(w1 -> w2)"
		for worker, want := range [][]string{
			{outer},
			{outer + "#remote_op: p.relay", outer + inner},
			{outer + inner + "#remote_op: inner", outer + inner + "#remote_op: p.leaf"},
		} {
			if got := p.names(cohort.Rank(worker)); !slices.Equal(got, want) {
				t.Errorf("at worker %d: %q, want %q", worker, got, want)
			}
		}
		events := p.Events()
		for _, e := range events[1:] { // all clocks here are one
			if e.Duration < 0 || e.Start.Before(events[0].Start) || e.Start.Add(e.Duration).After(events[0].Start.Add(events[0].Duration)) {
				t.Errorf("%+v is not inside %+v", e, events[0])
			}
		}
		if text := p.String(); strings.Count(text, "\n") != len(events) {
			t.Error(text)
		}
		// An asynchronous handler: its call goes on when it has returned, and belongs to the profile as well.
		ctx, p = WithProfile(background)
		if n, err := Async[int](ctx, agents[0], "w1", "p.later").Await(ctx); n != 7 || err != nil {
			t.Fatal(n, err)
		}
		const later, leaf = "rpc_async#p.later(w0 -> w1)", "#remote_op: rpc_async#p.leaf(w1 -> w2)"
		for worker, want := range [][]string{
			{later},
			{later + "#remote_op: p.later", later + leaf},
			{later + leaf + "#remote_op: inner", later + leaf + "#remote_op: p.leaf"},
		} {
			if got := p.names(cohort.Rank(worker)); !slices.Equal(got, want) {
				t.Errorf("at worker %d: %q, want %q", worker, got, want)
			}
		}
		// Other modes, a failure, and a call without the profile.
		ctx, p = WithProfile(background)
		if _, err := Async[int](ctx, agents[0], "w0", "p.leaf").Await(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := Call[int](ctx, agents[0], "w1", "p.fail"); err == nil {
			t.Fatal("p.fail succeeds")
		}
		if _, err := Call[int](ctx, agents[0], "w1", "p.missing"); err == nil {
			t.Fatal("p.missing succeeds")
		}
		ref, err := Remote[int](ctx, agents[0], "w2", "p.leaf")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := ref.Fetch(ctx); n != 7 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := Call[int](background, agents[0], "w1", "p.leaf"); err != nil {
			t.Fatal(err)
		}
		got := p.names(0)
		for _, want := range []string{
			"rpc_async#p.leaf(w0 -> w0)", "rpc_async#p.leaf(w0 -> w0)#remote_op: p.leaf", "rpc_sync#p.fail(w0 -> w1)",
			"rpc_sync#p.missing(w0 -> w1)",
			"rpc_remote#p.leaf(w0 -> w2)", "to_here#(w0)->(w2)",
		} {
			if !slices.Contains(got, want) {
				t.Errorf("%q is not in %q", want, got)
			}
		}
		if slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "leaf(w0 -> w1)") }) {
			t.Errorf("a call without the profile is in it: %q", got)
		}
		_ = ref.Close()
		shutdown(t, agents)
	})
}

// TestProfileOfLostCall: a call whose caller gives up is in the profile, and the profile can be read while calls run.
func TestProfileOfLostCall(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	reg := NewRegistry().MustHandle("p.hang", func(ctx context.Context) { close(entered); <-ctx.Done() })
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx, p := WithProfile(testContext(t))
	ctx, cancel := context.WithCancel(ctx)
	f := Async[any](ctx, agents[0], "w1", "p.hang")
	<-entered
	if events := p.Events(); len(events) != 0 {
		t.Errorf("while it runs: %+v", events)
	}
	cancel()
	if _, err := f.Await(testContext(t)); !errors.Is(err, cohort.Canceled) {
		t.Error(err)
	}
	if got := p.names(0); !slices.Equal(got, []string{"rpc_async#p.hang(w0 -> w1)"}) {
		t.Error(got)
	}
	RecordFunction(context.Background(), "nothing records this")()
}
