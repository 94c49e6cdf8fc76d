// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package portowner finds out which process on this machine owns a TCP socket: who listens on a port, for the error of a
// failed bind, and who the clients of a store are, to find one that hangs.
package portowner

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

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

// Named adds who has the port of an address to the error of a failed bind, where that can be found out.
func Named(addr string, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	_, port, split := net.SplitHostPort(addr)
	n, parse := strconv.Atoi(port)
	if split != nil || parse != nil {
		return err
	}
	if owner, ok := Find(n); ok {
		return fmt.Errorf("%w; port %d is held by %s", err, n, owner)
	}
	return err
}
