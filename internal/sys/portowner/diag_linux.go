// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The kernel's tables in /proc list every connection too, and reading them walks through a hash table that is large even
// where there are none: several milliseconds. Asked over netlink for sockets that listen, the kernel looks at those alone.

const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	tcpListen        = 10 // TCP_LISTEN
	diagRequestLen   = unix.SizeofNlMsghdr + 56
	// The places of an answer's fields (struct inet_diag_msg).
	diagSourcePort = 4
	diagSource     = 8
	diagInode      = 68
	diagMessageLen = 72
)

var errRefused = errors.New("the kernel refused the question")

// askListeners calls visit for every TCP socket of this network namespace that listens.
func askListeners(visit func(local netip.AddrPort, inode string)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel answers at once. If it does not, /proc is there.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := askFamily(fd, family, visit); err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
	}
	return nil
}

func askFamily(fd int, family byte, visit func(local netip.AddrPort, inode string)) error {
	request := make([]byte, diagRequestLen)
	binary.NativeEndian.PutUint32(request, diagRequestLen)
	binary.NativeEndian.PutUint16(request[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<tcpListen)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 32<<10) // the largest part of a dump
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return nil
			case m.Header.Type == unix.NLMSG_ERROR:
				return errRefused
			case m.Header.Type == sockDiagByFamily && len(m.Data) >= diagMessageLen:
				visit(diagAddr(m.Data), strconv.FormatUint(uint64(binary.NativeEndian.Uint32(m.Data[diagInode:])), 10))
			}
		}
	}
}

// diagAddr reads the local address of an answer.
func diagAddr(message []byte) netip.AddrPort {
	ip := netip.AddrFrom4([4]byte(message[diagSource:]))
	if message[0] == unix.AF_INET6 {
		ip = netip.AddrFrom16([16]byte(message[diagSource:])).Unmap()
	}
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(message[diagSourcePort:]))
}
