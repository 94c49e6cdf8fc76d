// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// fleetSession is a client's half of a session: it numbers its requests, sends some again, and acknowledges at random.
type fleetSession struct {
	id         sessionID
	generation uint64
	last, ack  uint64
	lasting    []uint64
	sent       map[uint64]func([]byte) []byte // what stands behind the number
}

func newFleetSessions() (all []*fleetSession) {
	for i := range byte(3) {
		all = append(all, &fleetSession{id: sessionID{i + 1}, sent: map[uint64]func([]byte) []byte{}})
	}
	return all
}

// sessionOps stand for what a client says of its session.
const (
	openOp = wire.OpLimit + 1 + iota
	ackedOp
	leaveOp
)

// sessionRequest writes a request of a session, or returns nil.
func (f *fleet) sessionRequest(c *Conn, op wire.Op, body func([]byte) []byte) func([]byte) []byte {
	s := f.bySession[c]
	switch op {
	case openOp:
		return f.openAgain(c)
	case ackedOp:
		if s == nil || len(s.lasting) == 0 {
			return nil
		}
		seq := s.lasting[f.r.IntN(len(s.lasting))]
		return func(b []byte) []byte { return wire.AppendAcked(b, seq) }
	case leaveOp:
		sub := uint32(f.r.IntN(30) / 10)
		return func(b []byte) []byte { return wire.AppendLeave(b, sub) }
	case wire.Set, wire.Append, wire.Add, wire.CompareSet, wire.MultiSet, wire.DeleteKey, wire.QueuePush, wire.QueuePop, wire.Barrier,
		claimOp, wire.Clear:
	default:
		return nil
	}
	if s == nil {
		return nil
	}
	return f.numberedRequest(s, op, body)
}

// openAgain opens a session over a connection.
func (f *fleet) openAgain(c *Conn) func([]byte) []byte {
	s := f.sessions[f.r.IntN(len(f.sessions))]
	if have := f.m.sessions.byID[s.id]; have == nil && f.m.log.flying == 0 { // it has ended
		*s = fleetSession{id: s.id, sent: map[uint64]func([]byte) []byte{}}
	}
	if f.r.IntN(8) > 0 {
		s.generation++
	}
	f.bySession[c] = s
	return func(b []byte) []byte { return wire.AppendSession(b, s.id, s.id, max(s.generation, 1), min(s.ack, 1)) }
}

func (f *fleet) numberedRequest(s *fleetSession, op wire.Op, body func([]byte) []byte) func([]byte) []byte {
	seq := s.last + 1
	if s.last > 0 && f.r.IntN(3) == 0 {
		seq = s.last - min(s.last-1, uint64(f.r.IntN(6))) // again
	} else {
		s.last = seq
		b := body(nil) // which is random
		s.sent[seq] = func(to []byte) []byte { return append(to, b...) }
		if op == wire.Barrier || op == wire.QueuePop {
			s.lasting = append(s.lasting, seq)
		}
	}
	if f.r.IntN(4) == 0 {
		s.ack = max(s.ack, seq-min(seq-1, uint64(f.r.IntN(4))))
	}
	sub := uint32(f.r.IntN(3))
	return func(b []byte) []byte { return s.sent[seq](wire.AppendNumbered(b, seq, s.ack, sub)) }
}
