// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Peers can cause lines in the log: bad frames, panics of handlers, connections that are cut. logLines is how many of the
// same text are written in logWindow; the next line after that reports how many were left out.
const (
	logLines  = 100
	logWindow = 10 * time.Second
)

// limitedHandler keeps peers from filling a log: it writes no more than so many lines of the same text.
type limitedHandler struct {
	slog.Handler
	lines *lineCounts
}

// lineCounts are the lines of each text. Texts are constants of a program, so they are few.
type lineCounts struct {
	mu struct {
		sync.Mutex
		of map[string]*lineCount
	}
}

type lineCount struct {
	since   time.Time
	n, left int
}

// limitLog returns a handler that passes lines on to h.
func limitLog(h slog.Handler) *limitedHandler {
	q := &limitedHandler{Handler: h, lines: &lineCounts{}}
	q.lines.mu.of = map[string]*lineCount{}
	return q
}

// allow counts a line, and reports whether it is written and how many before it were not.
func (l *lineCounts) allow(text string, now time.Time) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.mu.of[text]
	if c == nil {
		c = &lineCount{since: now}
		l.mu.of[text] = c
	}
	if now.Sub(c.since) >= logWindow {
		leftOut = c.left
		*c = lineCount{since: now}
	}
	if c.n++; c.n > logLines {
		c.left++
		return 0, false
	}
	return leftOut, true
}

// Handle writes a line, unless there were too many like it.
func (q *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	leftOut, ok := q.lines.allow(r.Message, r.Time)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs keeps the counts.
func (q *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedHandler{Handler: q.Handler.WithAttrs(attrs), lines: q.lines}
}

// WithGroup keeps the counts.
func (q *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{Handler: q.Handler.WithGroup(name), lines: q.lines}
}
