// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package portowner finds out who listens on a TCP port of this machine, for the error of a failed bind.
package portowner

import "fmt"

// Owner is a process that listens on a port.
type Owner struct {
	PID     int
	Command string
}

// String returns the owner in words for an error text.
func (o Owner) String() string {
	if o.Command == "" {
		return fmt.Sprintf("pid %d", o.PID)
	}
	return fmt.Sprintf("pid %d (%s)", o.PID, o.Command)
}
