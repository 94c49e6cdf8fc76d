// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

// Profile collects what calls took: how long the caller waited, and what ran where meanwhile. It is safe for concurrent use.
type Profile struct{ rec rpcwire.ProfileRecorder }

// ProfileEvent is something that has taken time. A call is named as by PyTorch's profiler, "rpc_sync#function(caller -> callee)",
// and what its callee reports is "<the call>#remote_op: <what ran>".
type ProfileEvent struct {
	Name     string
	Worker   cohort.Rank // the worker that it ran at
	Start    time.Time   // by that worker's clock
	Duration time.Duration
}

// WithProfile returns a context whose calls are profiled. Workers that they reach, PyTorch's too, profile the functions that
// they run, and the calls that Go handlers make with their context are part of the profile.
//
// It corresponds to torch.autograd.profiler_legacy.profile. PyTorch's newer profiler sees the caller's side only. A Go worker
// serves profiled calls of PyTorch as well: its handlers appear in the profile there.
func WithProfile(ctx context.Context) (context.Context, *Profile) {
	p := new(Profile)
	return rpcwire.WithProfile(ctx, &p.rec), p
}

// RecordFunction makes what happens until end is called an event of the profile in ctx. In a handler that is the profile of its
// caller. Without a profile it does nothing. It corresponds to torch.autograd.profiler.record_function.
//
//	defer rpc.RecordFunction(ctx, "load rows")()
func RecordFunction(ctx context.Context, name string) (end func()) {
	rec := rpcwire.ProfileFrom(ctx)
	if rec == nil {
		return func() {}
	}
	start, worker := time.Now(), cohort.NoRank
	if a := AgentFrom(ctx); a != nil {
		worker = a.ID()
	}
	return func() {
		rec.Add(rpcwire.Span{Name: name, Worker: worker, Start: start, Took: time.Since(start)})
	}
}

// Events returns what has ended so far, by start.
func (p *Profile) Events() []ProfileEvent {
	spans, _ := p.rec.Spans()
	events := make([]ProfileEvent, len(spans))
	for i, s := range spans {
		events[i] = ProfileEvent{Name: s.Name, Worker: s.Worker, Start: s.Start, Duration: s.Took}
	}
	slices.SortStableFunc(events, func(a, b ProfileEvent) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(b.Duration, a.Duration))
	})
	return events
}

// String is a table of the events.
func (p *Profile) String() string {
	var b strings.Builder
	for _, e := range p.Events() {
		fmt.Fprintf(&b, "%12v  worker %d  %s\n", e.Duration, e.Worker, e.Name)
	}
	if _, dropped := p.rec.Spans(); dropped > 0 {
		fmt.Fprintf(&b, "%d more events were not kept\n", dropped)
	}
	return b.String()
}
