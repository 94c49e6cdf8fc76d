// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package supervisor

import (
	"fmt"
	"os"
	"runtime"
)

// Keeper is the launcher's side.
type Keeper struct{}

// Start returns an error: jobs are started on Linux and macOS.
func Start([]string) (*Keeper, error) {
	return nil, fmt.Errorf("keeper: jobs cannot be started on %s", runtime.GOOS)
}

// Main is the keeper's program.
func Main() int { return 2 }

// PID is the keeper's process.
func (*Keeper) PID() int { return 0 }

// Events are what the keeper reports.
func (*Keeper) Events() <-chan Event { return nil }

// Spawn asks for a worker.
func (*Keeper) Spawn(int, Command, [3]*os.File) error { return os.ErrInvalid }

// Send sends a signal.
func (*Keeper) Send([]int, int) error { return os.ErrInvalid }

// Sweep kills what is left.
func (*Keeper) Sweep(bool) error { return os.ErrInvalid }

// Remove names folders to remove at the end.
func (*Keeper) Remove([]string) {}

// Close ends the keeper.
func (*Keeper) Close() error { return nil }
