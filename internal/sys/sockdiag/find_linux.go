// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// tries is how often Find looks while what it finds cannot be all. A table in /proc that changes while it is read lacks lines, on a host
// with many connections once in some thousand times.
const tries = 4

// kernelTells is set once the kernel has answered about a TCP socket: from then on, a socket that it does not find does not exist. The
// tables in /proc take milliseconds to read, and who resets connections one after the other must not make a server read them.
var kernelTells atomic.Bool

// Find returns the socket of this process's network namespace with these addresses: [ErrNotFound] if there is none, [ErrUnavailable] if
// neither netlink nor /proc tells. The socket at the other end of the same connection, which this process has open, shows which it is.
func Find(local, remote netip.AddrPort) (Socket, error) {
	return findBy(plain(local), plain(remote), look)
}

// findBy is Find for plain addresses by one way to look.
func findBy(local, remote netip.AddrPort, look func(local, remote netip.AddrPort) (found, own Socket, err error)) (s Socket, err error) {
	for range tries {
		var own Socket
		if s, own, err = look(local, remote); err != nil {
			return s, err
		}
		var sure bool
		if s, sure, err = conclude(s, own); sure {
			break
		}
	}
	return s, err
}

// conclude says what follows from the ends of a connection that were found: one that was not has no state. If it is not sure, it is better
// to look again.
func conclude(found, own Socket) (s Socket, sure bool, err error) {
	switch {
	case found.Inode != 0:
		return found, true, nil
	case own.State == 0: // this process has it open
		return found, false, ErrUnavailable
	case own.Inode == 0: // so no identity is known of any socket
		return found, true, ErrUnavailable
	case found.State != 0:
		return found, true, nil
	default: // an end that is established has another end
		return found, own.State != Established, ErrNotFound
	}
}

// look looks for the two ends of a connection.
func look(local, remote netip.AddrPort) (found, own Socket, err error) {
	if found, err = ask(local, remote); err == nil && found.Inode != 0 {
		return found, own, nil
	}
	if err == nil || errors.Is(err, unix.ENOENT) { // also the answer of a kernel that cannot tell about TCP at all
		if own, err = ask(remote, local); err == nil {
			return found, own, nil
		}
		if errors.Is(err, unix.ENOENT) && kernelTells.Load() { // the connection was reset
			return found, own, ErrNotFound
		}
	}
	return lookInTables(local, remote)
}

// lookInTables is look by the text in /proc.
func lookInTables(local, remote netip.AddrPort) (found, own Socket, err error) {
	tables(0, between(local.Port(), remote.Port()), func(s Socket) {
		switch {
		case !slices.Contains(Connected, s.State):
		case s.Local == local && s.Remote == remote:
			found = s
		case s.Local == remote && s.Remote == local:
			own = s
		}
	})
	return found, own, nil
}

// ask asks the kernel for one socket.
func ask(local, remote netip.AddrPort) (s Socket, err error) {
	found := false
	err = exchange(findRequest(local, remote), func(answer Socket) bool {
		s, found = answer, answer.Local == local && answer.Remote == remote // not one that listens there
		return true
	})
	if err == nil && !found {
		return Socket{}, unix.ENOENT
	}
	if err == nil {
		kernelTells.Store(true)
	}
	return s, err
}
