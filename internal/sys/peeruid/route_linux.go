// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package peeruid

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The places of a route in a message of netlink, and the length of the longest question: a header, a route, and an address of IPv6.
const (
	routeStart, routeType = unix.SizeofNlMsghdr, unix.SizeofNlMsghdr + 7
	attrStart             = routeStart + unix.SizeofRtMsg
	longestQuestion       = attrStart + unix.SizeofRtAttr + 16
)

// routedHere reports whether the kernel keeps what is sent to an address. There are such addresses that no interface has, on machines of
// clouds for example ("ip route add local 10.1.0.0/24 dev eth0"), and every user can connect from them. If the system does not tell, there
// are none.
func routedHere(a netip.Addr) bool {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel answers at once.
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}) != nil ||
		unix.Sendto(fd, routeQuestion(a), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return false
	}
	answer := make([]byte, 1<<10)
	n, from, err := unix.Recvfrom(fd, answer, 0)
	kernel, ok := from.(*unix.SockaddrNetlink)
	return err == nil && ok && kernel.Pid == 0 && n > routeType &&
		binary.NativeEndian.Uint16(answer[4:]) == unix.RTM_NEWROUTE && answer[routeType] == unix.RTN_LOCAL
}

// routeQuestion asks for the route to an address.
func routeQuestion(a netip.Addr) []byte {
	to := a.AsSlice()
	b := make([]byte, attrStart, longestQuestion)
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b[routeStart], b[routeStart+1] = unix.AF_INET6, byte(a.BitLen()) //nolint:gosec // 128 at most
	if a.Is4() {
		b[routeStart] = unix.AF_INET
	}
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(to))) //nolint:gosec // 20 at most
	b = binary.NativeEndian.AppendUint16(b, unix.RTA_DST)
	b = append(b, to...)
	binary.NativeEndian.PutUint32(b, uint32(len(b))) //nolint:gosec // as above
	return b
}
