// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"encoding/binary"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// With a log (Config.Logged) a request that changes what the store holds is not done at once. It becomes a command, which the driver takes
// with Commands and gives to a journal; when it comes back by Commit it is applied, and answered. So a client hears only of what
// cannot be lost, and reads see only that.
//
// What may be refused is refused here, before the command is made: for the memory that it takes, for the room of its reply, for the waits
// that its client has. Applying it refuses nothing but what follows from the command and from what the store holds, so that all machines
// that apply the same commands hold the same. commit.go has that half.
//
// The commands of a connection are applied in their order, so their replies are too, and one connection may have many under way. Whatever
// else it asks waits until they are applied: it sees what it has written.

// proposedError says that a request has become a command.
type proposedError struct{}

func (proposedError) Error() string { return "in the log" }

// awaitsLog reports whether a request has to wait, and has it wait: for the commands of its client, for room, or for others. It
// finds out whether the request changes anything.
func (m *Machine) awaitsLog(c *Conn, r *wire.Request) bool {
	l := m.log
	l.change = m.changes(c, r)
	switch {
	case l.change && c.logged.opening && (r.Seq != 0 || r.Op == wire.Leave):
		c.logged.waiting, c.yielded = true, true // until it has its session
		return true
	case l.change:
		if c.logged.flying < maxFlying && m.admission.logged <= m.admission.shares.in {
			break
		}
		l.full = append(l.full, c)
		c.yielded = true
		return true
	case c.logged.flying > 0 && (c.dialect != wire.Native || r.Op != wire.Ping && r.Op != wire.Stats):
		c.logged.waiting, c.yielded = true, true
		return true
	}
	switch {
	case neutral(r) && r.Op != wire.Session:
	case l.forgets:
		m.expelled(c) // it uses the store that is to come
		l.users = append(l.users, c)
		c.yielded = true
	case m.config.Barrier && !l.change && !c.logged.cleared && r.Op != wire.CancelWait:
		l.reads.next = append(l.reads.next, c)
		c.yielded = true
	}
	return c.yielded
}

// changes reports whether a request may change what the store holds.
func (m *Machine) changes(c *Conn, r *wire.Request) bool {
	switch r.Op {
	case wire.Add:
		return r.Num != 0 || r.Seq != 0 || m.table.Find(r.Key) == nil
	case wire.QueuePop:
		return c.logged.flying > 0 || r.Seq != 0 || m.queues.byKey[string(r.Key)] != nil
	case wire.Clear, wire.Session:
		return true
	case wire.Leave, wire.Acked:
		return c.session != nil || c.logged.opening
	default:
		return m.operations[r.Op].changes
	}
}

// propose makes a request a command.
func (m *Machine) propose(c *Conn, r *wire.Request) error {
	k := Command{conn: c, id: r.ID}
	if err := m.decide(c, r, &k); err != nil {
		return err
	}
	size := len(r.Key) + len(r.Value) + len(r.Expected) + r.List.Size() + commandCost
	b := m.log.room(size)
	start := len(b)
	switch {
	case r.Op == wire.Clear:
		identity := m.config.Base.mask(m.config.Identity())
		b = append(m.appendKind(b, c.session, kindClear, r), identity[:]...)
	case r.Op == wire.Append:
		b = binary.AppendUvarint(m.appendKind(b, c.session, kindAppend, r), uint64(m.config.Limits.Value)) //nolint:gosec // not negative
		b = wire.AppendRequest(b, r.Op, r)
	case r.Op == wire.CompareSet && isClaim(r.Key):
		b = appendHolder(m.appendKind(b, c.session, kindClaim, r), m.holderOf(c))
		b = wire.AppendRequest(appendString(b, hostOf(c.Peer)), r.Op, r)
	default:
		b = wire.AppendRequest(m.appendKind(b, c.session, kindRequest, r), r.Op, r)
	}
	m.turn.copied(len(b) - start)
	m.gather(b, start, k)
	return proposedError{}
}

// decide refuses a request that has no room, and fills in what its command will take.
func (m *Machine) decide(c *Conn, r *wire.Request, k *Command) (err error) {
	switch r.Op {
	case wire.CompareSet:
		if isClaim(r.Key) {
			if err = checkClaim(c, r); err != nil {
				return err
			}
			return m.roomToWait(c, claimSize(r))
		}
		k.answer, err = m.mayCompare(r)
	case wire.QueuePop:
		if q := m.queues.byKey[string(r.Key)]; q != nil {
			k.answer = len(q.items[q.first])
			err = m.mayReply(k.answer, copiedSize(q.items[q.first]))
		} else if r.Wait {
			err = m.mayOpen(c, r)
		}
	case wire.Barrier, wire.Arrive:
		err = m.mayOpen(c, r)
	case wire.DeleteKey:
		err = m.turn.mayCopy(m.table.Walks() * (unitBytes + len(r.Key)))
	case wire.Clear:
		if !bytes.Equal(r.Expected, m.run.identity[:]) {
			err = notThisStore()
		}
	case wire.MultiSet:
		for list := r.List; !list.Empty() && err == nil; list.Next() {
			err = reserved(list.Next())
		}
	default:
	}
	if err == nil {
		err = reserved(r.Key)
	}
	if err != nil {
		return err
	}
	k.growth = int64(m.growthOf(r))
	return m.room(int(k.growth + m.log.growth))
}

// mayCompare returns how long the answer to a COMPARE_SET may be, and an error if it has no room.
func (m *Machine) mayCompare(r *wire.Request) (int, error) {
	answer := max(len(r.Value), len(r.Expected))
	copied := answer
	if e := m.table.Find(r.Key); e != nil && len(e.Value()) > answer {
		answer, copied = len(e.Value()), max(copied, copiedSize(e.Value()))
	}
	return answer, m.mayReply(answer, copied)
}

// growthOf is how many bytes a request may add to what the store holds, as far as is known before those under way are applied.
func (m *Machine) growthOf(r *wire.Request) int {
	switch r.Op {
	case wire.QueuePush:
		return len(r.Key) + len(r.Value) + 2*itemCost
	case wire.MultiSet:
		return r.List.Size() + r.List.Count*keytable.EntryCost
	case wire.Set, wire.CompareSet, wire.Append, wire.Add, wire.Barrier, wire.Arrive:
	default:
		return 0
	}
	more := len(r.Value)
	if r.Op == wire.Add || r.Op == wire.Barrier || r.Op == wire.Arrive {
		more = len("-9223372036854775808")
	}
	switch e := m.table.Find(r.Key); {
	case e == nil:
		return len(r.Key) + more + keytable.EntryCost
	case r.Op == wire.Append:
		return m.table.Extension(e, more)
	default:
		return max(more-len(e.Value()), 0)
	}
}

// proposePop makes a command of a pop that waits, for which there is an item now.
func (m *Machine) proposePop(w *wait, key string) {
	w.proposed = true
	b := m.log.room(len(key) + commandCost)
	start := len(b)
	r := wire.Request{Op: wire.QueuePop, Key: []byte(key), Wait: true}
	if w.task != nil {
		r.Seq = w.task.seq
	}
	b = wire.AppendRequest(m.appendKind(b, w.conn.session, kindRequest, &r), r.Op, &r)
	m.gather(b, start, Command{conn: w.conn, id: w.id, pop: w})
}

// appendKind writes what stands in front of a request: the kind of its command, and in a session who asks.
func (m *Machine) appendKind(b []byte, s *session, kind commandKind, r *wire.Request) []byte {
	if s == nil || r.Seq == 0 && kind != kindClear {
		return appendCommand(b, kind, m.log.era)
	}
	b = append(appendCommand(b, kindNumbered, m.log.era), s.id[:]...)
	return append(appendUvarints(b, s.generation, r.Seq, r.Ack, uint64(r.Sub)), byte(kind))
}

// proposeSession makes a command of SESSION, LEAVE or ACKED. The last two have no reply, and are logged sooner or later.
func (m *Machine) proposeSession(c *Conn, r *wire.Request) error {
	switch s := c.session; {
	case r.Op == wire.Session:
		if err := m.mayOpenSession(c, r); err != nil {
			return err
		}
		b := m.log.room(len(r.Key) + len(r.Expected) + commandCost)
		start := len(b)
		b = append(append(appendCommand(b, kindSession, m.log.era), r.Key...), r.Expected...)
		b = appendHolder(appendUvarints(b, uint64(r.Num), r.Ack), m.holderOf(c)) //nolint:gosec // as it was sent
		c.logged.opening = true
		k := Command{conn: c, id: r.ID, opens: max(uint64(r.Num), 1)} //nolint:gosec // as it was sent
		m.gather(appendString(b, hostOf(c.Peer)), start, k)
	case s == nil: // it was refused, or has ended
	case r.Op == wire.Leave:
		m.proposeLeave(s, r.Sub)
	default:
		m.proposeAcked(s, uint64(r.Num)) //nolint:gosec // as it was sent
	}
	return proposedError{}
}

// proposeAcked says that the answer to a request has come that is acknowledged for itself.
func (m *Machine) proposeAcked(s *session, seq uint64) {
	t := s.open[seq]
	if t == nil || t.settling {
		return
	}
	t.settling = true
	b := m.log.room(commandCost)
	start := len(b)
	b = append(appendCommand(b, kindAcked, m.log.era), s.id[:]...)
	m.gather(binary.AppendUvarint(b, seq), start, Command{})
}

// proposeLeave says that a client of a session is gone, or with 0 the session.
func (m *Machine) proposeLeave(s *session, sub uint32) {
	b := m.log.room(commandCost)
	start := len(b)
	b = append(appendCommand(b, kindLeave, m.log.era), s.id[:]...)
	m.gather(appendUvarints(b, s.generation, uint64(sub)), start, Command{})
}

// proposeRelease lets go of what a holder has whose connection has ended.
func (m *Machine) proposeRelease(holder holderID) {
	b := m.log.room(commandCost)
	m.gather(appendHolder(appendCommand(b, kindRelease, m.log.era), holder), len(b), Command{})
}

// Follow says that another process serves from now on, or none: what no client has asked for is not logged until Lead.
func (m *Machine) Follow() { m.log.follows = true }

// Lead says that this process serves again. Clients have as long to come back as after the end of a connection.
func (m *Machine) Lead() {
	m.log.follows = false
	for p := m.away.First(); p != nil; p = p.Next() {
		p.Of().link.leftAt = m.clock.now
	}
	for _, k := range m.log.parked {
		m.lift(k)
	}
	m.log.parked = nil
}

// ProposeRestart lets go of what connections of other processes hold: a process that serves alone calls it when it has recovered, others
// when they begin to lead.
func (m *Machine) ProposeRestart() {
	b := m.log.room(commandCost)
	m.gather(binary.LittleEndian.AppendUint64(appendCommand(b, kindRestart, m.log.era), m.config.Server), len(b), Command{})
}

// ProposeClear clears the store. done is called with the number of keys and queues that there were, once that is logged and applied.
func (m *Machine) ProposeClear(done func(keys int, err error)) {
	b, identity := m.log.room(commandCost), m.config.Base.mask(m.config.Identity())
	m.gather(append(appendCommand(b, kindClear, m.log.era), identity[:]...), len(b), Command{done: done})
}

// proposeForget clears the store because its last user has left. New ones wait until that is done.
func (m *Machine) proposeForget() {
	if m.log.forgets || m.log.emptying {
		return
	}
	m.log.forgets = true
	b, identity := m.log.room(commandCost), m.config.Base.mask(m.config.Identity())
	m.gather(append(appendCommand(b, kindClear, m.log.era), identity[:]...), len(b), Command{forget: true})
}

func notThisStore() error {
	return cohort.New("tcpstore: clear", cohort.InvalidArgument, "the identity is not that of this store: ask for it with hello")
}
