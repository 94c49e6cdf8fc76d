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

// Limits on what a record may claim before memory is taken for it.
const (
	MaxHost  = 4096
	MaxRanks = 1 << 20
)

// Generation is a version of gloo's rendezvous. Frames are the same in all of them.
type Generation uint8

// The generations.
const (
	Auto Generation = iota // decided by what the peers publish
	A                      // 2022: one listener per pair, no preamble (PyTorch 1.13, 2.0)
	B                      // mid 2023: one listener per device, identifiers in the addresses (PyTorch 2.1, 2.2)
	C                      // end of 2023: one record per rank (PyTorch 2.3 to 2.6)
	D                      // 2025: as C, identifiers optional, lazy connections possible
)

// String returns the generation's letter.
func (g Generation) String() string {
	if g == Auto {
		return "auto"
	}
	if g > D {
		return "unknown"
	}
	return string('A' + rune(g-A))
}

// Versions names the versions of PyTorch that speak the generation.
func (g Generation) Versions() string {
	switch g {
	case A:
		return "PyTorch 1.13 or 2.0"
	case B:
		return "PyTorch 2.1 or 2.2"
	default:
		return "PyTorch 2.3 or later"
	}
}

// Record is what a rank publishes under its number.
type Record struct {
	// Generation is A or B for a list of addresses, and C for a record with a host (D looks the same).
	Generation Generation
	// Host is the publisher's host name; empty in A and B.
	Host string
	// Addrs has one address per peer in rank order without the publisher (A, B), or a single one (C, D).
	Addrs []Address
	// IDs has what each rank must write when it dials the publisher, by rank; nil in A and B, and where D leaves it out.
	IDs []int64
}

// Append appends the record as its generation writes it.
func (r Record) Append(b []byte) []byte {
	if r.Generation == A || r.Generation == B {
		for _, a := range r.Addrs {
			b = a.Append(b)
		}
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(r.Host)))
	b = append(b, r.Host...)
	b = binary.LittleEndian.AppendUint64(b, AddressSize)
	b = r.Addrs[0].Append(b)
	for _, id := range r.IDs {
		b = AppendPreamble(b, id)
	}
	return b
}

// ParseRecord reads the record of one rank of a world of size ranks and finds out its generation: by its length, then by
// the sequence numbers.
func ParseRecord(b []byte, size int) (Record, error) {
	if size < 2 || size > MaxRanks {
		return Record{}, cohort.Newf("gloo: read record", cohort.InvalidArgument, "world size %d", size)
	}
	// A list of addresses starts with an address family, a record with the length of a host name: both are small, so
	// the length decides. A C record of that very length still has its address length in place.
	if len(b) == AddressSize*(size-1) && !looksLikeRank(b, size) {
		return parseList(b, size)
	}
	return parseRank(b, size)
}

func parseList(b []byte, size int) (Record, error) {
	r := Record{Generation: A, Addrs: make([]Address, 0, size-1)}
	for ; len(b) > 0; b = b[AddressSize:] {
		a, err := parseAddress(b[:AddressSize])
		if err != nil {
			return Record{}, err
		}
		if a.Sequence != NoSequence {
			r.Generation = B
		}
		r.Addrs = append(r.Addrs, a)
	}
	return r, nil
}

// rankParts splits a record of generation C or D: host, address, identifiers.
func rankParts(b []byte, size int) (host, addr, ids []byte, err error) {
	bad := func(format string, args ...any) error {
		return cohort.Newf("gloo: read record", cohort.Protocol, format, args...)
	}
	if len(b) < 8 {
		return nil, nil, nil, bad("%d bytes are too few for a record", len(b))
	}
	n := binary.LittleEndian.Uint64(b)
	if n > MaxHost || n > uint64(len(b)-8) { //nolint:gosec // not negative, see above
		return nil, nil, nil, bad("host name of %d bytes in a record of %d", n, len(b))
	}
	host, b = b[8:8+n], b[8+n:]
	if len(b) < 8+AddressSize || binary.LittleEndian.Uint64(b) != AddressSize {
		return nil, nil, nil, bad("no address of %d bytes behind the host name", AddressSize)
	}
	addr, ids = b[8:8+AddressSize], b[8+AddressSize:]
	if other := len(ids) / 8; len(ids) == 8*other && other >= 2 && other <= MaxRanks && other != size {
		return nil, nil, nil, otherSize(other, size)
	}
	if len(ids) != 0 && len(ids) != 8*size {
		return nil, nil, nil, bad("%d bytes of identifiers for %d ranks: is the world size the same on all ranks?", len(ids), size)
	}
	return host, addr, ids, nil
}

// otherSize is the error of a record that a rank of a world of another size has published.
func otherSize(other, size int) error {
	return cohort.Newf("gloo: read record", cohort.Mismatch,
		"it is from a rank with a world size of %d, and this rank has %d: give all ranks the same", other, size)
}

func looksLikeRank(b []byte, size int) bool {
	_, addr, _, err := rankParts(b, size)
	if err != nil {
		return false
	}
	_, err = parseAddress(addr)
	return err == nil
}

func parseRank(b []byte, size int) (Record, error) {
	host, addr, ids, err := rankParts(b, size)
	if other := len(b)/AddressSize + 1; err != nil && len(b)%AddressSize == 0 && other >= 2 && other <= MaxRanks {
		if _, failure := parseList(b, other); failure == nil {
			return Record{}, otherSize(other, size)
		}
	}
	if err != nil {
		return Record{}, err
	}
	a, err := parseAddress(addr)
	if err != nil {
		return Record{}, err
	}
	r := Record{Generation: C, Host: string(host), Addrs: []Address{a}}
	for ; len(ids) > 0; ids = ids[8:] {
		r.IDs = append(r.IDs, ParsePreamble([PreambleSize]byte(ids)))
	}
	return r, nil
}

// For returns the address in owner's record that rank dials or expects the owner at, and what rank writes when it dials
// it. In generation A nothing is written and hello is false.
func (r Record) For(rank, owner int) (a Address, id int64, hello bool, err error) {
	if r.Generation == A || r.Generation == B {
		i := rank
		if rank > owner {
			i--
		}
		if i < 0 || i >= len(r.Addrs) {
			return Address{}, 0, false, cohort.Newf("gloo: read record", cohort.Protocol, "no address for rank %d among %d", rank,
				len(r.Addrs))
		}
		a = r.Addrs[i]
		return a, a.Sequence, r.Generation == B, nil
	}
	a, id = r.Addrs[0], int64(rank)
	if r.IDs != nil {
		if rank >= len(r.IDs) {
			return Address{}, 0, false, cohort.Newf("gloo: read record", cohort.Protocol, "no identifier for rank %d among %d",
				rank, len(r.IDs))
		}
		id = r.IDs[rank]
	}
	return a, id, true, nil
}

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
			"this rank publishes %v and the peer %v: all ranks need the same address family; set the bind address or "+
				"GLOO_SOCKET_IFNAME", self, peer)
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
