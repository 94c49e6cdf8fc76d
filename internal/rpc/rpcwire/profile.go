// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

// This file records what calls and the functions behind them take. A [Recorder] travels in a context: calls that are
// made with it are recorded, and their callees record in turn and answer with what they have.

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
)

// Span is something that has ended.
type Span struct {
	Name   string
	Worker cohort.Rank // where it ran
	Start  time.Time
	Took   time.Duration
}

// maxSpans is how many spans a recorder keeps: a handler that never returns must not fill the memory.
const maxSpans = 1 << 16

// ProfileRecorder keeps spans in the order in which they ended. Its methods may be called at any time from anywhere.
type ProfileRecorder struct {
	mu struct {
		sync.Mutex
		spans   []Span
		dropped int
	}
}

type profileKey struct{}

// WithProfile returns a context whose calls are recorded.
func WithProfile(ctx context.Context, r *ProfileRecorder) context.Context {
	return context.WithValue(ctx, profileKey{}, r)
}

// ProfileFrom returns the recorder in a context, or nil.
func ProfileFrom(ctx context.Context) *ProfileRecorder {
	r, _ := ctx.Value(profileKey{}).(*ProfileRecorder)
	return r
}

// Add records spans.
func (r *ProfileRecorder) Add(spans ...Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := min(len(spans), maxSpans-len(r.mu.spans))
	r.mu.spans = append(r.mu.spans, spans[:room]...)
	r.mu.dropped += len(spans) - room
}

// Spans returns what has ended so far, and how many spans there was no room for.
func (r *ProfileRecorder) Spans() (spans []Span, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.mu.spans...), r.mu.dropped
}

// ProfileName is what PyTorch's profiler calls a function: an operator without its overload and its signature.
func ProfileName(fn string) string {
	if rest, ok := strings.CutPrefix(fn, "torch.ops."); ok {
		return strings.Replace(rest, ".", "::", 1)
	}
	if name, _, ok := strings.Cut(fn, "("); ok && strings.Contains(name, "::") {
		name, _, _ = strings.Cut(name, ".")
		return name
	}
	return fn
}
