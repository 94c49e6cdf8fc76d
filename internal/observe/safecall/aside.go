// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package safecall calls users' functions from goroutines that have other things to do.
package safecall

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// Call calls a user's function in a separate goroutine, and returns when it has ended: by a panic, which is logged, or by
// runtime.Goexit too. Either would take the caller's goroutine, and what it still has to do, with it. Without a logger, or with
// one that discards everything, the default one of the program gets the panic: somebody has to.
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
