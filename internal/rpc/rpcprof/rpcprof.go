// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcprof records what calls and the functions behind them take. A [Recorder] travels in a context: calls that are
// made with it are recorded, and their callees record in turn and answer with what they have.
package rpcprof

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

// limit is how many spans a recorder keeps: a handler that never returns must not fill the memory.
const limit = 1 << 16

// Recorder keeps spans in the order in which they ended. Its methods may be called at any time from anywhere.
type Recorder struct {
	mu struct {
		sync.Mutex
		spans   []Span
		dropped int
	}
}

type key struct{}

// With returns a context whose calls are recorded.
func With(ctx context.Context, r *Recorder) context.Context { return context.WithValue(ctx, key{}, r) }

// From returns the recorder in a context, or nil.
func From(ctx context.Context) *Recorder {
	r, _ := ctx.Value(key{}).(*Recorder)
	return r
}

// Add records spans.
func (r *Recorder) Add(spans ...Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := min(len(spans), limit-len(r.mu.spans))
	r.mu.spans = append(r.mu.spans, spans[:room]...)
	r.mu.dropped += len(spans) - room
}

// Spans returns what has ended so far, and how many spans there was no room for.
func (r *Recorder) Spans() (spans []Span, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.mu.spans...), r.mu.dropped
}

// Name is what PyTorch's profiler calls a function: an operator without its overload and its signature.
func Name(fn string) string {
	if rest, ok := strings.CutPrefix(fn, "torch.ops."); ok {
		return strings.Replace(rest, ".", "::", 1)
	}
	if name, _, ok := strings.Cut(fn, "("); ok && strings.Contains(name, "::") {
		name, _, _ = strings.Cut(name, ".")
		return name
	}
	return fn
}
