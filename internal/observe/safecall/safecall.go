// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package safecall calls users' functions from goroutines that have other things to do.
package safecall

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// Call calls a user's function in a separate goroutine, and returns when it has ended: by a panic, which is logged, or by
// runtime.Goexit too. Either would take the caller's goroutine, and what it still has to do, with it. Without a logger, or with
// one that discards everything, the default one of the program gets the panic, so that it is not lost.
func Call(logger *slog.Logger, call func()) { run(logger, call) }

// run is Call. It returns what the function panicked with, or nil.
func run(logger *slog.Logger, call func()) (panicked any) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if panicked = recover(); panicked != nil {
				report(logger, panicked)
			}
		}()
		call()
	}()
	<-ended
	return panicked
}

// report logs a panic. If the logger panics too, what is left is the standard error.
func report(logger *slog.Logger, panicked any) {
	stack := debug.Stack()
	defer func() {
		if p := recover(); p != nil {
			_, _ = fmt.Fprintf(os.Stderr, "panic in a callback: %v\n%s\nand in the logger: %v\n", panicked, stack, p)
		}
	}()
	if logger == nil || logger.Handler() == slog.DiscardHandler {
		logger = slog.Default()
	}
	logger.Error("panic in a callback", slog.Any("panic", panicked), slog.String("stack", string(stack)))
}

// Get returns what a user's function returns, called with Call, or an error if it did not return.
func Get[T any](logger *slog.Logger, what string, call func() (T, error)) (value T, err error) {
	returned := false
	panicked := run(logger, func() {
		value, err = call()
		returned = true
	})
	switch {
	case panicked != nil:
		err = cohort.Newf(what, cohort.Internal, "it has panicked: %v", panicked)
	case !returned:
		err = cohort.New(what, cohort.Internal, "it has ended its goroutine (runtime.Goexit) instead of returning")
	}
	return value, err
}

// Func returns a function that calls a user's function with Get. That of nil is nil.
func Func[A, T any](logger *slog.Logger, what string, f func(A) (T, error)) func(A) (T, error) {
	if f == nil {
		return nil
	}
	return func(a A) (T, error) { return Get(logger, what, func() (T, error) { return f(a) }) }
}

// Hook returns a hook that calls a user's hook with Call. That of nil is nil.
func Hook(logger *slog.Logger, h observe.Hook) observe.Hook {
	if h == nil {
		return nil
	}
	return func(e observe.Event) { Call(logger, func() { h(e) }) }
}

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
