// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A request that changes something has a number in the client's session. When the connection breaks the session goes on over the next one,
// on which everything that was not answered is sent again in the same order; the server answers what it had applied before from memory.
// docs/wire/tcpstore.md has the rules.

// session is the client's half of a session. It is guarded by the mu of the connection that has it, and passes on with it.
type session struct {
	id, token  [wire.SessionIDSize]byte
	generation uint64
	known      bool   // the server has it, or had it
	last       uint64 // the highest number that was given
	ack        uint64 // the smallest number whose answer has not come
	answered   [wire.SessionWindow / 64]uint64
}

func newSession() *session {
	s := &session{ack: 1}
	_, _ = rand.Read(s.id[:]) // never fails
	_, _ = rand.Read(s.token[:])
	return s
}

// begin notes what is to be sent again over a new connection, in the order of the numbers: nothing else lacks an answer.
func (s *session) begin(lost []lostCall) {
	s.answered = [wire.SessionWindow / 64]uint64{}
	if n := len(lost); n > 0 {
		s.last = max(s.last, lost[n-1].seq)
	}
	s.ack = s.last + 1
	for _, l := range slices.Backward(lost) {
		if l.open {
			continue // which is acknowledged for itself
		}
		for seq := l.seq + 1; seq < s.ack; seq++ {
			s.answered[seq/64%uint64(len(s.answered))] |= 1 << (seq % 64)
		}
		s.ack = l.seq
	}
}

// errResend ends a call on a connection that broke: it goes on over the next one.
var errResend = errors.New("sent again over another connection")

// lostCalls are the numbered calls whose connection broke, until they are sent again.
type lostCalls struct {
	mu struct {
		sync.Mutex
		all []lostCall
	}
}

type lostCall struct {
	seq  uint64
	q    *request
	open bool
}

func (l *lostCalls) add(c lostCall) {
	l.mu.Lock()
	l.mu.all = append(l.mu.all, c)
	l.mu.Unlock()
}

// drop forgets a call and reports whether it was there.
func (l *lostCalls) drop(seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.mu.all)
	l.mu.all = slices.DeleteFunc(l.mu.all, func(c lostCall) bool { return c.seq == seq })
	return len(l.mu.all) < n
}

// openSession puts the request that opens the session, or opens it again, behind the output, and then all calls that are to be sent again.
// The caller holds mu, or has the connection for itself.
func (m *nativeConn) openSession(s *session) {
	m.mu.session = s
	s.generation++
	m.lostCalls.mu.Lock()
	defer m.lostCalls.mu.Unlock()
	lost := m.lostCalls.mu.all
	slices.SortFunc(lost, func(a, b lostCall) int { return cmp.Compare(a.seq, b.seq) })
	s.begin(lost)
	ack := s.ack
	if len(lost) > 0 {
		ack = min(ack, lost[0].seq)
	}
	if !s.known { // the server may never have seen it
		ack = 0
	}
	id := m.freeID()
	m.mu.calls[id] = &nativeCall{op: wire.Session, greeting: true}
	start := len(m.mu.out)
	m.mu.out = wire.EndFrame(wire.AppendSession(wire.BeginFrame(m.mu.out, id), s.id, s.token, s.generation, ack), start, 0)
	for _, l := range lost {
		m.sendAgain(l)
	}
	m.lostCalls.mu.all = nil
}

// sendAgain puts a call behind the output that was lost with its connection. Its caller adopts it.
func (m *nativeConn) sendAgain(l lostCall) {
	c := &nativeCall{op: l.q.op, keys: len(l.q.keys), wake: make(chan struct{}, 1), id: m.freeID()}
	m.mu.calls[c.id] = c
	start := len(m.mu.out)
	m.mu.out = wire.BeginFrame(m.mu.out, c.id)
	m.number(l.seq, c, l.q)
	m.mu.out = wire.EndFrame(l.q.append(m.mu.out, wire.Native), start, 0)
	if m.mu.sentAgain == nil {
		m.mu.sentAgain = map[uint64]*nativeCall{}
	}
	m.mu.sentAgain[l.seq] = c
}

// greeted looks at the answer to hello or session. The caller holds mu.
func (m *nativeConn) greeted(c *nativeCall) {
	switch {
	case c.op == wire.Session && c.err == nil && m.mu.session != nil:
		m.mu.session.known = true
	case c.op == wire.Session && c.err != nil:
		m.mu.session = nil // requests have no numbers from now on
		if errors.Is(c.err, cohort.NotFound) {
			m.startSession()
		}
	case c.op == wire.Hello && !c.greeting && c.err == nil && m.mu.session == nil && m.sessions:
		m.startSession() // the store was replaced, and the program goes on with the new one
	}
}

// startSession opens a new session on a connection that is in use. The caller holds mu.
func (m *nativeConn) startSession() {
	m.openSession(newSession())
	if !m.mu.writing {
		m.mu.writing = true
		m.helpers.Go(func() { m.flushRest(nil) })
	}
}

// loseCall notes that a call is to be sent again over the next connection. The caller holds mu and has set err.
func (m *nativeConn) loseCall(c *nativeCall) {
	m.lostCalls.add(lostCall{c.seq, c.q, c.open})
}

// adopt waits for the answer to a call that was sent again on this connection.
func (m *nativeConn) adopt(ctx context.Context, limit time.Time, q *request) (wire.Reply, error) {
	failpoint.At("tcpstore.native.adopt")
	m.mu.Lock()
	c := m.mu.sentAgain[q.seq]
	if c == nil {
		err := m.mu.err
		m.mu.Unlock()
		if err == nil {
			err = cohort.Newf("tcpstore", cohort.Internal, "request %d was not sent again", q.seq)
		}
		return wire.Reply{}, err
	}
	delete(m.mu.sentAgain, q.seq)
	if !m.mu.writing && len(m.mu.out) > 0 && m.mu.err == nil {
		m.mu.writing = true
		m.flush(ctx, limit, c)
	}
	return m.finish(ctx, limit, q, c)
}

// resend goes on with a numbered call whose connection broke, over others, as long as one can be opened at once.
func (s *nativeStore) resend(ctx context.Context, limit time.Time, q *request, broken error) (wire.Reply, error) {
	for {
		m, err := s.connected(ctx, limit)
		if err != nil {
			s.abandon(q)
			return wire.Reply{}, s.lostFor(ctx, err, broken)
		}
		if !m.sessions { // it is another server, which has none
			s.abandon(q)
			return wire.Reply{}, broken
		}
		r, err := m.adopt(ctx, limit, q)
		if !errors.Is(err, errResend) {
			return r, err
		}
	}
}

// again does a request that changes nothing again over another connection.
func (s *nativeStore) again(ctx context.Context, limit time.Time, q *request, broken error) (wire.Reply, error) {
	m, err := s.connected(ctx, limit)
	if err != nil {
		return wire.Reply{}, s.lostFor(ctx, err, broken)
	}
	return m.do(ctx, limit, q)
}

// lostFor is the error of a call whose connection broke and could not be replaced.
func (s *nativeStore) lostFor(ctx context.Context, err, broken error) error {
	if ctx.Err() != nil || errors.Is(err, cohort.Closed) || errors.Is(err, error(errLimit)) || errors.Is(err, cohort.DeadlineExceeded) {
		return err
	}
	return broken
}

// abandon makes sure that a call is not sent again, and that its request is not looked at any more.
func (s *nativeStore) abandon(q *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost.drop(q.seq) {
		return
	}
	m := s.current.Load()
	m.mu.Lock()
	if c := m.mu.sentAgain[q.seq]; c != nil {
		delete(m.mu.sentAgain, q.seq)
		m.giveUp(c)
	}
	m.mu.Unlock()
	s.lost.drop(q.seq) // it was lost again meanwhile
}
