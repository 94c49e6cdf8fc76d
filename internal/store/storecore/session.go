// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// A session outlives the connections of its client. Requests of it that change something are numbered, and the store remembers their
// answers until the client has acknowledged them: a client whose connection broke opens the session again over another one, sends what
// was not answered again in the same order, and gets the remembered answer where the request was applied before. So each is applied
// exactly once.
//
// This file is the records alone. They are a part of the contents of the store: they change only by what is applied, so that equal
// requests in equal order leave equal records. With a log they are in it, and in images: what changes them is a command, and so is the end
// of a session that has been away for too long. Nothing that differs between machines with the same records decides about them.

// sessionID names a session.
type sessionID [wire.SessionIDSize]byte

// sessions is the records of all sessions.
type sessions struct {
	byID     map[sessionID]*session
	byHolder map[holderID]*session
	bytes    int64                  // what the records take
	barriers map[string][]*openTask // arrivals that wait, by the key of their barrier
}

// session is the record of one.
type session struct {
	id, token  sessionID
	generation uint64 // how often it was opened
	holder     holderID
	last       uint64 // the highest number that was applied
	acked      uint64 // answers to numbers below it are forgotten
	window     []remembered
	open       map[uint64]*openTask
	left       []*claim // that it held when its connection ended, and gets again
	bytes      int64

	link sessionLink // what is not part of the record: see session_conn.go
}

// remembered is the answer to a request, at the place of its number in a ring.
type remembered struct {
	seq    uint64
	answer answer
}

// answer is the status and the body of a reply. A small one needs no memory of its own.
type answer struct {
	n     uint8
	small [15]byte
	large []byte // what follows the n bytes of small
}

// openTask is a request whose answer may come much later: an arrival at a barrier, or a pop that waits. Its answer is acknowledged alone,
// so that one that waits for long does not keep those of others.
type openTask struct {
	seq      uint64
	done     bool
	answer   answer
	size     int64  // of the barrier
	barrier  string // where it has arrived; empty: it is a pop, which changes nothing until it is answered
	arrived  bool
	reserved int64
	settling bool // a command that forgets it is under way
}

const (
	// sessionCost and taskCost are what a record takes beside the bytes of answers.
	sessionCost, taskCost = int64(512), int64(192)
	// maxSessionBytes bounds the answers that are remembered for one session: more must be acknowledged first.
	maxSessionBytes = int64(32 << 20)
	// maxOpenTasks bounds the open tasks of one.
	maxOpenTasks = 1 << 14
)

// cost is what an answer counts for, however it is kept.
func (a *answer) cost() int64 {
	if a.large == nil {
		return 0
	}
	return int64(a.n) + int64(len(a.large))
}

// openSession opens a session for the first time, or again with a higher generation. Answers to numbers below ack have come;
// with 0, not even that to opening it has.
func (ss *sessions) openSession(id, token sessionID, generation, ack uint64) (*session, error) {
	const op = "tcpstore: session"
	s := ss.byID[id]
	switch {
	case generation == 0:
		return nil, cohort.New(op, cohort.Protocol, "the generation 0")
	case s == nil && generation > 1 && ack > 0:
		return nil, cohort.New(op, cohort.NotFound,
			"the session has ended: it was away for too long, or the store was started anew; what was under way may have been applied")
	case s == nil:
		s = &session{id: id, token: token}
		ss.add(s)
	case s.token != token:
		return nil, cohort.New(op, cohort.InvalidArgument, "another client has this session: the token is not its token")
	case generation <= s.generation:
		return nil, cohort.Newf(op, cohort.Aborted, "the session was opened as generation %d already, this is generation %d",
			s.generation, generation)
	}
	s.generation = generation
	ss.acknowledge(s, ack)
	for seq, t := range s.open {
		if seq < ack {
			ss.drop(s, t)
		}
	}
	return s, nil
}

func (ss *sessions) add(s *session) {
	if ss.byID == nil {
		ss.byID = map[sessionID]*session{}
	}
	ss.byID[s.id] = s
	ss.charge(s, sessionCost)
}

// hold names the session as the holder of claims that its connection has from now on.
func (ss *sessions) hold(s *session, holder holderID) {
	if ss.byHolder == nil {
		ss.byHolder = map[holderID]*session{}
	}
	delete(ss.byHolder, s.holder)
	s.holder = holder
	ss.byHolder[holder] = s
}

// end forgets a session.
func (ss *sessions) end(s *session) {
	for _, t := range s.open {
		ss.leaveBarrier(t)
	}
	for _, c := range s.left {
		c.left = nil
	}
	ss.bytes -= s.bytes + s.ringSize()
	delete(ss.byID, s.id)
	delete(ss.byHolder, s.holder)
}

func (ss *sessions) charge(s *session, n int64) {
	s.bytes += n
	ss.bytes += n
}

// wait notes that a request was applied as far as it can be: it has arrived at a barrier, or is a pop without an item.
func (ss *sessions) wait(s *session, seq uint64, barrier string, size int64) *openTask {
	if t := s.open[seq]; t != nil {
		return t
	}
	t := &openTask{seq: seq, barrier: barrier, size: size, arrived: barrier != "", reserved: taskCost + int64(len(barrier))}
	if s.open == nil {
		s.open = map[uint64]*openTask{}
	}
	s.open[seq] = t
	s.last = max(s.last, seq)
	ss.charge(s, t.reserved)
	if t.arrived {
		if ss.barriers == nil {
			ss.barriers = map[string][]*openTask{}
		}
		ss.barriers[barrier] = append(ss.barriers[barrier], t)
	}
	return t
}

// finish remembers the answer to an open task.
func (ss *sessions) finish(s *session, t *openTask, a answer) {
	if t.done {
		return
	}
	ss.leaveBarrier(t)
	t.done, t.answer = true, a
	ss.charge(s, a.cost())
}

// reach notes that so many have arrived at a barrier: it lets go those that this is enough for, connected or not.
func (ss *sessions) reach(key []byte, count int64) {
	tasks := ss.barriers[string(key)]
	if len(tasks) == 0 {
		return
	}
	kept := tasks[:0]
	for _, t := range tasks {
		if t.size > count {
			kept = append(kept, t)
			continue
		}
		t.done, t.answer = true, newAnswer([]byte{0, wire.StopWaiting}, nil)
	}
	clear(tasks[len(kept):])
	if ss.barriers[string(key)] = kept; len(kept) == 0 {
		delete(ss.barriers, string(key))
	}
}

func (ss *sessions) leaveBarrier(t *openTask) {
	if !t.arrived || t.done {
		return
	}
	tasks := ss.barriers[t.barrier]
	for i, o := range tasks {
		if o == t {
			tasks = append(tasks[:i:i], tasks[i+1:]...)
			break
		}
	}
	if ss.barriers[t.barrier] = tasks; len(tasks) == 0 {
		delete(ss.barriers, t.barrier)
	}
}

// settle forgets the answer to an open task.
func (ss *sessions) settle(s *session, seq uint64) {
	if t := s.open[seq]; t != nil {
		ss.drop(s, t)
	}
}

func (ss *sessions) drop(s *session, t *openTask) {
	ss.leaveBarrier(t)
	ss.charge(s, -t.reserved-t.answer.cost())
	delete(s.open, t.seq)
}
