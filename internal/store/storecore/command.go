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
	kindRequest  commandKind = iota + 1
	kindAppend               // uvarint: the longest value that there may be
	kindClaim                // holder, string: its host
	kindRelease              // holder: its connection has ended
	kindRestart              // u64: the server; the connections of all others have ended
	kindClear                // the new identity
	kindSession              // session, token, uvarints: generation, acknowledged; holder, string: its host
	kindNumbered             // session, uvarints: generation, number, acknowledged, client; then kind 1, 2, 3 or 6 without its era
	kindAcked                // session, uvarint: the number
	kindLeave                // session, uvarints: generation, client; 0: the session ends
	kindLimit
)

// opOf is what a client has asked for whose command has no request.
var opOf = [kindLimit]wire.Op{kindClear: wire.Clear, kindSession: wire.Session}

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
	session  sessionCommand
}

// sessionCommand is what a command has to do with a session. The zero one belongs to none.
type sessionCommand struct {
	id, token  sessionID
	generation uint64 // 0: no session
	seq        uint64 // 0: the request has no number
	ack        uint64
	sub        uint64
}

func appendCommand(b []byte, kind commandKind, era uint64) []byte {
	return binary.AppendUvarint(append(b, byte(kind)), era)
}

func appendHolder(b []byte, h holderID) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, h.Server), h.Conn)
}

func appendUvarints(b []byte, all ...uint64) []byte {
	for _, n := range all {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func readHolder(b []byte) holderID {
	return holderID{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// parse reads a command.
func (p *parsedCommand) parse(b []byte) error {
	r := commandReader{rest: b}
	p.kind, p.session = r.kind(), sessionCommand{}
	p.era = r.uvarint()
	if p.kind == kindNumbered {
		s := &p.session
		r.fill(s.id[:])
		s.generation, s.seq, s.ack, s.sub = r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
		p.kind = r.kind()
		r.bad = r.bad || p.kind > kindClaim && p.kind != kindClear || s.generation == 0 || s.sub > math.MaxUint32
	}
	p.head(&r)
	switch {
	case r.bad:
		return badCommand(b)
	case p.kind > kindClaim && len(r.rest) > 0:
		return badCommand(b)
	case p.kind > kindClaim:
		p.request = wire.Request{Op: opOf[p.kind], ID: p.request.ID}
		return nil
	}
	if err := wire.ParseLogged(r.rest, &p.request); err != nil {
		return err
	}
	p.request.Sub = uint32(p.session.sub) //nolint:gosec // checked
	return nil
}

// head reads what the kind has before the request.
func (p *parsedCommand) head(r *commandReader) {
	s := &p.session
	switch p.kind {
	case kindAppend:
		p.limit = int(min(r.uvarint(), math.MaxInt))
	case kindClaim:
		p.holder, p.host = r.holder(), r.string()
	case kindRelease:
		p.holder = r.holder()
	case kindRestart:
		p.holder = holderID{Server: r.u64()}
	case kindClear:
		r.fill(p.identity[:])
	case kindSession:
		r.fill(s.id[:])
		r.fill(s.token[:])
		s.generation, s.ack = r.uvarint(), r.uvarint()
		p.holder, p.host = r.holder(), r.string()
	case kindAcked:
		r.fill(s.id[:])
		s.seq = r.uvarint()
	case kindLeave:
		r.fill(s.id[:])
		s.generation, s.sub = r.uvarint(), r.uvarint()
	default:
	}
}

// commandReader reads the fields of a command.
type commandReader struct {
	rest []byte
	bad  bool // it ends too early, or holds what it cannot
}

func (r *commandReader) take(n uint64) []byte {
	if r.bad = r.bad || n > uint64(len(r.rest)); r.bad {
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *commandReader) fill(b []byte) { copy(b, r.take(uint64(len(b)))) }

func (r *commandReader) kind() (k commandKind) {
	if b := r.take(1); len(b) > 0 {
		k = commandKind(b[0])
	}
	r.bad = r.bad || k == 0 || k >= kindLimit
	return k
}

func (r *commandReader) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.bad = r.bad || size <= 0
	r.take(uint64(max(size, 0)))
	return n
}

func (r *commandReader) u64() uint64 {
	var b [8]byte
	r.fill(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (r *commandReader) holder() holderID { return holderID{r.u64(), r.u64()} }

func (r *commandReader) string() []byte { return r.take(r.uvarint()) }

func badCommand(b []byte) error {
	if len(b) > 16 {
		b = b[:16]
	}
	return cohort.Newf("tcpstore: apply", cohort.Protocol,
		"a logged command that begins with % x cannot be read: was it written by a newer version?", b)
}
