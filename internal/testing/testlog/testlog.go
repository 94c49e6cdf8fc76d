// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package testlog keeps what a test's workers log, so that the test can inspect it while they run.
package testlog

import (
	"bytes"
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
