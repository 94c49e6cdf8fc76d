// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal os.Signal }

func (e SignalError) Error() string {
	if s, ok := e.Signal.(syscall.Signal); ok && s == syscall.SIGINT {
		return "SIGINT"
	}
	return "SIGTERM"
}

// SignalContext ends with SIGINT or SIGTERM. The next signal has its usual, deadly effect.
func SignalContext() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-caught:
			signal.Stop(caught)
			cancel(SignalError{Signal: s})
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		<-ended
		signal.Stop(caught)
		cancel(nil)
	}
}

// Explain replaces the end of a context by what ended it, so that a signal is not called a timeout.
func Explain(ctx context.Context, err error) error {
	var by SignalError
	if err != nil && errors.As(context.Cause(ctx), &by) {
		return fmt.Errorf("interrupted by %w", by)
	}
	return err
}
