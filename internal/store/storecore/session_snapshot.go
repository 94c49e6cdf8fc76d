// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file writes the records of sessions into a snapshot and reads them again. Equal records give equal bytes.

// appendTo puts the records behind b.
func (ss *sessions) appendTo(b []byte) []byte {
	ids := slices.SortedFunc(maps.Keys(ss.byID), func(x, y sessionID) int { return bytes.Compare(x[:], y[:]) })
	b = binary.LittleEndian.AppendUint64(b, uint64(len(ids)))
	for _, id := range ids {
		b = ss.byID[id].appendTo(b)
	}
	return b
}

func (s *session) appendTo(b []byte) []byte {
	b = append(append(b, s.id[:]...), s.token[:]...)
	for _, n := range []uint64{s.generation, s.last, s.acked} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	known := slices.DeleteFunc(slices.Clone(s.window), func(r remembered) bool { return r.seq == 0 || r.seq < s.acked })
	slices.SortFunc(known, func(x, y remembered) int { return int(x.seq) - int(y.seq) }) //nolint:gosec // within one window
	b = binary.LittleEndian.AppendUint64(b, uint64(len(known)))
	for i := range known {
		b = binary.LittleEndian.AppendUint64(b, known[i].seq)
		b = wire.AppendBytes(b, known[i].answer.bytes())
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.open)))
	for _, seq := range slices.Sorted(maps.Keys(s.open)) {
		t := s.open[seq]
		b = binary.LittleEndian.AppendUint64(b, seq)
		b = wire.AppendInt(wire.AppendString(append(b, flag(t.done)|2*flag(t.arrived)), t.barrier), t.size)
		b = wire.AppendBytes(b, t.answer.bytes())
	}
	return b
}

func flag(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// restoreSessions reads what appendTo has written, and returns what follows it.
func restoreSessions(b []byte) (sessions, []byte, error) {
	r := snapshotReader{b: b}
	var ss sessions
	for n := r.number(); n > 0 && r.err == nil; n-- {
		r.session(&ss)
	}
	return ss, r.b, r.err
}

// snapshotReader reads numbers and strings until one is not there.
type snapshotReader struct {
	b   []byte
	err error
}

func (r *snapshotReader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		if r.err == nil {
			r.err = cohort.Newf("tcpstore: restore", cohort.Protocol,
				"the records of sessions end too early: %d bytes are there, %d are due", len(r.b), n)
		}
		r.b = nil
		return make([]byte, min(n, wire.SessionIDSize))
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

func (r *snapshotReader) number() uint64 {
	if b := r.take(8); len(b) == 8 && r.err == nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *snapshotReader) text() []byte { return bytes.Clone(r.take(r.number())) }

func (r *snapshotReader) answer() answer { return newAnswer(nil, r.text()) }

func (r *snapshotReader) session(ss *sessions) {
	id, token := sessionID(r.take(wire.SessionIDSize)), sessionID(r.take(wire.SessionIDSize))
	generation, last, acked := r.number(), r.number(), r.number()
	s, err := ss.openSession(id, token, 1, 0)
	if err != nil || r.err != nil {
		r.fail(err)
		return
	}
	s.generation, s.last, s.acked = generation, last, acked
	for n := r.number(); n > 0 && r.err == nil; n-- {
		seq := r.number()
		if seq < acked || seq > last || seq-acked >= wire.SessionWindow {
			r.fail(cohort.Newf("tcpstore: restore", cohort.Protocol,
				"an answer to request %d of a session, which has %d to %d", seq, acked, last))
			return
		}
		ss.record(s, seq, r.answer())
	}
	for n := r.number(); n > 0 && r.err == nil; n-- {
		r.task(ss, s)
	}
}

func (r *snapshotReader) task(ss *sessions, s *session) {
	seq, flags := r.number(), r.take(1)
	barrier, size, a := string(r.text()), int64(r.number()), r.answer() //nolint:gosec // two's complement
	if r.err != nil {
		return
	}
	t := ss.wait(s, seq, barrier, size)
	if flags[0]&1 != 0 {
		ss.finish(s, t, a)
	}
}

func (r *snapshotReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}
