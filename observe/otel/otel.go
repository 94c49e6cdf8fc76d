// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package otel shows the calls of an RPC worker in OpenTelemetry: a span for every call that it makes and for every handler that
// it runs, in one trace across workers. [Hook] adds the operations of groups and stores.
//
//	agent, err := w.RPC(ctx, "loader0", append(otel.Tracing(provider), rpc.WithHandlers(reg))...)
//
// The trace travels between Go workers as a W3C traceparent, see observe.WithTrace. PyTorch's wire has no room for it: a call to a
// PyTorch worker is a span without one on the other side.
//
// It is a separate module, so that programs without OpenTelemetry do not depend on it.
package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc"
)

// scope is the instrumentation scope of the spans.
const scope = "github.com/cohort-dist/cohort/rpc"

// traceparent is the one header of W3C's trace context that travels.
const traceparent = "traceparent"

// Tracing returns the options of a worker whose calls and handlers are spans of the provider.
//
// A call is a child of the span in its context, or of the trace that observe.WithTrace has put there. The context of a handler
// has the span of its serving, so that the spans and calls of the handler are below it.
func Tracing(provider trace.TracerProvider) []rpc.Option {
	tracer := provider.Tracer(scope)
	return []rpc.Option{
		rpc.WithCallInterceptors(intercept(tracer, trace.SpanKindClient)),
		rpc.WithServeInterceptors(intercept(tracer, trace.SpanKindServer)),
	}
}

func intercept(tracer trace.Tracer, kind trace.SpanKind) rpc.Interceptor {
	return func(ctx context.Context, call rpc.CallInfo) (context.Context, func(error), error) {
		format := propagation.TraceContext{}
		if !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = format.Extract(ctx, propagation.MapCarrier{traceparent: observe.Trace(ctx)})
		}
		ctx, span := tracer.Start(ctx, call.Func, trace.WithSpanKind(kind), trace.WithAttributes(attributes(call)...))
		carrier := propagation.MapCarrier{}
		format.Inject(ctx, carrier)
		if parent := carrier[traceparent]; parent != "" { // a provider that records nothing leaves what is there
			ctx = observe.WithTrace(ctx, parent)
		}
		return ctx, func(err error) {
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, cohort.CodeOf(err).String())
			}
			span.End()
		}, nil
	}
}

// attributes are what is known of a call, by the names of OpenTelemetry's conventions for RPC.
func attributes(call rpc.CallInfo) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("rpc.system", "cohort"), attribute.String("rpc.method", call.Func), attribute.String("cohort.peer", call.Peer),
	}
	if call.Object != "" {
		list = append(list, attribute.String("cohort.object", call.Object))
	}
	if call.Remote {
		list = append(list, attribute.Bool("cohort.remote", true))
	}
	return list
}
