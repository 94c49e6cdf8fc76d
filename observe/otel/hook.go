// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// Hook returns a hook for groups and stores that makes a span of every operation, below the span of the context that it was called
// with: a collective and a store's wait inside a handler show up in the trace of the call. Operations outside of a recorded
// trace are left out.
//
//	w, err := world.Join(ctx, "env://", world.WithHook(otel.Hook(provider)))
func Hook(provider trace.TracerProvider) observe.Hook {
	tracer := provider.Tracer(operations)
	return func(e observe.Event) {
		if e.Phase != observe.End || !e.Sampled {
			return
		}
		traceID, err := trace.TraceIDFromHex(e.Trace)
		if err != nil {
			return
		}
		parent, err := trace.SpanIDFromHex(e.Parent)
		if err != nil {
			return
		}
		ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: traceID, SpanID: parent, TraceFlags: trace.FlagsSampled,
		}))
		_, span := tracer.Start(ctx, string(e.Kind), trace.WithTimestamp(e.Time.Add(-e.Dur)), trace.WithAttributes(details(e)...))
		if e.Err != nil {
			span.RecordError(e.Err)
			span.SetStatus(codes.Error, cohort.CodeOf(e.Err).String())
		}
		span.End(trace.WithTimestamp(e.Time))
	}
}

// operations is the instrumentation scope of the spans of groups and stores.
const operations = "github.com/cohort-dist/cohort"

// details are what is known of an operation.
func details(e observe.Event) []attribute.KeyValue {
	var list []attribute.KeyValue
	if e.Rank != cohort.NoRank {
		list = append(list, attribute.Int("cohort.rank", int(e.Rank)))
	}
	for _, a := range []struct{ key, value string }{{"cohort.group", e.Group}, {"cohort.key", e.Key}, {"cohort.peer", e.Peer}} {
		if a.value != "" {
			list = append(list, attribute.String(a.key, a.value))
		}
	}
	if e.Bytes > 0 {
		list = append(list, attribute.Int64("cohort.bytes", e.Bytes))
	}
	return list
}
