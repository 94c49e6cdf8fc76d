// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// changelog is what a machine with a log knows of the commands under way.
type changelog struct {
	gathered []*Command // not taken by the driver yet
	arena    []byte     // where their bytes go
	slab     []Command  // and they themselves
	flying   int        // commands that are neither applied nor aborted
	growth   int64      // bytes that they may add to what the store holds
	change   bool       // the present request changes something
	full     []*Conn    // who waits for room for commands
	follows  bool       // another process serves
	parked   []*Command // that are logged when this one serves again
	emptying bool       // the store is being cleared in this step
	forgets  bool       // the store is being forgotten
	users    []*Conn    // who waits for that
	reads    reads

	committed []Entry // to be applied, in this order
	applied   uint64  // the index of the last one that was
	applying  bool
	broken    error  // why no more are applied
	era       uint64 // how often the store was cleared
	command   parsedCommand
	ghost     *Conn // for whom commands are applied whose connection is not open here
}

// Command is a change that has to be logged.
type Command struct {
	// Data is what the log keeps.
	Data []byte

	conn   *Conn
	id     uint32
	growth int64
	answer int
	pop    *wait // whom the item of the queue is for
	forget bool
	opens  uint64                    // a session, as this generation; 0: none
	done   func(keys int, err error) // of one of the process
}

// Vital reports whether the command has to be logged also when the disk has hardly any room: clients depend on it that change nothing.
func (k *Command) Vital() bool { return k.Internal() || k.opens != 0 }

// Internal reports whether no client waits for the command. It has to be logged sooner or later, so Abort keeps it.
func (k *Command) Internal() bool { return k.conn == nil && k.done == nil }

// connLog is what one connection has to do with the log.
type connLog struct {
	flying  int   // its commands
	waiting bool  // it goes on when none of them is under way
	opening bool  // one of them opens its session
	refused error // why its session was not opened, if that was to be a new one
	aborted bool  // one of its commands was not logged, so the later ones are not either
	cleared bool  // what it has sent so far may read, see reads
}

const (
	// maxFlying is how many commands of one connection may be under way.
	maxFlying = 1 << 12
	// commandCost is what a command takes beside its bytes.
	commandCost = 160
	slabSize    = 64
	arenaSize   = 32 << 10
)

func newChangelog() *changelog {
	ghost := &Conn{closed: true, dialect: wire.V}
	ghost.place.dirty = true // so that no driver ever sees it
	return &changelog{ghost: ghost}
}

// room returns a buffer to which a command of about n bytes is appended.
func (l *changelog) room(n int) []byte {
	if cap(l.arena)-len(l.arena) < n {
		l.arena = make([]byte, 0, max(arenaSize, n))
	}
	return l.arena
}

// gather takes a command that stands in b from start on.
func (m *Machine) gather(b []byte, start int, k Command) {
	l := m.log
	k.Data = b[start:len(b):len(b)]
	if cap(b) > 2*arenaSize {
		b = nil // it is kept as long as its command
	}
	l.arena = b
	if len(l.slab) == cap(l.slab) {
		l.slab = make([]Command, 0, slabSize)
	}
	l.slab = append(l.slab, k)
	m.lift(&l.slab[len(l.slab)-1])
}

// lift counts a command as one under way.
func (m *Machine) lift(k *Command) {
	l := m.log
	l.gathered = append(l.gathered, k)
	l.flying++
	l.growth += k.growth
	m.admission.logged += int64(len(k.Data)) + commandCost
	m.admission.promised += int64(k.answer)
	if k.conn != nil {
		k.conn.logged.flying++
	}
}

// land counts a command as done with. Its connection goes on if it waited for that.
func (m *Machine) land(k *Command) {
	l := m.log
	l.flying--
	l.growth -= k.growth
	m.admission.logged -= int64(len(k.Data)) + commandCost
	m.admission.promised -= int64(k.answer)
	if c := k.conn; c != nil {
		if c.logged.flying--; c.logged.flying == 0 && c.logged.waiting {
			c.logged.waiting = false
			m.turn.later = append(m.turn.later, c)
		}
	}
	if len(l.full) > 0 && m.admission.logged <= m.admission.shares.in/2 {
		m.turn.later = append(m.turn.later, l.full...)
		l.full = nil
	}
}

// Commands returns what has to be logged, in this order, and forgets it. The driver asks after every step.
func (m *Machine) Commands() []*Command {
	if m.log == nil || len(m.log.gathered) == 0 {
		return nil
	}
	all := m.log.gathered
	m.log.gathered = make([]*Command, 0, len(all)) // the next step brings about as many
	return slices.DeleteFunc(all, func(k *Command) bool {
		if k.conn == nil || !k.conn.logged.aborted || k.conn.dialect == wire.Native {
			return false
		}
		m.land(k)
		return true
	})
}

// Abort notes that commands were not logged, for a reason that their clients are told. Those of PyTorch are cut, and what they have sent
// after that is not logged either. Commands that no client waits for are returned by Commands again.
func (m *Machine) Abort(commands []*Command, reason error) {
	for _, k := range commands {
		m.land(k)
		if k.opens != 0 {
			m.notOpened(k, reason)
		}
		switch {
		case k.Internal() && m.log.follows:
			m.log.parked = append(m.log.parked, k)
		case k.Internal():
			m.lift(k)
		case m.config.Barrier && k.conn != nil && k.conn.session != nil && cohort.CodeOf(reason) == cohort.Unavailable:
			m.Refuse(k.conn, reason) // it opens its session where that can be, and sends again what has no answer
		case k.conn == nil:
			k.done(0, reason)
		case k.pop != nil && k.pop.gone:
		case k.pop != nil:
			key := []byte(k.pop.first[0].key.key)
			m.forget(k.pop)
			m.announce(key) // the item that was to be its own
			m.wake()
			m.refuseRequest(k.conn, k.id, reason)
		default:
			k.conn.logged.aborted = true
			if !k.conn.closed {
				m.refuseRequest(k.conn, k.id, reason)
			}
		}
	}
}

// reads is who waits to read until it is certain that this machine has applied what was acknowledged before, on this or another one: with
// Config.Barrier, which a single machine does not need. A connection that has got it may read with all that it had sent before.
type reads struct {
	next    []*Conn // for whom it is not asked for yet
	pending []readRound
	round   uint64
}

type readRound struct {
	number uint64
	conns  []*Conn
}

// Reads returns the number of a round of reads that the driver has to have confirmed, 0 if there is none. It asks after every step.
func (m *Machine) Reads() (round uint64) {
	if m.log == nil || len(m.log.reads.next) == 0 {
		return 0
	}
	r := &m.log.reads
	r.round++
	r.pending = append(r.pending, readRound{r.round, r.next})
	r.next = nil
	return r.round
}

// Confirm lets those read whose round is not after this one. With an error they are cut.
func (m *Machine) Confirm(round uint64, err error) {
	r := &m.log.reads
	for ; len(r.pending) > 0 && r.pending[0].number <= round; r.pending = r.pending[1:] {
		for _, c := range r.pending[0].conns {
			if err != nil {
				m.Refuse(c, err)
				continue
			}
			c.logged.cleared = true
			m.turn.later = append(m.turn.later, c)
		}
	}
}
