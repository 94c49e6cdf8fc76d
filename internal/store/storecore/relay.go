// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/ilist"
)

// A machine with a relay holds no keys: it does for its clients what any machine does (dialects, limits, turns), and has a relay ask
// another server for what they want. That is a gateway. Of a client of PyTorch's the machine applies no request while one that has a
// reply is under way, so that replies stay in order; its writes without replies may follow each other.

// Relay asks another server. Its methods are called by the machine, with r valid during the call.
type Relay interface {
	// Ask takes a request. The answer is given with Machine.Answer.
	Ask(t *Ticket, r *wire.Request)
	// Cancel says that the client does not want the answer any more. If the ticket is still open, which it is of native clients,
	// it must be answered.
	Cancel(t *Ticket)
	// Left says that a client is gone, after its tickets were cancelled.
	Left(c *Conn)
	// Full reports that nothing more can be taken; Machine.Unstall follows.
	Full() bool
	// Refusal is why the other server cannot be used at all, or nil.
	Refusal() error
}

// Ticket is a request that has no answer yet.
type Ticket struct {
	// Owner belongs to the relay.
	Owner any
	// Conn is whose request it is, ID that of a native one.
	Conn *Conn
	ID   uint32
	// Op is what the client asked for, Since when, as given to Tick.
	Op    wire.Op
	Since int64

	closed bool
	place  ilist.Place[Ticket]
}

// Open reports whether the ticket has no answer yet and its client is there.
func (t *Ticket) Open() bool { return !t.closed }

// relayed is what a connection has under way.
type relayed struct {
	tickets ilist.List[Ticket]
	byID    map[uint32]*Ticket // native
	n       int
	writes  int  // those without a reply
	blocked bool // the next request waits until the present one is answered
	stalled bool // the relay is full
	sub     uint32
}

const ticketCost = int64(256)

// Sub is the number of the client at the relay's server, 0 if it has none. SetSub gives it one.
func (c *Conn) Sub() uint32 { return c.relayed.sub }

// SetSub sets what Sub returns.
func (c *Conn) SetSub(sub uint32) { c.relayed.sub = sub }

// InOrder reports whether the client of a ticket has sent writes before it that are not answered: what it asks for now must not
// overtake them.
func (t *Ticket) InOrder() bool { return t.Conn.dialect == wire.Native || t.Conn.relayed.writes == 0 }

// answersItself reports whether a machine with a relay answers a request itself.
func (m *Machine) answersItself(c *Conn, r *wire.Request) bool {
	switch r.Op {
	case wire.Validate, wire.Upgrade, wire.Ping, wire.Stats:
		return true
	case wire.Hello:
		return m.config.Relay.Refusal() == nil
	case wire.Check:
		if r.List.Count != 1 {
			return false
		}
		list := r.List
		key := list.Next()
		return string(key) == wire.NativeKey || string(key) == wire.SessionsKey || m.isReadBack(c, key) || m.asksIdentity(key)
	default:
		return false
	}
}

// relay gives a request to the relay.
func (m *Machine) relay(c *Conn, r *wire.Request) error {
	refusal := m.config.Relay.Refusal()
	switch {
	case r.Op == wire.CancelWait:
		return m.cancelRelayed(c, r)
	case refusal != nil:
		return refusal
	case r.Seq != 0 || r.Op >= wire.Session && r.Op <= wire.Acked:
		return cohort.New("tcpstore: gateway", cohort.NotSupported, "a gateway has no sessions for its clients")
	case r.Op == wire.Backup:
		return cohort.New("tcpstore: gateway", cohort.NotSupported, "a gateway makes no backups: connect to the store itself for that")
	case r.Op == wire.WatchKey:
		return cohort.New("tcpstore: gateway", cohort.NotSupported, "a gateway cannot watch keys: connect to the store itself for that")
	case c.relayed.n >= m.config.Limits.Waits:
		return cohort.Newf("tcpstore: gateway", cohort.Exhausted, "%d requests of one client are under way", c.relayed.n)
	case c.dialect == wire.Native && c.relayed.byID[r.ID] != nil:
		err := cohort.Newf("tcpstore: gateway", cohort.Protocol, "request id %d is used twice at a time", r.ID)
		m.Refuse(c, err)
		return err
	}
	if c.dialect == wire.Legacy {
		m.dropRelayedWaits(c) // see apply
	}
	if err := m.roomToWait(c, ticketCost); err != nil {
		return err
	}
	t := &Ticket{Conn: c, ID: r.ID, Op: r.Op, Since: m.clock.now}
	m.openTicket(t)
	m.noteRelayed(c, r)
	m.config.Relay.Ask(t, r)
	return nil
}

func (m *Machine) openTicket(t *Ticket) {
	c := t.Conn
	c.relayed.tickets.Add(&t.place, t)
	c.relayed.n++
	m.chargeHoldings(c, ticketCost)
	switch {
	case c.dialect == wire.Native:
		if c.relayed.byID == nil {
			c.relayed.byID = map[uint32]*Ticket{}
		}
		c.relayed.byID[t.ID] = t
	case !wire.HasReply(c.dialect, t.Op):
		c.relayed.writes++
	case !waitsFor(t.Op):
		c.relayed.blocked = true
	}
}

// waitsFor reports whether others of a client's requests may overtake an operation.
func waitsFor(op wire.Op) bool { return op == wire.Wait || op == wire.Barrier }

func (m *Machine) closeTicket(t *Ticket) {
	c := t.Conn
	t.closed = true
	c.relayed.tickets.Remove(&t.place)
	c.relayed.n--
	m.chargeHoldings(c, -ticketCost)
	switch {
	case c.dialect == wire.Native:
		delete(c.relayed.byID, t.ID)
	case !wire.HasReply(c.dialect, t.Op):
		c.relayed.writes--
	case !waitsFor(t.Op):
		c.relayed.blocked = false
		if len(c.in.buf) > 0 {
			m.turn.yield(c)
		}
	}
}

// noteRelayed remembers which keys a client of PyTorch reads back, see readBack.
func (m *Machine) noteRelayed(c *Conn, r *wire.Request) {
	switch r.Op { //nolint:exhaustive // the others do not matter
	case wire.Set:
		m.noteSet(c, r.Key)
	case wire.Get:
		m.noteRead(c, r.Key)
	case wire.MultiGet:
		for list := r.List; !list.Empty(); {
			m.noteRead(c, list.Next())
		}
	}
}

// Answer answers a ticket with a status and a native reply's body, which is also that of the other dialects. The body must not change
// any more if it is larger than a few KiB. A ticket that is not open any more is left alone.
func (m *Machine) Answer(t *Ticket, status byte, body []byte) {
	if t.closed {
		return
	}
	c := t.Conn
	m.closeTicket(t)
	switch {
	case c.dialect != wire.Native && status != 0:
		m.Refuse(c, cohort.New("tcpstore: gateway", cohort.Code(status), string(body)))
		return
	case c.dialect != wire.Native && !wire.HasReply(c.dialect, t.Op):
		return
	}
	c.out.begin(m.clock.counted)
	start := len(c.out.Buf)
	if c.dialect == wire.Native {
		c.out.Buf = append(wire.BeginFrame(c.out.Buf, t.ID), status)
	}
	if len(body) > sharedSize {
		c.out.Refer(body, body)
	} else {
		c.out.Buf = append(c.out.Buf, body...)
	}
	m.end(c, start)
}

// cancelRelayed is CANCEL_WAIT.
func (m *Machine) cancelRelayed(c *Conn, r *wire.Request) error {
	if c.dialect != wire.Native {
		m.dropRelayedWaits(c)
		m.replyByte(c, 0, wire.WaitCanceled)
		return nil
	}
	if t := c.relayed.byID[r.Nonce]; t != nil {
		m.config.Relay.Cancel(t)
	}
	return nil
}

// dropRelayedWaits gives up what a client of PyTorch waits for.
func (m *Machine) dropRelayedWaits(c *Conn) {
	for p := c.relayed.tickets.First(); p != nil; {
		t := p.Of()
		if p = p.Next(); waitsFor(t.Op) {
			m.closeTicket(t)
			m.config.Relay.Cancel(t)
		}
	}
}

// dropRelayed gives up everything of a client that is gone.
func (m *Machine) dropRelayed(c *Conn) {
	if m.config.Relay == nil {
		return
	}
	for p := c.relayed.tickets.First(); p != nil; p = c.relayed.tickets.First() {
		t := p.Of()
		m.closeTicket(t)
		m.config.Relay.Cancel(t)
	}
	m.config.Relay.Left(c)
}

// dropStale refuses what a native client has asked of a store that is gone. The one that has cleared it is answered.
func (m *Machine) dropStale(c *Conn, by bool) {
	for p := c.relayed.tickets.First(); p != nil; {
		t := p.Of()
		if p = p.Next(); by && t.Op == wire.Clear {
			continue
		}
		m.Answer(t, byte(cohort.Replaced), []byte(replaced().Error()))
		m.config.Relay.Cancel(t)
	}
}

// stall reports whether c's next request has to wait for the relay.
func (m *Machine) stall(c *Conn) bool {
	if c.relayed.blocked || c.relayed.stalled {
		return true
	}
	if m.config.Relay == nil || !m.config.Relay.Full() {
		return false
	}
	c.relayed.stalled = true
	m.stalled = append(m.stalled, c)
	return true
}

// Unstall lets the clients go on that had to wait for the relay.
func (m *Machine) Unstall() {
	all := m.stalled
	m.stalled = nil
	for _, c := range all {
		if c.relayed.stalled = false; !c.closed {
			m.turn.yield(c)
		}
	}
}

// Reached tells a machine with a relay which store that has reached, and how many keys an earlier run has left there. If it is another one
// than before, clients learn that the store was replaced, all but the connection by.
func (m *Machine) Reached(id Identity, left int, by *Conn) {
	if m.run.identity != id && m.run.identity != (Identity{}) {
		m.empty(by)
	}
	m.run.identity, m.run.left = id, left
}
