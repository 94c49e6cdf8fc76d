// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package command holds what the commands of the cohort binary share: streams, exit codes, errors, and the way to a store.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/rpc"
)

// Exit codes, as "cohort help exit-codes" explains them.
const (
	ExitOK        = 0
	ExitFailure   = 1
	exitUsage     = 2
	exitTimeout   = 3
	exitNotFound  = 4
	ExitUnchanged = 5
	exitNoStore   = 6
)

// IO is what a command may touch of the outside.
type IO struct {
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	Getenv func(string) string
}

// System is the IO of this process.
func System() IO { return IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv} }

// App carries what all commands share.
type App struct {
	IO
	JSON bool // --json
}

// ExitError ends the command with a code after everything was printed.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit %d", e.Code) }

// Exit returns an [ExitError].
func Exit(code int) error { return &ExitError{code} }

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// Usage marks err as a mistake on the command line.
func Usage(err error) error { return &usageError{err} }

// WrongOptions marks err as a mistake in options, which help explains, unless a signal came before they were read.
func WrongOptions(err error, help string) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return Usage(fmt.Errorf("%w; %q explains the options", err, help))
}

// unreachableError says that no store could be reached at all.
type unreachableError struct{ error }

func (e *unreachableError) Unwrap() error { return e.error }

// markUnreachable marks err as that of a store which cannot be reached.
func markUnreachable(err error) error { return &unreachableError{err} }

// ExitCode returns the exit code that belongs to err.
func ExitCode(err error) int {
	var usage *usageError
	var unreachable *unreachableError
	switch {
	case errors.As(err, &usage), errors.Is(err, cohort.InvalidArgument):
		return exitUsage
	case errors.As(err, &unreachable):
		return exitNoStore
	case errors.Is(err, cohort.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	case errors.Is(err, cohort.NotFound):
		return exitNotFound
	}
	return ExitFailure
}

// Complain prints err: one line, and below it the stack of a function that failed; or one JSON object with --json.
func (a *App) Complain(err error) {
	text := err.Error()
	remote, _ := errors.AsType[*rpc.RemoteError](err)
	if a.JSON {
		code := cohort.CodeOf(err)
		if ExitCode(err) == exitUsage {
			code = cohort.InvalidArgument
		}
		report := map[string]any{"error": text, "code": code.String(), "exit": ExitCode(err)}
		if remote != nil {
			report["kind"], report["stack"] = remote.Kind, remote.Stack
		}
		_ = WriteJSON(a.Err, "error", report)
		return
	}
	style := tui.StyleFor(a.Err, a.Getenv)
	_, _ = fmt.Fprintln(a.Err, style.Red("cohort:")+" "+printable.Line(text))
	if remote != nil {
		for line := range strings.Lines(remote.Stack) {
			_, _ = fmt.Fprintln(a.Err, "  "+printable.Line(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")))
		}
	}
}

// Note says something besides the result, where errors go: in words, or as one JSON object.
func (a *App) Note(text string) {
	if a.JSON {
		_ = WriteJSON(a.Err, "note", map[string]any{"note": text})
		return
	}
	_, _ = fmt.Fprintln(a.Err, text)
}

// Print writes v with --json, as WriteJSON does, else text with a line end.
func (a *App) Print(form string, v any, text string) error {
	if a.JSON {
		return WriteJSON(a.Out, form, v)
	}
	return a.PrintText(text)
}

// PrintText writes text with a line end.
func (a *App) PrintText(text string) error {
	_, err := fmt.Fprintln(a.Out, text)
	return err
}

// SupervisorName is the hidden command that a launcher starts itself with: see package launch.
const SupervisorName = "supervisor"

// Supervisor is the command line of a launcher's supervisor process.
func Supervisor() []string {
	name := filepath.Base(os.Args[0])
	if IsTorchrun(name) { // under which "supervisor" is a program to run
		name = "cohort"
	}
	return []string{name, SupervisorName}
}

// IsTorchrun reports whether a program was started by a name that makes it act as "cohort run".
func IsTorchrun(program string) bool {
	return strings.TrimSuffix(filepath.Base(program), ".exe") == "torchrun"
}

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
