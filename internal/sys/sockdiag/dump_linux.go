// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// datagramLen is the largest part of a dump.
const datagramLen = 32 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, datagramLen); return &b }}

// Dump calls visit for every TCP socket of this process's network namespace that is in one of the states. It costs the kernel a
// pass over its table of connections unless only listening sockets are asked for. It fails where the kernel has no such
// interface, as in gVisor.
func Dump(states []State, visit func(Socket)) error {
	return exchange(request(states), func(s Socket) bool {
		visit(s)
		return false
	})
}

// exchange sends a question to the kernel and calls visit for each socket of the answer, until that returns true.
func exchange(question []byte, visit func(Socket) (enough bool)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("sockdiag: open a netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel answers at once. If it does not, /proc is there.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fmt.Errorf("sockdiag: %w", err)
	}
	if err := unix.Sendto(fd, question, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("sockdiag: send the request: %w", err)
	}
	buf := buffers.Get().(*[]byte) //nolint:errcheck // nothing else is put there
	defer buffers.Put(buf)
	for {
		n, from, err := unix.Recvfrom(fd, *buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sockdiag: read the answer: %w", err)
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
			continue // another process sent it
		}
		enough := false
		if done, err := parse((*buf)[:n], func(s Socket) { enough = visit(s) }); done || enough || err != nil {
			return err
		}
	}
}
