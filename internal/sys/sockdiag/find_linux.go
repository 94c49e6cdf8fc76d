// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Find returns the socket of this process's network namespace with these addresses: [ErrNotFound] if there is none, [ErrUnavailable] if
// neither netlink nor /proc tells. The socket at the other end of the same connection, which this process has open, shows which it is.
func Find(local, remote netip.AddrPort) (Socket, error) {
	local, remote = plain(local), plain(remote)
	s, err := ask(local, remote)
	if errors.Is(err, unix.ENOENT) { // also the answer of a kernel that cannot tell about TCP at all
		if _, err = ask(remote, local); err == nil {
			return s, ErrNotFound
		}
	}
	if err == nil {
		return s, nil
	}
	return findInTables(local, remote)
}

// findInTables is Find by the text in /proc. A table in which the end of this process has no identity says nothing about the other one.
func findInTables(local, remote netip.AddrPort) (found Socket, err error) {
	err = ErrUnavailable
	Tables(0, Connected, func(s Socket) {
		switch {
		case s.Local == local && s.Remote == remote:
			found = s
		case s.Local == remote && s.Remote == local && s.Inode != 0:
			err = nil
		}
	})
	if err == nil && found.State == 0 {
		err = ErrNotFound
	}
	return found, err
}

// ask asks the kernel for one socket.
func ask(local, remote netip.AddrPort) (s Socket, err error) {
	found := false
	err = exchange(findRequest(local, remote), func(answer Socket) bool {
		s, found = answer, answer.Local == local && answer.Remote == remote // not one that listens there
		return true
	})
	if err == nil && !found {
		err = unix.ENOENT
	}
	return s, err
}
