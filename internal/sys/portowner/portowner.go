// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package portowner finds out which process on this machine owns a TCP socket: who listens on a port, for the error of a
// failed bind, and who the clients of a store are, to find one that hangs.
package portowner

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
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

// Sockets are the TCP sockets that some processes had open at one moment, by process. A nil one has none.
type Sockets struct {
	of map[int][]sockdiag.Socket
}

// Listening returns the addresses that a process listens on.
func (s *Sockets) Listening(pid int) (all []netip.AddrPort) {
	for _, x := range s.sockets(pid) {
		if x.State == sockdiag.Listen {
			all = append(all, x.Local)
		}
	}
	return all
}

// Unanswered returns the addresses that a process tries to connect to and has had no answer from: the kernel has asked there for
// a second time at least, which it does after a second.
func (s *Sockets) Unanswered(pid int) (all []netip.AddrPort) {
	for _, x := range s.sockets(pid) {
		if x.State == sockdiag.SynSent && x.Retries > 0 && !slices.Contains(all, x.Remote) {
			all = append(all, x.Remote)
		}
	}
	return all
}

// Remote returns the other end of a connection of a process, by the identity of its socket.
func (s *Sockets) Remote(pid int, inode uint32) (addr netip.AddrPort, ok bool) {
	for _, x := range s.sockets(pid) {
		if x.Inode == inode && x.Remote.Port() != 0 {
			return x.Remote, true
		}
	}
	return addr, false
}

// Client returns the process whose end of a connection to a server has an address; 0 if it is none of those that were read. The
// server's port is needed: one address may be used for this server and for one elsewhere.
func (s *Sockets) Client(server int, addr netip.AddrPort) int {
	if s == nil {
		return 0
	}
	for pid, all := range s.of {
		for _, x := range all {
			if x.State == sockdiag.Established && x.Local == addr && int(x.Remote.Port()) == server {
				return pid
			}
		}
	}
	return 0
}

func (s *Sockets) sockets(pid int) []sockdiag.Socket {
	if s == nil {
		return nil
	}
	return s.of[pid]
}
