// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloowire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/cohort-dist/cohort"
)

// AddressSize is the length of one address: a sockaddr_storage and a sequence number.
const AddressSize = 136

// The address families as Linux numbers them.
const (
	familyIPv4 = 2
	familyIPv6 = 10
)

// NoSequence is the sequence number of an address that carries none.
const NoSequence = -1

// Address is where a rank listens, with the identifier a dialler must present (generation B) or NoSequence.
type Address struct {
	Addr     netip.AddrPort
	Sequence int64
}

// Append appends the address's 136 bytes. Bytes that gloo leaves uninitialised are zero.
func (a Address) Append(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, AddressSize)...)
	s := b[start:]
	ip := a.Addr.Addr()
	binary.BigEndian.PutUint16(s[2:], a.Addr.Port())
	if ip.Is4() {
		binary.LittleEndian.PutUint16(s, familyIPv4)
		raw := ip.As4()
		copy(s[4:], raw[:])
	} else {
		binary.LittleEndian.PutUint16(s, familyIPv6)
		raw := ip.As16()
		copy(s[8:], raw[:])
		if scope, err := strconv.ParseUint(ip.Zone(), 10, 32); err == nil {
			binary.LittleEndian.PutUint32(s[24:], uint32(scope))
		}
	}
	binary.LittleEndian.PutUint64(s[128:], uint64(a.Sequence)) //nolint:gosec // two's complement on the wire
	return b
}

// parseAddress reads 136 bytes. The padding of a socket address is garbage in real records and is not looked at.
func parseAddress(b []byte) (Address, error) {
	if len(b) != AddressSize {
		return Address{}, cohort.Newf("gloo: read address", cohort.Protocol, "%d bytes, want %d", len(b), AddressSize)
	}
	a := Address{Sequence: int64(binary.LittleEndian.Uint64(b[128:]))} //nolint:gosec // two's complement on the wire
	port := binary.BigEndian.Uint16(b[2:])
	switch family := binary.LittleEndian.Uint16(b); family {
	case familyIPv4:
		a.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case familyIPv6:
		ip := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.LittleEndian.Uint32(b[24:]); scope != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		a.Addr = netip.AddrPortFrom(ip, port)
	default:
		return Address{}, cohort.Newf("gloo: read address", cohort.Protocol, "address family %d is neither IPv4 nor IPv6", family)
	}
	if port == 0 {
		return Address{}, cohort.New("gloo: read address", cohort.Protocol, "port 0")
	}
	return a, nil
}

// Dials reports whether the side that listens at self dials the one at peer: the greater address does. Equal IPs are
// decided by the ports as gloo compares them: the network-order bytes read as a little-endian number.
func Dials(self, peer netip.AddrPort) (bool, error) {
	a, b := self.Addr().Unmap(), peer.Addr().Unmap()
	if a.Is4() != b.Is4() {
		return false, cohort.Newf("gloo: connect", cohort.Mismatch,
			"this rank publishes %v and the peer %v: all ranks need the same address family; set the bind address or GLOO_SOCKET_IFNAME", self, peer)
	}
	if c := bytes.Compare(a.AsSlice(), b.AsSlice()); c != 0 {
		return c > 0, nil
	}
	p, q := swapped(self.Port()), swapped(peer.Port())
	if p == q {
		return false, cohort.Newf("gloo: connect", cohort.Protocol, "this rank and the peer both publish %v", self)
	}
	return p > q, nil
}

func swapped(port uint16) uint16 { return port<<8 | port>>8 }
