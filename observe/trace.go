// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"strings"
)

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

// SplitTrace returns the ids of the trace and of the span in a traceparent, as [Event] has them; both are "" if it is malformed.
func SplitTrace(traceparent string) (trace, span string) {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || !isID(parts[0], 2) || parts[0] == "ff" || !isID(parts[1], 32) || !isID(parts[2], 16) || !isID(parts[3], 2) ||
		strings.Trim(parts[1], "0") == "" || strings.Trim(parts[2], "0") == "" || parts[0] == "00" && len(parts) > 4 {
		return "", ""
	}
	return parts[1], parts[2]
}

// isID reports whether s is n hexadecimal digits as W3C wants them, in lower case.
func isID(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// SetTrace makes e an event of the span in a traceparent: it sets Trace, Parent and Sampled. It does nothing if the traceparent
// is malformed.
func (e *Event) SetTrace(traceparent string) {
	trace, span := SplitTrace(traceparent)
	if trace == "" {
		return
	}
	flags := strings.Split(traceparent, "-")[3]
	e.Trace, e.Parent, e.Sampled = trace, span, strings.IndexByte("0123456789abcdef", flags[1])%2 == 1
}
