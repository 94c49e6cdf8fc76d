// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package otel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/observe/otel"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestOperationsInHandler: a collective and the waits of stores inside a handler are spans below that of the handler, in the
// trace of the call; what is done outside of a trace is none.
func TestOperationsInHandler(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	spanned := make(chan struct{}, 2)
	hook := observe.Tee(otel.Hook(provider), func(e observe.Event) {
		if e.Kind == "group.all_reduce" && e.Phase == observe.End { // emitted after the waiter has returned
			spanned <- struct{}{}
		}
	})
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	client, err := tcpstore.Dial(ctx, server.Addr().String(), tcpstore.WithHook(hook))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	file, err := filestore.Open(ctx, t.TempDir()+"/store", filestore.WithHook(hook))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	meeting := store.NewMemory()
	defer func() { _ = meeting.Close() }()
	groups := make(chan *group.Group, 2)
	for rank := range 2 {
		go func() {
			g, failed := group.New(ctx, meeting, cohort.Rank(rank), 2, group.WithHook(hook))
			if failed != nil {
				t.Error(failed)
			}
			groups <- g
		}()
	}
	mine, other := <-groups, <-groups
	if mine == nil || other == nil {
		t.FailNow()
	}
	defer func() { _, _ = mine.Close(), other.Close() }()

	late := errors.New("late")
	reg := rpc.NewRegistry().MustHandle("t.work", func(ctx context.Context) error {
		if failed := group.AllReduceSlice(ctx, mine, []float32{1}, group.Sum); failed != nil {
			return failed
		}
		if failed := file.Set(ctx, "a", nil); failed != nil {
			return failed
		}
		short, cancel := context.WithTimeoutCause(ctx, time.Millisecond, late)
		defer cancel()
		if failed := client.Wait(short, "never"); !errors.Is(failed, cohort.DeadlineExceeded) {
			return errors.New("the wait does not end with its context")
		}
		return nil
	})
	agent, err := rpc.Join(ctx, meeting, "w", append(otel.Tracing(provider), rpc.WithHandlers(reg), rpc.WithAddr("127.0.0.1:0"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Close() }()
	reduced := make(chan error, 1)
	go func() { reduced <- group.AllReduceSlice(ctx, other, []float32{2}, group.Sum) }() // in no trace
	root, span := provider.Tracer("test").Start(ctx, "root")
	if _, err = rpc.Call[any](root, agent, "w", "t.work"); err != nil {
		t.Fatal(err)
	}
	span.End()
	if err = <-reduced; err != nil {
		t.Error(err)
	}
	if err = client.Set(ctx, "outside", nil); err != nil {
		t.Error(err)
	}
	for range 2 {
		<-spanned
	}

	var serving tracetest.SpanStub
	all := spans.GetSpans()
	for _, s := range all {
		if s.SpanKind == trace.SpanKindServer {
			serving = s
		}
	}
	found := map[string]int{}
	for _, s := range all {
		if s.InstrumentationScope.Name != "github.com/cohort-dist/cohort" {
			continue
		}
		found[s.Name]++
		if s.Parent.SpanID() != serving.SpanContext.SpanID() || s.SpanContext.TraceID() != span.SpanContext().TraceID() {
			t.Errorf("%s is not below the handler", s.Name)
		}
		if s.StartTime.Before(serving.StartTime) || s.EndTime.After(serving.EndTime) || s.EndTime.Before(s.StartTime) {
			t.Errorf("%s: from %v to %v, the handler from %v to %v", s.Name, s.StartTime, s.EndTime, serving.StartTime, serving.EndTime)
		}
		if failed := s.Name == "store.wait"; failed != (s.Status.Code == codes.Error) {
			t.Errorf("%s: status %v", s.Name, s.Status)
		}
	}
	if len(found) != 3 || found["group.all_reduce"] != 1 || found["store.wait"] != 1 || found["store.set"] != 1 {
		t.Errorf("spans of operations: %v", found)
	}
}

// TestHookKeepsToSampledTraces: an operation in a trace that is not recorded makes no span.
func TestHookKeepsToSampledTraces(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	hook := otel.Hook(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	const ids = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	for flags, want := range map[string]int{"00": 0, "01": 1, "02": 0, "03": 1} {
		spans.Reset()
		e := observe.Event{Kind: "store.get", Phase: observe.Begin, Rank: cohort.NoRank}
		e.SetTrace(ids + flags)
		hook.Emit(e)
		e.Phase = observe.End
		hook.Emit(e)
		if got := len(spans.GetSpans()); got != want {
			t.Errorf("flags %s: %d spans, want %d", flags, got, want)
		}
	}
}
