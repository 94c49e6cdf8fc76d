// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc"
)

// PyTorch's profiler wraps calls and collects spans. Here every worker reports what it does as events; these tests are the
// counterparts of those that look for spans in a profile.

// find returns the events of one kind and phase about a function.
func find(events []observe.Event, kind observe.Kind, phase observe.Phase, key string) []observe.Event {
	var found []observe.Event
	for _, e := range events {
		if e.Kind == kind && e.Phase == phase && e.Key == key {
			found = append(found, e)
		}
	}
	return found
}

// An event says mode, function, source and destination.
func TestEventNames(t *testing.T) {
	w := start(t, 2)
	for _, mode := range modes {
		_, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2), ones(2))
		must(t, err)
	}
	events := w.nodes[0].observed()
	for _, c := range []struct {
		kind   observe.Kind
		detail string
	}{{"rpc.call", "sync"}, {"rpc.call", "async"}, {"rpc.remote", ""}} {
		found := 0
		for _, e := range find(events, c.kind, observe.End, "t.add") {
			if e.Detail == c.detail && e.Rank == 0 && e.Peer == name(1) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d events %s %q about t.add from rank 0 to %s", found, c.kind, c.detail, name(1))
		}
	}
}

// One event for a call, between the begin and the end of what surrounds it, and one of the callee, which has the same key.
func TestEvents(t *testing.T) {
	for i, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			for _, c := range []struct{ name, fn string }{
				{"handler", "t.sleep_add"},
				{"builtin", addSchema},
				{"script", "__torch__.t.sleep_add"},
			} {
				t.Run(c.name, func(t *testing.T) {
					w := start(t, 2)
					for _, to := range w.nodes { // to oneself as well
						args := []any{0.02, ones(2), ones(2)}
						if c.name == "builtin" {
							args = []any{ones(2), ones(2), 1}
						}
						begin := time.Now()
						_, err := mode.call(w.ctx, w.nodes[0].Agent, to.Name(), c.fn, args...)
						must(t, err)
						took := time.Since(begin)
						kind := observe.Kind("rpc.call")
						if mode.name == "remote" {
							kind = "rpc.remote"
						}
						key := map[string]string{"handler": c.fn, "builtin": addOperator, "script": "t.sleep_add"}[c.name]
						testkit.Until(t, "the callee's event", func() bool {
							served := find(to.observed(), "rpc.serve", observe.End, key)
							return len(served) == 1 && served[0].Peer == name(0) && served[0].Rank == cohort.Rank(to.rank) &&
								served[0].Err == nil
						})
						var spans []observe.Event
						for _, e := range find(w.nodes[0].observed(), kind, observe.End, key) {
							if e.Peer == to.Name() {
								spans = append(spans, e)
							}
						}
						if len(spans) != 1 || spans[0].Dur > took || spans[0].Time.Before(begin) {
							t.Fatalf("the span of a call that took %v: %+v", took, spans)
						}
						if i < 2 && c.name != "builtin" && spans[0].Dur < 20*time.Millisecond {
							t.Errorf("the span ends after %v, before the call", spans[0].Dur)
						}
					}
				})
			}
		})
	}
}

// Calls in parallel have a span each, with the right destination.
func TestEventsOfParallelCalls(t *testing.T) {
	w := start(t, worldSize)
	must(t, parallel(30, func(i int) error {
		_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1+i%3), "t.echo", i)
		return err
	}))
	count := map[string]int{}
	for _, e := range find(w.nodes[0].observed(), "rpc.call", observe.End, "t.echo") {
		count[e.Peer]++
	}
	for rank := 1; rank < worldSize; rank++ {
		if count[name(rank)] != 10 {
			t.Errorf("%d spans to worker %d", count[name(rank)], rank)
		}
	}
}

// The callee reports what it served, for whom and how long.
func TestEventsOfCallee(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		_, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.sleep", 0.02)
		return err
	})
	for rank, n := range w.nodes {
		testkit.Until(t, "the callee's event", func() bool {
			served := find(n.observed(), "rpc.serve", observe.End, "t.sleep")
			return len(served) == 1 && served[0].Peer == name((rank+worldSize-1)%worldSize) &&
				served[0].Rank == cohort.Rank(rank) && served[0].Dur >= 20*time.Millisecond
		})
	}
}

// The callee's event has the error of a handler that fails, of a call and of one that creates an object.
func TestEventsOfFailedHandler(t *testing.T) {
	w := start(t, 2)
	_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.raise")
	if err == nil {
		t.Error("no error")
	}
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.raise")
	must(t, err)
	defer ref.Close()
	testkit.Until(t, "two events with an error", func() bool {
		served := find(w.nodes[1].observed(), "rpc.serve", observe.End, "t.raise")
		return len(served) == 2 && served[0].Err != nil && served[1].Err != nil
	})
}

// A handler that calls: its own span lies inside that of the call it serves.
func TestEventsNested(t *testing.T) {
	w := start(t, 3)
	w.serveAsync()
	for _, fn := range []string{"t.nested", "t.a_simple"} {
		args := []any{name(2), ones(2, 2)}
		if fn == "t.nested" {
			args = append(args, ones(2, 2))
		}
		_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), fn, args...)
		must(t, err)
		testkit.Until(t, "nested events of "+fn, func() bool {
			events := w.nodes[1].observed()
			outer, inner := find(events, "rpc.serve", observe.End, fn), find(events, "rpc.call", observe.End, "t.add")
			return len(outer) == 1 && len(inner) > 0 && inner[len(inner)-1].Dur <= outer[0].Dur && inner[len(inner)-1].Peer == name(2)
		})
	}
}

// A span of the user's own in a handler goes into the same stream.
func TestEventsOfUser(t *testing.T) {
	w := start(t, 2)
	n := w.nodes[1]
	hook := observe.Hook(func(e observe.Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, e)
	})
	n.reg.MustHandle("t.spans", func() { hook.Emit(observe.Event{Kind: "user.foo", Key: "foo"}) })
	_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.spans")
	must(t, err)
	order := []observe.Kind{}
	testkit.Until(t, "three events", func() bool {
		order = order[:0]
		for _, e := range n.observed() {
			if e.Key == "t.spans" || e.Key == "foo" {
				order = append(order, e.Kind)
			}
		}
		return len(order) == 3
	})
	if fmt.Sprint(order) != "[rpc.serve user.foo rpc.serve]" {
		t.Errorf("got %v", order)
	}
}

// Two readers of a server's events, which its client starts and ends; the inner one reads for a part of the time.
func TestEventsServerTwoReaders(t *testing.T) {
	subSchema := strings.Replace(addSchema, "add", "sub", 1)
	const added, subtracted = addOperator, "torch.ops.aten.sub"
	var mu sync.Mutex
	reading, read := map[string]bool{}, map[string][]string{}
	w := start(t, 2, rpc.WithHook(func(e observe.Event) {
		if e.Rank != 1 || e.Kind != "rpc.serve" || e.Phase != observe.End || e.Key != added && e.Key != subtracted {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for reader, on := range reading {
			if on {
				read[reader] = append(read[reader], e.Key)
			}
		}
	}))
	w.nodes[1].reg.MustHandle("t.read", func(reader string, on bool) []string {
		mu.Lock()
		defer mu.Unlock()
		reading[reader] = on
		return slices.Clone(read[reader])
	})
	call := func(fn string, args ...any) any {
		t.Helper()
		v, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), fn, args...)
		must(t, err)
		return v
	}
	serve := func(fn string, events int) { // the event may come after the answer
		t.Helper()
		call(fn, ones(2), ones(2), 1)
		testkit.Until(t, fn, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(read["outer"]) == events
		})
	}
	call("t.read", "outer", true)
	serve(addSchema, 1)
	call("t.read", "inner", true)
	serve(subSchema, 2)
	inner := call("t.read", "inner", false)
	serve(addSchema, 3)
	outer := call("t.read", "outer", false)
	if fmt.Sprint(inner) != fmt.Sprint([]string{subtracted}) || fmt.Sprint(outer) != fmt.Sprint([]string{added, subtracted, added}) {
		t.Errorf("inner %v, outer %v", inner, outer)
	}
}

// Events can be written down and read by other programs.
func TestEventsExport(t *testing.T) {
	w := start(t, 2)
	_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.raise")
	wantErr(t, err, cohort.Remote)
	text, err := json.Marshal(w.nodes[0].observed())
	must(t, err)
	var back []map[string]any
	must(t, json.Unmarshal(text, &back))
	found := false
	for _, e := range back {
		found = found || e["kind"] == "rpc.call" && e["key"] == "t.raise" && e["phase"] == "end" && e["peer"] == name(1) &&
			e["dur_ns"] != nil
	}
	if !found {
		t.Errorf("got %s", text)
	}
}

// Per-peer statistics: calls, bytes, errors.
func TestStats(t *testing.T) {
	w := start(t, 2)
	before := w.nodes[0].Stats()[name(1)]
	for range 10 {
		_, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", ones(256))
		must(t, err)
	}
	_, err := rpc.Call[any](context.Background(), w.nodes[0].Agent, name(1), "t.raise")
	wantErr(t, err, cohort.Remote)
	got := w.nodes[0].Stats()[name(1)]
	if got.Calls-before.Calls != 11 || got.Errors-before.Errors != 1 {
		t.Errorf("%d calls, %d errors", got.Calls-before.Calls, got.Errors-before.Errors)
	}
	if out, in := got.BytesSent-before.BytesSent, got.BytesReceived-before.BytesReceived; out < 10<<10 || in < 10<<10 {
		t.Errorf("%d bytes out, %d in", out, in)
	}
	if served := w.nodes[1].Stats()[name(0)].Served; served < 11 {
		t.Errorf("the callee served %d", served)
	}
}
