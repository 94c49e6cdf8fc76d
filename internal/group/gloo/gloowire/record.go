// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloowire

import (
	"encoding/binary"

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
	if len(ids) != 0 && len(ids) != 8*size {
		return nil, nil, nil, bad("%d bytes of identifiers for %d ranks: is the world size the same on all ranks?", len(ids), size)
	}
	return host, addr, ids, nil
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
			return Address{}, 0, false, cohort.Newf("gloo: read record", cohort.Protocol, "no address for rank %d among %d", rank, len(r.Addrs))
		}
		a = r.Addrs[i]
		return a, a.Sequence, r.Generation == B, nil
	}
	a, id = r.Addrs[0], int64(rank)
	if r.IDs != nil {
		if rank >= len(r.IDs) {
			return Address{}, 0, false, cohort.Newf("gloo: read record", cohort.Protocol, "no identifier for rank %d among %d", rank, len(r.IDs))
		}
		id = r.IDs[rank]
	}
	return a, id, true, nil
}
