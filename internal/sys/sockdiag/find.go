// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

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
