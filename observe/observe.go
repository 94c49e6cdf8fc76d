// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package observe is how cohort reports what it does: one [Event] type and one [Hook] type.
//
// Stores, groups and agents take a Hook as an option and call it for every notable event. [Log] writes events to a log, and
// package observe/otel makes spans of them. Without a hook an event costs one branch.
package observe

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

// Kind is what an Event is about.
type Kind string

// Event is one thing that happened. Unused fields are zero.
type Event struct {
	Time   time.Time     `json:"time"`
	Kind   Kind          `json:"kind"`             // such as "store.wait", "group.allreduce", "rpc.call"
	Phase  Phase         `json:"phase"`            // begin, end or a single point
	Rank   cohort.Rank   `json:"rank"`             // the rank that reports this
	Group  string        `json:"group,omitempty"`  // group or world name
	Seq    uint64        `json:"seq,omitempty"`    // sequence number in its group
	Peer   string        `json:"peer,omitempty"`   // address or name of the other side
	Key    string        `json:"key,omitempty"`    // store key, function or object
	Bytes  int64         `json:"bytes,omitempty"`  // payload size
	Dur    time.Duration `json:"dur_ns,omitempty"` // how long it took, on [End]
	Detail string        `json:"detail,omitempty"` // plain English
	Err    error         `json:"-"`                // why it failed
	Trace  string        `json:"trace,omitempty"`  // id of the trace that the operation belongs to; see [WithTrace]
	Span   string        `json:"span,omitempty"`   // id of the span that travels with a call
	Parent string        `json:"parent,omitempty"` // id of the span that the operation is part of; of a call that is served, the caller's
	// Sampled reports that the trace is recorded, by the flag of its traceparent. Only operations of groups and stores set it.
	Sampled bool `json:"sampled,omitempty"`
}

// Phase places an Event in the life of an operation.
type Phase uint8

// The phases.
const (
	Point Phase = iota // something that has no duration
	Begin
	End
)

// String returns the phase's name.
func (p Phase) String() string { return [...]string{"point", "begin", "end"}[p] }

// MarshalText writes the phase's name, for JSON.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Hook receives events. It is called from many goroutines, never under a lock, and must not block.
type Hook func(Event)

// Emit sends e to the hook, stamped with the time if it has none. A nil Hook ignores it.
func (h Hook) Emit(e Event) {
	if h == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	h(e)
}

// Tee returns a Hook that passes each event to all of hooks, in order. Nil hooks are left out.
func Tee(hooks ...Hook) Hook {
	var live []Hook
	for _, h := range hooks {
		if h != nil {
			live = append(live, h)
		}
	}
	switch len(live) {
	case 0:
		return nil
	case 1:
		return live[0]
	}
	return func(e Event) {
		for _, h := range live {
			h(e)
		}
	}
}

// Log returns a Hook that writes each event to logger: failures at Warn, the rest at Debug.
func Log(logger *slog.Logger) Hook {
	return func(e Event) {
		level := slog.LevelDebug
		attrs := make([]slog.Attr, 0, 10)
		attrs = append(attrs, slog.String("kind", string(e.Kind)), slog.String("phase", e.Phase.String()))
		if e.Rank != cohort.NoRank {
			attrs = append(attrs, slog.Int("rank", int(e.Rank)))
		}
		for _, a := range []struct{ key, value string }{
			{"group", e.Group},
			{"peer", e.Peer},
			{"key", e.Key},
			{"detail", e.Detail},
			{"trace", e.Trace},
			{"span", e.Span},
			{"parent", e.Parent},
		} {
			if a.value != "" {
				attrs = append(attrs, slog.String(a.key, a.value))
			}
		}
		if e.Bytes != 0 {
			attrs = append(attrs, slog.Int64("bytes", e.Bytes))
		}
		if e.Dur != 0 {
			attrs = append(attrs, slog.Duration("dur", e.Dur))
		}
		if e.Err != nil {
			level = slog.LevelWarn
			attrs = append(attrs, slog.String("err", e.Err.Error()))
		}
		logger.LogAttrs(nil, level, "event", attrs...) //nolint:staticcheck // events carry no context
	}
}

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
