// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// Limits bound what clients can make the machine hold.
type Limits struct {
	wire.Limits
	Memory int64 // bytes of keys, values, queues, waits and buffers together
	Output int   // bytes that wait to be sent to one client
	Waits  int   // waits and watches of one client that are open at a time
}

// Config is what a machine is made of.
type Config struct {
	Limits Limits
	// Stats makes the answer to a STATS request.
	Stats func() []byte
	// Identity draws the identity of a new key space. Nil: all have the same.
	Identity func() Identity
	// Forget empties the store whenever its last user leaves.
	Forget bool
	// Loops is into how many parts the driver has divided the connections, each with a list of its own of those that are
	// dirty. 0 is 1, MaxHomes is the most.
	Loops int
	// Observe, when set, is called after every request that was applied.
	Observe func(c *Conn, r *wire.Request, err error)
}

// MaxHomes is the largest number of homes.
const MaxHomes = 64

const (
	// highWater is the output at which a client's further requests wait until it has read some of it, as long as there
	// are not so many clients that each has to do with less.
	highWater = 256 << 10
	// keepBuffer is the largest buffer that an idle connection keeps, and the largest reply that never waits for room.
	keepBuffer = 4 << 10
)

// Machine is the server's state. See the package comment for how it is driven.
type Machine struct {
	config Config
	clock  clock
	turn   turn
	budget budget
	conns  roster

	// What the store holds.
	table    *keytable.Table
	listings []*listing // answers that are made in parts
	queues   queues
	run      run

	// Who is told when something changes.
	waits    waits
	watchers map[string]map[*Conn]struct{} // by the key
	tidings  []keyChange                   // what watchers have not all been told
	claims   claims

	// Who waits for memory.
	crowd   fairQueue[*Conn] // for room for a reply, see crowd.go
	senders senders

	request wire.Request // reused, so that parsing allocates nothing
	given   given
	counts  counts
}

// New returns a machine without keys.
func New(config Config) *Machine {
	if config.Identity == nil {
		config.Identity = func() Identity { return Identity{} }
	}
	closed := func(c *Conn) bool { return c.closed }
	return &Machine{
		config: config, budget: budget{shares: divide(config.Limits.Memory)}, conns: newRoster(config.Loops),
		table: keytable.New(), queues: queues{byKey: map[string]*queue{}}, run: run{identity: config.Identity()},
		waits: newWaits(), watchers: map[string]map[*Conn]struct{}{},
		crowd: newFairQueue(closed), senders: senders{fairQueue: newFairQueue(closed)},
	}
}

// Conn is one client's connection.
type Conn struct {
	// Owner and Peer belong to the driver: what it needs to find the socket, and the client's address.
	Owner any
	Peer  string

	dialect  wire.Dialect
	closed   bool
	cut      error // why the machine has closed it
	yielded  bool  // its turn was over before its requests were; see turn.go
	putOff   bool  // its next request had to wait for a turn that has room for it
	place    place
	standing standing

	in        input
	allowance allowance
	out       output
	held      held
	listing   *listing // the answer that is being made

	stakes stakes
	back   readBack
	poll   Poll
}

// Tick begins a turn and tells the machine the time, in nanoseconds of the driver's choice. A driver that looks at its clock
// before it is its turn may be a little behind another part of it; then no time has passed.
func (m *Machine) Tick(now int64) {
	m.clock.tick(now)
	m.turn.begin()
}

// Open adds a connection that is at home in the first part of the driver.
func (m *Machine) Open(peer string, owner any) *Conn { return m.OpenAt(0, peer, owner) }

// OpenAt adds a connection that is at home in a part of the driver.
func (m *Machine) OpenAt(home int, peer string, owner any) *Conn {
	m.counts.opened++
	m.counts.conns[wire.Undetected]++
	c := &Conn{Peer: peer, Owner: owner}
	m.conns.add(c, home)
	return c
}

// Close removes a connection that is gone, with its waits and watches. It is idempotent.
func (m *Machine) Close(c *Conn) {
	if c.closed {
		return
	}
	c.closed = true
	m.counts.conns[c.dialect]--
	m.dropWaits(c)
	m.unwatch(c)
	m.unclaim(c)
	c.in.clear()
	c.out.Clear()
	m.dropListing(c)
	m.settle(c)
	m.leaveOverBudget(c)
	m.leaveSenders(c)
	m.conns.remove(c)
	m.leave(c)
	if invariants.Enabled && len(m.conns.all) < checkedConns && len(m.claims.byName) < checkedConns {
		m.audit()
	}
}

// Cut returns why the connection is to be closed, or nil.
func (c *Conn) Cut() error { return c.cut }

// Dialect returns what the connection speaks.
func (c *Conn) Dialect() wire.Dialect { return c.dialect }

// Paused reports that the client should not be read from: it has too much unread output, or has to wait for room or for
// its turn. It is among the dirty ones when that has changed.
func (c *Conn) Paused() bool {
	return c.out.paused || c.held.request || c.allowance.starved || c.yielded || c.listing != nil
}

// high is the output at which a client's requests wait: all clients together may not take more than half of the share.
func (m *Machine) high() int {
	fair := m.budget.shares.out / 2 / int64(max(len(m.conns.all), 1))
	return int(min(max(fair, keepBuffer), highWater))
}

// consume applies the whole requests at the start of b, as many as c's turn allows, and returns how many bytes they took.
func (m *Machine) consume(c *Conn, b []byte) int {
	at := 0
	end := m.turn.work + sliceWork
	for at < len(b) && !c.closed && !c.held.request && !c.yielded && c.listing == nil {
		if owed := c.Owed(); owed > keepBuffer && owed > m.high() {
			c.out.paused = true
			break
		}
		if m.turn.work > end {
			m.turn.yield(c)
			break
		}
		m.turn.work++
		var n int
		r := &m.request
		switch c.dialect {
		case wire.Undetected:
			if !m.detect(c, b[at:]) {
				return at
			}
			continue
		case wire.Native:
			n = m.frame(c, b[at:])
		default:
			var err error
			n, err = wire.ParseRequest(c.dialect, b[at:], &m.config.Limits.Limits, &c.in.parsed, r)
			if err != nil {
				m.Refuse(c, err)
				return at
			}
			if n > 0 {
				m.offer(r, b[at:at+n], len(b)-at-n)
				m.apply(c, r)
			}
		}
		if n == 0 || c.held.request || c.yielded {
			break // the request is not all there, or stays where it is
		}
		at += n
		if m.given.taken {
			m.turn.copied(n - len(r.Value))
			return at
		}
		m.turn.copied(n)
	}
	return at
}

// detect finds out what a client speaks; VALIDATE itself is left for the parser.
func (m *Machine) detect(c *Conn, b []byte) bool {
	d := wire.Detect(b)
	if d == wire.Undetected {
		return false
	}
	m.speak(c, d)
	return true
}

func (m *Machine) speak(c *Conn, d wire.Dialect) {
	m.counts.conns[c.dialect]--
	m.counts.conns[d]++
	c.dialect = d
}

// frame applies the native frame at the start of b and returns its length, or 0 when it is not all there.
func (m *Machine) frame(c *Conn, b []byte) int {
	if c.in.skip > 0 {
		n := min(c.in.skip, len(b))
		c.in.skip -= n
		return n
	}
	id, size, err := wire.ParseFrame(b)
	if err != nil {
		m.Refuse(c, err)
		return 0
	}
	if size == 0 {
		return 0
	}
	if size > m.config.Limits.Request+wire.FrameHeader {
		// The connection stays in step: the frame's end is known, so the rest is read and forgotten.
		m.refuseRequest(c, id, cohort.Newf("tcpstore: serve", cohort.TooLarge,
			"a request of %d bytes is over the limit of %d", size, m.config.Limits.Request))
		c.in.skip = size - wire.FrameHeader
		return wire.FrameHeader
	}
	if len(b) < size {
		c.in.frame = size
		return 0
	}
	c.in.frame = 0
	r := &m.request
	if err := wire.ParseFrameRequest(b[:size], &m.config.Limits.Limits, r); err != nil {
		m.refuseRequest(c, id, err)
		return size
	}
	m.offer(r, b[:size], len(b)-size)
	m.apply(c, r)
	return size
}

// Refuse ends a connection for a reason. The driver finds it among the dirty ones.
func (m *Machine) Refuse(c *Conn, reason error) {
	if c.closed {
		return
	}
	m.counts.cuts++
	c.cut = reason
	m.Close(c)
	m.conns.touch(c)
}

func reserved(key []byte) error {
	if len(key) == 0 || key[0] != wire.ReservedPrefix[0] || !bytes.HasPrefix(key, []byte(wire.ReservedPrefix)) {
		return nil
	}
	return cohort.Newf("tcpstore: serve", cohort.InvalidArgument, "key %q is the server's own", key)
}
