// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"
	"math"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// A command is a change of what the store holds, as it stands in the log:
//
//	u8 kind | uvarint era | what the kind has | for those of requests: the request as in a native frame, behind its id
//
// All that decides what becomes of it is in it or in what the store holds. The era counts how often the store was cleared: a command of a
// client that did not know that it was cleared changes nothing. Kinds are never given another meaning; docs/wire/storedata.md lists them.
type commandKind byte

const (
	kindRequest commandKind = iota + 1
	kindAppend              // uvarint: the longest value that there may be
	kindClaim               // holder, string: its host
	kindRelease             // holder: its connection has ended
	kindRestart             // u64: the server; the connections of all others have ended
	kindClear               // the new identity
	kindLimit
)

// holderSize is the length of a holder in a command.
const holderSize = 16

// parsedCommand is a command that was read. Its slices are views into that.
type parsedCommand struct {
	kind     commandKind
	era      uint64
	limit    int
	holder   holderID
	host     []byte
	identity Identity
	request  wire.Request
}

func appendCommand(b []byte, kind commandKind, era uint64) []byte {
	return binary.AppendUvarint(append(b, byte(kind)), era)
}

func appendHolder(b []byte, h holderID) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, h.Server), h.Conn)
}

func readHolder(b []byte) holderID {
	return holderID{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// parse reads a command.
func (p *parsedCommand) parse(b []byte) error {
	if len(b) == 0 || commandKind(b[0]) >= kindLimit || b[0] == 0 {
		return badCommand(b)
	}
	p.kind = commandKind(b[0])
	rest, ok := uvarint(b[1:], &p.era)
	if !ok || !p.head(&rest) {
		return badCommand(b)
	}
	if p.kind <= kindClaim {
		return wire.ParseLogged(rest, &p.request)
	}
	if len(rest) > 0 {
		return badCommand(b)
	}
	return nil
}

// head reads what the kind has before the request.
func (p *parsedCommand) head(rest *[]byte) (ok bool) {
	b := *rest
	switch p.kind {
	case kindAppend:
		var n uint64
		*rest, ok = uvarint(b, &n)
		p.limit = int(min(n, math.MaxInt))
		return ok
	case kindClaim, kindRelease:
		if len(b) < holderSize {
			return false
		}
		p.holder, *rest = readHolder(b), b[holderSize:]
		return p.kind == kindRelease || p.readHost(rest)
	case kindRestart:
		if len(b) < 8 {
			return false
		}
		p.holder, *rest = holderID{Server: binary.LittleEndian.Uint64(b)}, b[8:]
	case kindClear:
		if len(b) < len(p.identity) {
			return false
		}
		*rest = b[copy(p.identity[:], b):]
	default:
	}
	return true
}

func (p *parsedCommand) readHost(rest *[]byte) bool {
	var n uint64
	b, ok := uvarint(*rest, &n)
	if !ok || n > uint64(len(b)) {
		return false
	}
	p.host, *rest = b[:n], b[n:]
	return true
}

// uvarint reads a number from the start of b.
func uvarint(b []byte, into *uint64) (rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 {
		return nil, false
	}
	*into = n
	return b[size:], true
}

func badCommand(b []byte) error {
	if len(b) > 16 {
		b = b[:16]
	}
	return cohort.Newf("tcpstore: apply", cohort.Protocol,
		"a logged command that begins with % x cannot be read: was it written by a newer version?", b)
}
