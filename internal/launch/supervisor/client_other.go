// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package supervisor

import (
	"fmt"
	"os"
	"runtime"
)

// Client is the launcher's side.
type Client struct{}

// Start returns an error: jobs are started on Linux and macOS.
func Start([]string) (*Client, error) {
	return nil, fmt.Errorf("supervisor: jobs cannot be started on %s", runtime.GOOS)
}

// Main is the supervisor's program.
func Main() int { return 2 }

// PID is the supervisor's process.
func (*Client) PID() int { return 0 }

// Events are what the supervisor reports.
func (*Client) Events() <-chan Event { return nil }

// Spawn asks for a worker.
func (*Client) Spawn(int, Command, [3]*os.File) error { return os.ErrInvalid }

// Send sends a signal.
func (*Client) Send([]int, int) error { return os.ErrInvalid }

// Sweep kills what is left.
func (*Client) Sweep(bool) error { return os.ErrInvalid }

// Remove names folders to remove at the end.
func (*Client) Remove([]string) {}

// Hold does nothing.
func (*Client) Hold(string) {}

// Close ends the supervisor.
func (*Client) Close() error { return nil }
