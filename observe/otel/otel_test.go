// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package otel_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/observe/otel"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// TestOneTrace: a call, the handler that serves it, the call that the handler makes, and its handler, are one trace, each span
// below the one that caused it; and the events of observe carry the same ids.
func TestOneTrace(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	var events struct {
		sync.Mutex
		list []observe.Event
	}
	hook := func(e observe.Event) {
		events.Lock()
		defer events.Unlock()
		events.list = append(events.list, e)
	}
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	join := func(name string, rank cohort.Rank, reg *rpc.Registry) <-chan *rpc.Agent {
		joined := make(chan *rpc.Agent, 1)
		go func() {
			opts := append(otel.Tracing(provider), rpc.WithHandlers(reg), rpc.WithRank(rank), rpc.WithWorldSize(2),
				rpc.WithAddr("127.0.0.1:0"), rpc.WithHook(hook))
			a, err := rpc.Join(ctx, st, name, opts...)
			if err != nil {
				t.Error(err)
			}
			joined <- a
		}()
		return joined
	}
	regA := rpc.NewRegistry().MustHandle("a.inner", func() error { return errors.New("inner failed") })
	regB := rpc.NewRegistry().MustHandle("b.outer", func(ctx context.Context) error {
		_, err := rpc.Call[any](ctx, rpc.AgentFrom(ctx), "a", "a.inner")
		return err
	})
	joiningA, joiningB := join("a", 0, regA), join("b", 1, regB)
	a, b := <-joiningA, <-joiningB
	if a == nil || b == nil {
		t.FailNow()
	}
	outside, root := provider.Tracer("test").Start(ctx, "root")
	if _, err := rpc.Call[any](outside, a, "b", "b.outer"); err == nil {
		t.Error("the failure is lost")
	}
	root.End()
	left := make(chan error, 1)
	go func() { left <- a.Shutdown(ctx) }()
	if err := errors.Join(b.Shutdown(ctx), <-left); err != nil {
		t.Error(err)
	}

	// The chain from the root down, by parents.
	all := spans.GetSpans()
	type step struct {
		name string
		kind trace.SpanKind
	}
	want := []step{
		{"b.outer", trace.SpanKindClient},
		{"b.outer", trace.SpanKindServer},
		{"a.inner", trace.SpanKindClient},
		{"a.inner", trace.SpanKindServer},
	}
	above := root.SpanContext()
	var calls []trace.SpanContext
	for _, w := range want {
		at := slices.IndexFunc(all, func(s tracetest.SpanStub) bool {
			return s.Name == w.name && s.SpanKind == w.kind && s.Parent.SpanID() == above.SpanID() &&
				s.SpanContext.TraceID() == root.SpanContext().TraceID()
		})
		if at < 0 {
			t.Fatalf("no span %v below %v in %+v", w, above.SpanID(), all)
		}
		if all[at].Status.Code != codes.Error || len(all[at].Events) == 0 {
			t.Errorf("the span %v does not report that it failed: %+v", w, all[at].Status)
		}
		if above = all[at].SpanContext; w.kind == trace.SpanKindClient {
			calls = append(calls, above)
		}
	}
	events.Lock()
	defer events.Unlock()
	for i, key := range []string{"b.outer", "a.inner"} {
		id, span := calls[i].TraceID().String(), calls[i].SpanID().String()
		for _, phase := range []observe.Phase{observe.Begin, observe.End} {
			if !slices.ContainsFunc(events.list, func(e observe.Event) bool {
				return e.Kind == "rpc.call" && e.Phase == phase && e.Key == key && e.Trace == id && e.Span == span
			}) {
				t.Errorf("no %v event of the call %s in its span", phase, key)
			}
			if !slices.ContainsFunc(events.list, func(e observe.Event) bool {
				return e.Kind == "rpc.serve" && e.Phase == phase && e.Key == key && e.Trace == id && e.Parent == span
			}) {
				t.Errorf("no %v event of the handler %s below the caller's span", phase, key)
			}
		}
	}
}
