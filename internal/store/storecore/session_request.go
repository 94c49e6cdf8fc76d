// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file is the way of one numbered request: it is looked up, applied if it is new, and its answer is remembered until that is
// acknowledged.

// recorder is what is to be remembered of the replies that are being made.
type recorder struct {
	conn    *Conn // nil: nothing
	id      uint32
	session *session
	seq     uint64
	waits   bool // its answer is acknowledged for itself, also one that comes at once
}

// numbered looks a numbered request up. It reports whether the request is to be applied, or to be logged; else it is answered.
func (m *Machine) numbered(c *Conn, r *wire.Request) bool {
	s := c.session
	if s == nil && c.logged.refused != nil {
		m.refuseRequest(c, r.ID, c.logged.refused)
		return false
	}
	if s == nil {
		m.refuseRequest(c, r.ID, cohort.New("tcpstore: session", cohort.PeerLost,
			"the session of this connection has ended: whether the request was applied before is not known"))
		return false
	}
	if m.log == nil {
		m.sessions.acknowledge(s, min(r.Ack, r.Seq)) // else the command does
	}
	waits := r.Wait || arrives[r.Op]
	v, a, err := m.sessions.lookup(s, r.Seq, waits)
	if m.log != nil && r.Seq > s.last {
		v = fresh // as far as is known before those under way are applied
	}
	if v != fresh {
		m.recall(c, r, s, v, a, err)
		return false
	}
	if m.sessions.bytes-m.ending > m.admission.shares.waits && !m.endAway(0) {
		m.refuseRequest(c, r.ID, cohort.Newf("tcpstore: session", cohort.Exhausted,
			"answers that are not acknowledged take %d bytes: raise the memory limit", m.sessions.bytes))
		return false
	}
	if m.log == nil {
		m.recorder = recorder{c, r.ID, s, r.Seq, waits}
	}
	return true
}

// arrives is which requests are arrivals at a barrier. Their answers may come much later, as those of pops that wait.
var arrives = [wire.OpLimit]bool{wire.Barrier: true, wire.Arrive: true}

// recall answers a request that is not fresh.
func (m *Machine) recall(c *Conn, r *wire.Request, s *session, v verdict, a *answer, err error) {
	switch v {
	case again:
		m.repeat(c, r.ID, a)
		return
	case resumed:
		if err = m.open(c, r, waitBarrier); err == nil && !c.closed {
			c.holdings.byID[r.ID].task = s.open[r.Seq]
		}
	case rejected, fresh:
	}
	if err != nil {
		m.refuseRequest(c, r.ID, err)
	}
}

// repeat sends an answer that is remembered.
func (m *Machine) repeat(c *Conn, id uint32, a *answer) {
	c.out.begin(m.clock.counted)
	start := len(c.out.Buf)
	c.out.Buf = append(wire.BeginFrame(c.out.Buf, id), a.small[:a.n]...)
	if len(a.large) > sharedSize {
		c.out.Refer(a.large, a.large)
	} else {
		c.out.Buf = append(c.out.Buf, a.large...)
	}
	m.end(c, start)
}

// remember notes the reply that has been put behind the output, if it is to be remembered.
func (m *Machine) remember(c *Conn, start int) {
	if c != m.recorder.conn || binary.LittleEndian.Uint32(c.out.Buf[start+4:]) != m.recorder.id { // another one that this one wakes
		return
	}
	var referred []byte
	if c.out.refOwed > 0 {
		referred = c.out.lastReferred(start)
	}
	s := m.recorder.session
	if m.recorder.waits {
		m.sessions.wait(s, m.recorder.seq, "", 0)
	}
	m.sessions.record(s, m.recorder.seq, newAnswer(c.out.Buf[start+wire.FrameHeader:], referred))
	m.recorder = recorder{}
}

// applied is called when a numbered request was performed. If it has no answer yet, it waits.
func (m *Machine) applied(c *Conn, r *wire.Request, err error) {
	s := m.recorder.session
	if m.recorder.conn == nil || err != nil || !m.recorder.waits || m.sessions.byID[s.id] != s {
		return
	}
	barrier := ""
	if r.Op != wire.QueuePop {
		barrier = string(r.Key)
	}
	task := m.sessions.wait(s, m.recorder.seq, barrier, r.Num)
	if w := c.holdings.byID[r.ID]; w != nil {
		w.task = task
	}
	m.recorder = recorder{}
}

// answering is called before the reply to a wait is made. It returns what the recorder is set to after it: the wait may be over because
// of a request whose own reply is still to be made. With a log it is the command that remembers the answer.
func (m *Machine) answering(w *wait) recorder {
	before := m.recorder
	if w.task != nil && m.log == nil && w.conn.session != nil {
		m.recorder = recorder{w.conn, w.id, w.conn.session, w.task.seq, true}
	}
	return before
}

// verdict is what is to be done with a numbered request.
type verdict uint8

const (
	fresh    verdict = iota // it is applied
	again                   // its answer is remembered
	resumed                 // it has arrived at a barrier and goes on waiting there
	rejected                // it comes too late, or before others are acknowledged
)

// lookup says what is to be done with a request. The answer is that which is remembered.
func (ss *sessions) lookup(s *session, seq uint64, waits bool) (verdict, *answer, error) {
	if t := s.open[seq]; t != nil {
		switch {
		case t.done:
			return again, &t.answer, nil
		case t.arrived:
			return resumed, nil, nil
		}
		return fresh, nil, nil // a pop that waits, which the broken connection has ended
	}
	if seq <= s.last {
		if r := s.at(seq); r != nil && seq >= s.acked {
			return again, &r.answer, nil
		}
		if seq >= s.acked { // all that were applied are remembered
			return rejected, nil, cohort.Newf("tcpstore: session", cohort.Aborted,
				"request %d comes too late: it was refused before, and %d was applied since", seq, s.last)
		}
		return rejected, nil, cohort.Newf("tcpstore: session", cohort.Aborted,
			"request %d comes too late: %d was applied, and answers before %d are forgotten", seq, s.last, s.acked)
	}
	if seq-max(s.acked, 1) >= wire.SessionWindow || s.bytes > maxSessionBytes || waits && len(s.open) >= maxOpenTasks {
		return rejected, nil, cohort.Newf("tcpstore: session", cohort.Exhausted,
			"too many answers are not acknowledged: %d requests, %d bytes, %d that wait", seq-s.acked, s.bytes, len(s.open))
	}
	return fresh, nil, nil
}

// record remembers the answer to a request that was applied.
func (ss *sessions) record(s *session, seq uint64, a answer) {
	if t := s.open[seq]; t != nil {
		ss.finish(s, t, a)
		return
	}
	s.last = max(s.last, seq)
	if seq-s.acked >= uint64(len(s.window)) {
		ss.widen(s, seq)
	}
	s.window[int(seq)&(len(s.window)-1)] = remembered{seq, a} //nolint:gosec // the low bits alone count
	if a.large != nil {
		ss.charge(s, a.cost())
	}
}

func newAnswer(head, tail []byte) answer {
	var a answer
	if len(head)+len(tail) <= len(a.small) {
		a.n = uint8(copy(a.small[:], head))     //nolint:gosec // at most 15
		a.n += uint8(copy(a.small[a.n:], tail)) //nolint:gosec // as above
		return a
	}
	if len(head) <= len(a.small) { // the tail is a value, which never changes
		a.n, a.large = uint8(copy(a.small[:], head)), tail //nolint:gosec // at most 15
		return a
	}
	a.large = append(append(make([]byte, 0, len(head)+len(tail)), head...), tail...)
	return a
}

// acknowledge forgets the answers to numbers below ack, but those of open tasks.
func (ss *sessions) acknowledge(s *session, ack uint64) {
	for ; s.acked < ack && s.acked <= s.last; s.acked++ {
		if len(s.window) == 0 {
			continue
		}
		if r := &s.window[int(s.acked)&(len(s.window)-1)]; r.seq == s.acked { //nolint:gosec // the low bits alone count
			if r.answer.large != nil {
				ss.charge(s, -r.answer.cost())
			}
			*r = remembered{}
		}
	}
	s.acked = max(s.acked, ack)
}

// ringSize is what the ring takes. It is counted for all sessions together alone: it is not the same on all machines with the same records.
func (s *session) ringSize() int64 { return int64(len(s.window)) * int64(unsafe.Sizeof(remembered{})) }

// widen makes the ring as large as what is not acknowledged. Its length is a power of two.
func (ss *sessions) widen(s *session, seq uint64) {
	ss.bytes -= s.ringSize()
	larger := make([]remembered, 1<<bits.Len64(max(seq-s.acked, 3)))
	for _, r := range s.window {
		if r.seq != 0 {
			larger[int(r.seq)&(len(larger)-1)] = r //nolint:gosec // the low bits alone count
		}
	}
	s.window = larger
	ss.bytes += s.ringSize()
}

// at returns what is remembered of a number, or nil.
func (s *session) at(seq uint64) *remembered {
	if len(s.window) == 0 {
		return nil
	}
	if r := &s.window[int(seq)&(len(s.window)-1)]; r.seq == seq { //nolint:gosec // the low bits alone count
		return r
	}
	return nil
}
