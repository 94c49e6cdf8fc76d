// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Entry is a command as the log returns it.
type Entry struct {
	Index uint64
	Data  []byte   // it may be used again when the entry is applied
	Local *Command // the one that Commands returned, nil for those of other processes, or of this one before it began
}

// Commit applies entries, in their order, as far as this turn allows. The others are applied by Resume in the next turns.
func (m *Machine) Commit(entries []Entry) {
	m.log.committed = append(m.log.committed, entries...)
	m.applyUntil(m.turn.work + heavyWork)
}

// Replay applies an entry at once. It is for a machine that does not serve yet.
func (m *Machine) Replay(e Entry) error {
	m.applyEntry(&e)
	return m.log.broken
}

// Applied returns the index of the last entry that was applied, how many others wait for that, and why no more are applied, if so: a
// command cannot be read.
func (m *Machine) Applied() (index uint64, waiting int, broken error) {
	return m.log.applied, len(m.log.committed), m.log.broken
}

// applies reports whether a command is being applied: nothing is refused for room.
func (m *Machine) applies() bool { return m.log != nil && m.log.applying }

// mayGoOn reports whether there is something to apply and it may be.
func (m *Machine) mayGoOn() bool {
	l := m.log
	return len(l.committed) > 0 && l.broken == nil && (m.image == nil || !m.image.full())
}

// applyUntil applies what is committed, up to an amount of work.
func (m *Machine) applyUntil(end uint64) {
	l := m.log
	done := 0
	for ; done < len(l.committed) && m.turn.work < end && l.broken == nil && (m.image == nil || !m.image.full()); done++ {
		m.applyEntry(&l.committed[done])
		l.committed[done] = Entry{}
	}
	if l.committed = l.committed[done:]; len(l.committed) == 0 {
		l.committed = nil
	}
}

// applyEntry applies one entry and answers it, if its client is here.
func (m *Machine) applyEntry(e *Entry) {
	l, c, k := m.log, m.log.ghost, e.Local
	if l.broken = l.command.parse(e.Data); l.broken != nil {
		return
	}
	l.applied = e.Index
	if k != nil {
		m.land(k)
		if k.conn != nil && !k.conn.closed && (k.pop == nil || !k.pop.gone) {
			c = k.conn
		}
		l.command.request.ID = k.id
	}
	m.given, m.recorder = given{}, recorder{}
	m.turn.work++
	m.turn.notifyEnd = m.turn.work + heavyWork
	if l.ghost.dialect = wire.V; l.command.session.generation != 0 {
		l.ghost.dialect = wire.Native // for the answer is remembered
	}
	l.applying = true
	err := m.applyCommand(&l.command, c, k)
	l.applying = false
	if c == l.ghost {
		m.discard(c)
		return
	}
	if m.config.Observe != nil {
		m.config.Observe(c, &l.command.request, err)
	}
	if err != nil {
		m.refuseRequest(c, k.id, err)
	}
}

// discard drops replies that nothing reads.
func (m *Machine) discard(ghost *Conn) {
	if n := ghost.Owed(); n > 0 {
		ghost.out.Shed(n)
		if cap(ghost.out.Buf) > keepBuffer {
			ghost.out.Clear()
		}
	}
	m.admission.out -= int64(ghost.out.counted)
	ghost.out.counted = 0
}

// applyCommand does what a command says. All of it follows from the command and from what the store holds, but for the replies.
func (m *Machine) applyCommand(p *parsedCommand, c *Conn, k *Command) error {
	if p.era != m.log.era {
		return m.outdated(p, k)
	}
	switch p.kind {
	case kindRelease:
		m.release(p.holder)
		return nil
	case kindRestart:
		m.releaseOthers(p.holder.Server)
		return nil
	case kindSession:
		return m.applySession(p, c)
	case kindAcked, kindLeave:
		m.applyLeave(p)
		return nil
	case kindClear:
		if p.session.generation == 0 {
			m.applyClear(p, c, k, nil)
			return nil
		}
	default: // those of requests
	}
	if p.session.generation != 0 {
		return m.applyNumbered(p, c, k)
	}
	return m.applyRequest(p, c, k, nil)
}

// applyRequest does what a client has asked for, of a session or of none.
func (m *Machine) applyRequest(p *parsedCommand, c *Conn, k *Command, s *session) error {
	switch {
	case p.kind == kindClaim:
		return m.applyClaim(p, c)
	case p.kind == kindClear:
		m.applyClear(p, c, k, s)
		return nil
	case k != nil && k.pop != nil && c != m.log.ghost:
		if goesOn := m.popFor(k.pop, &p.request); goesOn {
			return nil
		}
	}
	if !m.operations[p.request.Op].changes && p.request.Op != wire.Add {
		return cohort.Newf("tcpstore: apply", cohort.Protocol, "%s is in the log, and changes nothing", p.request.Op)
	}
	return m.operations[p.request.Op].do(m, c, &p.request)
}

// outdated is for a command of a time before the store was cleared.
func (m *Machine) outdated(p *parsedCommand, k *Command) error {
	switch p.kind {
	case kindAcked, kindLeave: // they have no reply
		return nil
	case kindClear:
	case kindSession:
		m.opened(k)
		return replaced()
	default:
		return replaced()
	}
	if k != nil && k.done != nil {
		k.done(0, nil) // it was cleared a moment ago
	}
	m.remembers(k)
	return notThisStore()
}

func (m *Machine) applyClaim(p *parsedCommand, c *Conn) error {
	have, answer, err := m.contest(p.holder, &p.request)
	if err != nil {
		return err
	}
	if answer == nil {
		holder := c
		if c == m.log.ghost {
			holder = nil
		}
		m.seize(have, p.holder, holder, string(p.host), &p.request)
		answer = p.request.Value
	}
	m.replyBytes(c, p.request.ID, answer)
	return nil
}

// releaseOthers lets go of what the connections of other processes hold.
func (m *Machine) releaseOthers(server uint64) {
	var others []holderID
	for h := range m.claims.byHolder {
		m.turn.work++
		if h.Server != server {
			others = append(others, h)
		}
	}
	slices.SortFunc(others, compareHolders)
	for _, h := range others {
		m.release(h)
	}
}

func (m *Machine) applyClear(p *parsedCommand, c *Conn, k *Command, s *session) {
	by := c
	if c == m.log.ghost {
		by = nil
	}
	m.log.emptying = true
	keys := m.emptyFor(by, s)
	m.log.emptying = false
	m.run.identity = m.config.Base.mask(p.identity)
	m.log.era++
	if by != nil || s != nil {
		m.replyIdentity(c, p.request.ID, keys)
	}
	if k != nil && k.done != nil {
		k.done(keys, nil)
	}
	m.remembers(k)
}

// remembers lets those go on that have waited for the store to be forgotten.
func (m *Machine) remembers(k *Command) {
	if k != nil && k.forget {
		m.log.forgets = false
		m.turn.later = append(m.turn.later, m.log.users...)
		m.log.users = nil
	}
}

// servePops makes commands of the oldest pops that wait for items of a queue, as many as there are items, and returns whether there were
// any. The items are in the queue until the commands are applied, but those who wait for the key are not told of them.
func (m *Machine) servePops(key []byte) (served bool) {
	k, q := m.waits.byKey[string(key)], m.queues.byKey[string(key)]
	if k == nil || q == nil {
		return false
	}
	n := q.len()
	for p := k.pops.First(); p != nil && n > 0; p = p.Next() {
		m.turn.work++
		if n--; !p.Of().wait.proposed {
			m.proposePop(p.Of().wait, k.key)
			served = true
		}
	}
	return served
}

// popFor ends a pop that has waited, for which there is an item. If another one was faster it goes on waiting, unless it was canceled.
func (m *Machine) popFor(w *wait, r *wire.Request) (goesOn bool) {
	w.proposed = false
	switch {
	case m.queues.byKey[string(r.Key)] != nil:
		m.forget(w)
		return false
	case w.canceled:
		m.recorder = recorder{} // this is between the client and this process
		m.forget(w)
		m.refuseRequest(w.conn, w.id, canceled())
	}
	return true
}
