// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

// Log is a log that can be read while it is written. The zero value is empty and ready.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Logger returns a logger that writes records of at least this level to the log.
func (l *Log) Logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Has reports whether a text stands in the log.
func (l *Log) Has(text string) bool { return strings.Contains(l.String(), text) }

// BadLogger returns a logger whose handler calls end for every line, which may panic or end its goroutine.
func BadLogger(end func()) *slog.Logger { return slog.New(bad{end}) }

type bad struct{ end func() }

func (bad) Enabled(context.Context, slog.Level) bool { return true }

func (b bad) Handle(context.Context, slog.Record) error {
	b.end()
	return nil
}

func (b bad) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b bad) WithGroup(string) slog.Handler { return b }
