// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package aside calls users' functions from goroutines that have other things to do.
package aside

import (
	"log/slog"
	"runtime/debug"
)

// Call calls a user's function in a goroutine of its own, and returns when it has ended: by a panic, which is logged, or by
// runtime.Goexit too. Either would take the caller's goroutine, and what it still has to do, with it.
func Call(logger *slog.Logger, call func()) {
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
