// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package aside calls users' functions from goroutines that have other things to do.
package aside

import (
	"log/slog"
	"runtime/debug"

	"github.com/cohort-dist/cohort/observe"
)

// Call calls a user's function in a goroutine of its own, and returns when it has ended: by a panic, which is logged, or by
// runtime.Goexit too. Either would take the caller's goroutine, and what it still has to do, with it. Without a logger the
// default one of the program gets the panic: somebody has to.
func Call(logger *slog.Logger, call func()) {
	if logger == nil {
		logger = slog.Default()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				logger.Error("panic in a callback", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			}
		}()
		call()
	}()
	<-ended
}

// Hook returns a hook that calls a user's hook with Call. That of nil is nil.
func Hook(logger *slog.Logger, h observe.Hook) observe.Hook {
	if h == nil {
		return nil
	}
	return func(e observe.Event) { Call(logger, func() { h(e) }) }
}
