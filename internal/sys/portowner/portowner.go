// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package portowner finds out which process on this machine owns a TCP socket: who listens on a port, for the error of a
// failed bind, and who the clients of a store are, to find one that hangs.
package portowner

import "fmt"

// Owner is a process that has a socket.
type Owner struct {
	PID     int
	Command string
	// Rank is the RANK that its launcher put into its environment, or empty.
	Rank string
}

// String returns the owner for an error text.
func (o Owner) String() string {
	if o.Command == "" {
		return fmt.Sprintf("pid %d", o.PID)
	}
	return fmt.Sprintf("pid %d (%s)", o.PID, o.Command)
}
