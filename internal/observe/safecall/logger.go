// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package safecall

import (
	"context"
	"log/slog"
)

// handler is a user's handler of logs, called with Call.
type handler struct{ slog.Handler }

// Logger returns a logger that calls the handler of a user's logger with Call. That of nil discards everything.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	if _, done := l.Handler().(handler); done || l.Handler() == slog.DiscardHandler {
		return l
	}
	return slog.New(handler{l.Handler()})
}

// Enabled is asked for every line, so it does not get a separate goroutine: a panic is recovered, but a runtime.Goexit in it ends the
// goroutine that logs.
func (h handler) Enabled(ctx context.Context, level slog.Level) (on bool) {
	defer func() {
		if p := recover(); p != nil {
			report(nil, p)
		}
	}()
	return h.Handler.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	_, err := Get(nil, "log handler", func() (struct{}, error) { return struct{}{}, h.Handler.Handle(ctx, r) })
	return err
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func() slog.Handler { return h.Handler.WithAttrs(attrs) })
}

func (h handler) WithGroup(name string) slog.Handler {
	return h.with(func() slog.Handler { return h.Handler.WithGroup(name) })
}

// with returns what a user's handler makes of itself, or the handler as it was if that fails.
func (h handler) with(call func() slog.Handler) slog.Handler {
	made, err := Get(nil, "log handler", func() (slog.Handler, error) { return call(), nil })
	if err != nil || made == nil {
		return h
	}
	return handler{made}
}
