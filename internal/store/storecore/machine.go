// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"container/list"

	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/ilist"
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
	// Logged makes a machine whose changes have to be logged before they are done: see propose.go.
	Logged bool
	// Server names this process among all that have ever served what the log holds. Not needed without a log.
	Server uint64
	// Base is what a log is in: with another one the same log gives another identity, which is how a store whose log was damaged and cut
	// off is another store. The identities in the log are masked by it.
	Base Identity
	// Barrier has reads wait until the driver confirms that no other process has applied more: see Machine.Reads.
	Barrier bool
	// Loops is into how many parts the driver has divided the connections, each with a list of its own of those that are
	// dirty. 0 is 1, MaxLoops is the most.
	Loops int
	// Silent bounds the connections that have sent nothing, beyond as many as each address has others; 0: they are not bounded.
	Silent int
	// Relay answers requests in the place of the machine, which then holds no keys.
	Relay Relay
	// Observe, when set, is called after every request that was applied.
	Observe func(c *Conn, r *wire.Request, err error)
}

// MaxLoops is the largest number of loops.
const MaxLoops = 64

const (
	// highWater is the output at which a client's further requests wait until it has read some of it, as long as there
	// are not so many clients that each has to do with less.
	highWater = 256 << 10
	// keepBuffer is the largest buffer that an idle connection keeps, and the largest reply that never waits for room.
	keepBuffer = 4 << 10
)

// Machine is the server's state. See the package comment for how it is driven.
type Machine struct {
	config     Config
	operations *[wire.OpLimit]operation
	clock      clock
	turn       turn
	admission  admission
	conns      roster
	silent     silentConns

	// What the store holds.
	table    *keytable.Table
	listings []*listing // answers that are made in parts
	queues   queues
	run      run

	// Who is notified when something changes.
	waits      waits
	watchers   map[string]map[*Conn]struct{} // by the key
	keyChanges []keyChange                   // what not all watchers have been notified of
	claims     claims

	log   *changelog // nil: changes are done at once
	image *Image     // that is being made

	sessions sessions
	away     ilist.List[session] // those without a connection, the longest ago first
	ending   int64               // what those take whose end is under way to the log
	recorder recorder
	stalled  []*Conn // they wait for the relay

	request wire.Request // reused, so that parsing allocates nothing
	given   given
	counts  counts
}

// New returns a machine without keys.
func New(config Config) *Machine {
	if config.Identity == nil {
		config.Identity = func() Identity { return Identity{} }
	}
	var log *changelog
	first := config.Base
	if config.Logged {
		log = newChangelog()
	} else {
		first = config.Identity()
	}
	return &Machine{
		log: log, config: config, operations: operations(), admission: newAdmission(config.Limits.Memory), conns: newRoster(config.Loops),
		silent: silentConns{byHost: map[string]*hostConns{}},
		table:  keytable.New(), queues: queues{byKey: map[string]*queue{}}, run: run{identity: first},
		waits: newWaits(), watchers: map[string]map[*Conn]struct{}{},
	}
}

// Serve sets what a machine that was restored is served with.
func (m *Machine) Serve(config Config) {
	if config.Identity == nil {
		config.Identity = m.config.Identity
	}
	base := m.config.Base
	m.config, m.conns = config, newRoster(config.Loops)
	m.config.Base = base
	m.admission.shares = divide(config.Limits.Memory)
}

// Conn is one client's connection.
type Conn struct {
	// Owner and Peer belong to the driver: what it needs to find the socket, and the client's address.
	Owner any
	Peer  string

	dialect  wire.Dialect
	silent   *list.Element // among the silent ones of its address, nil once it has sent something
	closed   bool
	cut      error // why the machine has closed it
	yielded  bool  // its turn was over before its requests were; see turn.go
	deferred bool  // its next request had to wait for a turn that has room for it
	place    place
	standing standing

	in        input
	allowance allowance
	out       output
	held      held
	listing   *listing // the answer that is being made

	session  *session
	relayed  relayed
	holdings holdings
	back     readBack
	logged   connLog
	poll     pollWatch
}

// Tick begins a turn and gives the machine the time, in nanoseconds of the driver's choice. A driver that looks at its clock
// before it is its turn may be a little behind another part of it; then no time has passed.
//
// A turn counts for at most as long as a driver sleeps while a client waits. If more time has passed, the process that serves got none of
// it, and what clients sent and read meanwhile is not known yet: it is not held against them.
func (m *Machine) Tick(now int64) {
	if passed := now - m.clock.now; passed > 0 {
		m.clock.counted += min(passed, maxTick)
		m.clock.now = now
	}
	m.turn.heavy, m.turn.stats, m.turn.passed = 0, nil, false
}

// Open adds a connection of the first loop.
func (m *Machine) Open(peer string, owner any) *Conn { return m.OpenAt(0, peer, owner) }

// OpenAt adds a connection of a loop of the driver.
func (m *Machine) OpenAt(loop int, peer string, owner any) *Conn {
	m.counts.opened++
	m.counts.conns[wire.Undetected]++
	c := &Conn{Peer: peer, Owner: owner}
	m.conns.add(c, loop)
	m.silent.opened(c)
	m.limitSilent()
	return c
}

// Close removes a connection that is gone, with its waits and watches. It is idempotent.
func (m *Machine) Close(c *Conn) {
	if c.closed {
		return
	}
	c.closed = true
	m.counts.conns[c.dialect]--
	m.silent.closed(c)
	m.detach(c)
	m.dropRelayed(c)
	m.dropWaits(c)
	m.unwatch(c)
	m.unclaim(c)
	c.in.clear()
	c.out.Clear()
	m.dropListing(c)
	if c.holdings.image != nil {
		c.holdings.image.End()
	}
	m.settle(c)
	m.leaveReplies(c)
	m.leaveRequests(c)
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
	return c.out.paused || c.held.request || c.allowance.starved || c.yielded || c.listing != nil ||
		(c.relayed.blocked || c.relayed.stalled) && len(c.in.buf) > 0
}

// high is the output at which a client's requests wait: all clients together may not take more than half of the share.
func (m *Machine) high() int {
	fair := m.admission.shares.out / 2 / int64(max(len(m.conns.all), 1))
	return int(min(max(fair, keepBuffer), highWater))
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

// checkedConns bounds the machines that are checked: it takes a look at every connection and claim.
const checkedConns = 64

// audit compares the machine's sums with what they are sums of.
func (m *Machine) audit() {
	var in, out, waiting int64
	var granted int64
	waits, users, active := 0, 0, 0
	for i, c := range m.conns.all {
		invariants.Check(c.place.pos == i && !c.closed, "a connection is open and stands at its place")
		in, out, waiting = in+int64(c.in.counted), out+int64(c.out.counted), waiting+c.holdings.bytes
		waits += c.holdings.nWaits
		if granted += int64(c.allowance.granted); c.allowance.granted > 0 && !c.allowance.starved {
			active++
		}
		if c.standing.user {
			users++
		}
		invariants.Check(!c.standing.user || !c.standing.stale, "who knows another store does not use this one")
	}
	for _, claim := range m.claims.byName {
		if claim.conn == nil {
			waiting += claim.cost
		}
	}
	invariants.Check(m.admission.in == in, "the requests that are not all there are counted")
	invariants.Check(m.admission.granted == granted && m.admission.active == active, "the room that was granted is counted")
	invariants.Check(m.admission.out == out, "the replies that are not sent are counted")
	invariants.Check(m.admission.waits == waiting, "waits, watches and claims are counted")
	beyond := 0
	for _, h := range m.silent.byHost {
		beyond += h.beyond()
	}
	invariants.Check(m.silent.beyond == beyond, "silent connections are counted")
	invariants.Check(m.waits.n == waits && m.run.users == users, "waits and users are counted")
	invariants.Check((m.waits.n == 0) == (m.waits.all.First() == nil), "the list of all waits holds them")
	invariants.Check(m.table.Len() >= 0 && m.table.Bytes() >= 0 && m.queues.bytes >= 0, "no sum is negative")
}
