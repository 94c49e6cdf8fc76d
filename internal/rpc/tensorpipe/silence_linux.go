// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// synRetries is how often the kernel repeats the first packet of a connection: after 1, 3 and 7 seconds. It gives up after 15.
const synRetries = 3

// limitSynRetries makes a dial to a machine that does not answer end in seconds. The kernel ends it, not we: the other side has
// seen nothing or does not know that it was seen, so no listener ever accepts it.
func limitSynRetries(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SYNCNT, synRetries) // without it the default holds
	})
}

// silence asks the kernel when the last packet of the other side arrived.
func silence(nc net.Conn) (d time.Duration) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			d = time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
		}
	})
	return d
}
