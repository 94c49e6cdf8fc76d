// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"
	"slices"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file is the records of sessions in an image. Of each, behind each other:
//
//	'N' id token generation last acknowledged holder
//	'A' number answer                             an answer that is remembered; in the order of their numbers
//	'T' number state size barrier answer          an answer that is acknowledged for itself, or is still to come
//	'L' name                                      a claim that it has lost with its connection, in their order
//
// The state has the bits 1, it is answered, and 2, it has arrived at the barrier.

// sessionImage is a session as it was when an image was begun. Answers never change.
type sessionImage struct {
	begun   bool
	session session // its header
	answers []remembered
	tasks   []openTask
	left    []string
}

func imagesOf(ss *sessions) (all []sessionImage) {
	for _, s := range ss.byID {
		i := sessionImage{session: session{
			id: s.id, token: s.token, generation: s.generation, last: s.last, acked: s.acked, holder: s.holder,
		}}
		for seq := s.acked; seq <= s.last && len(s.window) > 0; seq++ {
			if r := s.at(seq); r != nil && r.seq != 0 {
				i.answers = append(i.answers, *r)
			}
		}
		for _, t := range s.open {
			i.tasks = append(i.tasks, *t)
		}
		for _, c := range s.left {
			i.left = append(i.left, c.name)
		}
		all = append(all, i)
	}
	return all
}

// recordPart writes the next piece of a session.
func (i *Image) recordPart() {
	switch s := &i.records[0]; {
	case !s.begun:
		s.begun = true
		i.sizes.sessions++
		h := &s.session
		i.out = append(append(append(i.out, 'N'), h.id[:]...), h.token[:]...)
		i.out = appendHolder(appendUvarints(i.out, h.generation, h.last, h.acked), h.holder)
	case len(s.answers) > 0:
		i.sizes.answers++
		a := &s.answers[0]
		i.out = appendAnswer(binary.AppendUvarint(append(i.out, 'A'), a.seq), &a.answer)
		s.answers = s.answers[1:]
	case len(s.tasks) > 0:
		i.sizes.answers++
		t := &s.tasks[0]
		i.out = appendUvarints(append(i.out, 'T'), t.seq, t.state(), uint64(t.size)) //nolint:gosec // as it was sent
		i.out = appendAnswer(appendString(i.out, t.barrier), &t.answer)
		s.tasks = s.tasks[1:]
	case len(s.left) > 0:
		i.out = appendString(append(i.out, 'L'), s.left[0])
		s.left = s.left[1:]
	default:
		i.records = i.records[1:]
	}
}

const taskDone, taskArrived = 1, 2

func (t *openTask) state() (state uint64) {
	if t.done {
		state |= taskDone
	}
	if t.arrived {
		state |= taskArrived
	}
	return state
}

func appendAnswer(b []byte, a *answer) []byte {
	b = append(binary.AppendUvarint(b, uint64(a.n)+uint64(len(a.large))), a.small[:a.n]...)
	return append(b, a.large...)
}

// ofSession reads a piece of a session.
func (d *imageReader) ofSession(kind byte) {
	ss, s := &d.machine.sessions, d.session
	if s == nil && kind != 'N' {
		d.fail("it has a part of a session before the session")
		return
	}
	switch kind {
	case 'N':
		d.newSession()
	case 'A':
		seq, text := d.number(), d.string()
		if d.err == nil && (seq == 0 || seq > s.last || seq < s.acked || seq-max(s.acked, 1) >= wire.SessionWindow) {
			d.fail("it has an answer that its session does not remember")
		}
		if d.err == nil {
			d.sizes.answers++
			ss.record(s, seq, newAnswer(nil, text))
		}
	case 'T':
		d.task()
	default:
		have := d.machine.claims.byName[string(d.string())]
		if have == nil || have.holder != (holderID{}) {
			d.fail("its session has lost a claim that is not there")
			return
		}
		have.left = s
		s.left = append(s.left, have)
	}
}

func (d *imageReader) newSession() {
	s := &session{}
	d.fill(s.id[:])
	d.fill(s.token[:])
	s.generation, s.last, s.acked = d.number(), d.number(), d.number()
	var holder [holderSize]byte
	d.fill(holder[:])
	m := d.machine
	if d.err == nil && (m.sessions.byID[s.id] != nil || s.generation == 0) {
		d.fail("it has a session twice, or one that was never opened")
	}
	if d.session = s; d.err != nil {
		return
	}
	d.sizes.sessions++
	m.sessions.add(s)
	m.sessions.hold(s, readHolder(holder[:]))
	m.goesAway(s)
}

func (d *imageReader) task() {
	seq, state, size, barrier, text := d.number(), d.number(), d.number(), d.string(), d.string()
	s, ss := d.session, &d.machine.sessions
	if d.err == nil && (s.open[seq] != nil || seq > s.last) {
		d.fail("it has an answer to come twice, or of a request that was not made")
	}
	if d.err != nil {
		return
	}
	d.sizes.answers++
	t := ss.wait(s, seq, string(barrier), int64(size)) //nolint:gosec // as it was written
	if state&taskDone != 0 {
		ss.finish(s, t, newAnswer(nil, text))
	}
	t.arrived = state&taskArrived != 0
}

// hash is a number that another record hardly ever has.
func (s *session) hash() uint64 {
	parts := [][]byte{{'N'}, s.id[:], s.token[:], appendHolder(appendUvarints(nil, s.generation, s.last, s.acked), s.holder)}
	for seq := s.acked; seq <= s.last && len(s.window) > 0; seq++ {
		if r := s.at(seq); r != nil && r.seq != 0 {
			parts = append(parts, binary.AppendUvarint(nil, seq), appendAnswer(nil, &r.answer))
		}
	}
	var tasks []uint64
	for seq := range s.open {
		tasks = append(tasks, seq)
	}
	slices.Sort(tasks)
	for _, seq := range tasks {
		t := s.open[seq]
		header := appendUvarints([]byte{'T'}, seq, t.state(), uint64(t.size)) //nolint:gosec // any number does
		parts = append(parts, header, []byte(t.barrier), appendAnswer(nil, &t.answer))
	}
	for _, c := range s.left {
		parts = append(parts, []byte{'L'}, []byte(c.name))
	}
	return hashOf(append(parts, binary.AppendVarint(nil, s.bytes))...)
}
