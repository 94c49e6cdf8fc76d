// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import "context"

// traceKey is the key of a trace context.
type traceKey struct{}

// WithTrace returns a context whose calls belong to a trace: a traceparent as W3C defines it, as OpenTelemetry's propagators
// write and read it. It travels with calls to Go workers, and handlers find it with [Trace]; PyTorch's wire has no room for it.
// A call with more than 64 bytes of it is refused.
func WithTrace(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceKey{}, traceparent)
}

// Trace returns the trace context of ctx, "" without one.
func Trace(ctx context.Context) string {
	t, _ := ctx.Value(traceKey{}).(string)
	return t
}
