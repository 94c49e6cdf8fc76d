// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package sockdiag asks the Linux kernel about TCP sockets over netlink (sock_diag, inet_diag). The same is in /proc/net/tcp, as
// text that costs a hundred times as much on a host with many connections. The questions and answers as bytes are pure; only
// Dump, Find and Tables do I/O.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// State is the state of a TCP socket, as the kernel numbers it.
type State uint8

// The states that are asked for.
const (
	Established State = 1
	SynSent     State = 2
	CloseWait   State = 8
	Listen      State = 10
)

// Connected are the states of a connection that can still be read or written by the process that has it.
var Connected = []State{Established, 4, 5, CloseWait, 9} // FIN_WAIT1, FIN_WAIT2, LAST_ACK

// Socket is a TCP socket of a network namespace.
type Socket struct {
	State         State
	Local, Remote netip.AddrPort // IPv4 addresses are never written as IPv6
	// Inode identifies the socket among all of the host. It is 0 when no process has it open.
	Inode uint32
	// UID is the user who made it. It is only valid where Inode is not 0: a socket without a process reads as 0, which is root.
	UID uint32
	// Retries is how often the segment that was sent last has been sent again without an answer.
	Retries uint8
	// Backlog is how many connections may wait at a socket that listens, as far as the kernel says it; /proc does not.
	Backlog uint32
}

// The layout of netlink messages, all numbers but ports and addresses in the machine's byte order.
const (
	headerLen  = 16 // struct nlmsghdr: length, type, flags, sequence, port
	align      = 4
	typeError  = 2  // NLMSG_ERROR
	typeDone   = 3  // NLMSG_DONE
	getSockets = 18 // TCPDIAG_GETSOCK: both families in one pass over the kernel's table; SOCK_DIAG_BY_FAMILY needs one for each

	flagRequest, flagDump = 0x1, 0x300

	requestLen  = headerLen + 60 // struct inet_diag_req
	statesPlace = headerLen + 52

	// The places of the fields of an answer (struct inet_diag_msg).
	statePlace, retriesPlace                          = 1, 3
	sourcePortPlace, destPortPlace                    = 4, 6
	sourcePlace, destPlace, uidPlace, inodePlace      = 8, 24, 64, 68
	backlogPlace                                      = 60 // of a connection: what it has not sent
	messageLen                                        = 72
	familyIPv4, familyIPv6                       byte = 2, 10
)

var errMalformed = errors.New("sockdiag: malformed answer of the kernel")

// request returns the question for all sockets in some states.
func request(states []State) []byte {
	b := make([]byte, requestLen)
	binary.NativeEndian.PutUint32(b, requestLen)
	binary.NativeEndian.PutUint16(b[4:], getSockets)
	binary.NativeEndian.PutUint16(b[6:], flagRequest|flagDump)
	b[headerLen] = familyIPv4
	var mask uint32
	for _, s := range states {
		mask |= 1 << s
	}
	binary.NativeEndian.PutUint32(b[statesPlace:], mask)
	return b
}

// parse calls visit for each socket of one datagram of an answer. done is true when it was the last one.
func parse(datagram []byte, visit func(Socket)) (done bool, err error) {
	for len(datagram) > 0 {
		if len(datagram) < headerLen {
			return false, errMalformed
		}
		size := int(binary.NativeEndian.Uint32(datagram))
		if size < headerLen || size > len(datagram) {
			return false, errMalformed
		}
		body := datagram[headerLen:size]
		switch binary.NativeEndian.Uint16(datagram[4:]) {
		case typeDone:
			return true, nil
		case typeError:
			return true, refusal(body)
		default:
			s, ok := parseSocket(body)
			if !ok {
				return false, errMalformed
			}
			visit(s)
		}
		datagram = datagram[min((size+align-1)&^(align-1), len(datagram)):]
	}
	return false, nil
}

// refusal returns the error that the kernel answers with.
func refusal(body []byte) error {
	if len(body) < 4 {
		return errMalformed
	}
	code := -int32(binary.NativeEndian.Uint32(body)) //nolint:gosec // the kernel writes it as a negative int32
	if code <= 0 {
		return errMalformed
	}
	return fmt.Errorf("sockdiag: the kernel refused the request: %w", syscall.Errno(code))
}

func parseSocket(body []byte) (s Socket, ok bool) {
	if len(body) < messageLen {
		return s, false
	}
	s.State, s.Retries = State(body[statePlace]), body[retriesPlace]
	s.UID = binary.NativeEndian.Uint32(body[uidPlace:])
	s.Inode = binary.NativeEndian.Uint32(body[inodePlace:])
	if s.State == Listen {
		s.Backlog = binary.NativeEndian.Uint32(body[backlogPlace:])
	}
	s.Local, ok = addrOf(body, sourcePlace, sourcePortPlace)
	s.Remote, _ = addrOf(body, destPlace, destPortPlace)
	return s, ok
}

func addrOf(body []byte, place, portPlace int) (netip.AddrPort, bool) {
	port := binary.BigEndian.Uint16(body[portPlace:])
	switch body[0] {
	case familyIPv4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(body[place:])), port), true
	case familyIPv6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(body[place:])).Unmap(), port), true
	}
	return netip.AddrPort{}, false
}

// Errors of [Find].
var (
	// ErrNotFound means that this host has no such socket, or none any more.
	ErrNotFound = errors.New("sockdiag: the host does not have the socket")
	// ErrUnavailable means that the system does not say it.
	ErrUnavailable = errors.New("sockdiag: the system does not report sockets")
)

const (
	byFamily    = 20             // SOCK_DIAG_BY_FAMILY
	findLen     = headerLen + 56 // struct inet_diag_req_v2
	protocolTCP = 6
	allStates   = 1<<12 - 1

	// The places of the fields of a request.
	findStates, findID         = headerLen + 4, headerLen + 8
	idSource, idDest, idCookie = 4, 20, 40
)

// findRequest returns the question for the one socket with these addresses, which the kernel looks up. A socket of IPv6
// that is connected over IPv4 is found as one of IPv4.
func findRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, findLen)
	binary.NativeEndian.PutUint32(b, findLen)
	binary.NativeEndian.PutUint16(b[4:], byFamily)
	binary.NativeEndian.PutUint16(b[6:], flagRequest)
	b[headerLen], b[headerLen+1] = familyIPv6, protocolTCP
	if local.Addr().Is4() {
		b[headerLen] = familyIPv4
	}
	binary.NativeEndian.PutUint32(b[findStates:], allStates)
	id := b[findID:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[idSource:], local.Addr().AsSlice())
	copy(id[idDest:], remote.Addr().AsSlice())
	for i := range 8 { // INET_DIAG_NOCOOKIE
		id[idCookie+i] = 0xff
	}
	return b
}

// plain returns an address without what the kernel's tables do not have: a zone, and IPv4 written as IPv6.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
