// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// connectionAge tells whether the peer has ended the connection, and how long ago the last packet came, which is then the
// one that ended it. Connections end in the order of deaths, but are not read in that order.
func connectionAge(conn net.Conn) (age time.Duration, over bool) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		const closed, closeWait, lastAck, closing, timeWait = 7, 8, 9, 11, 6
		switch info.State {
		case closed, closeWait, lastAck, closing, timeWait:
			age, over = time.Duration(info.Last_ack_recv)*time.Millisecond, true
		}
	})
	return age, over
}
