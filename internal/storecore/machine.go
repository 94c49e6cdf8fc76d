// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/invariants"
	"github.com/cohort-dist/cohort/internal/linked"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
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
	// Homes is into how many parts the driver has divided the connections, each with a list of its own of those that are
	// dirty. 0 is 1, MaxHomes is the most.
	Homes int
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
	config    Config
	limits    Limits
	shares    shares
	now       int64
	patience  int64  // time as far as it counts for clients that are slow, see Tick
	work      uint64 // see turn.go
	heavy     uint64 // work of large requests in this turn
	statsText []byte // what was answered to STATS in this turn
	table     *table
	listings  []*listing // see listing.go
	queues    map[string]*queue
	waiting   map[string]*keyWaits // by the key
	barriers  map[string]*barrier
	watchers  map[string]map[*Conn]struct{}
	claims    claims
	news      []news  // what waits are to be told of their keys, see tally.go
	oldNews   bool    // some are left of earlier steps
	ready     []*wait // found to lack nothing, to be answered by wake
	woken     int     // how many of them are done with
	allWaits  linked.List[wait]
	request   wire.Request // reused, so that parsing allocates nothing
	given     given        // see input.go

	all      []*Conn // open connections
	homes    []home
	mail     uint64  // a bit for each home that has dirty connections
	later    []*Conn // those whose turn was over before their requests were, see turn.go
	crowd    line    // those that wait for room for a reply, see crowd.go
	senders  senders // those that have or wait for room for a request, see senders.go
	reliefAt int64   // when to look for slow clients next

	identity Identity
	users    int   // connections that have used the store
	left     int   // keys that the last run left behind
	leftAt   int64 // when it ended

	queueBytes int64
	waitBytes  int64 // waits, watches, claims
	inBytes    int64 // what connections hold unparsed
	outBytes   int64 // what they hold unsent
	waits      int
	opened     uint64
	conns      [wire.DialectCount]int
	ops        [wire.OpLimit]uint64
	cuts       uint64
}

// New returns a machine without keys.
func New(config Config) *Machine {
	if config.Identity == nil {
		config.Identity = func() Identity { return Identity{} }
	}
	return &Machine{
		config: config, limits: config.Limits, shares: divide(config.Limits.Memory), table: newTable(), queues: map[string]*queue{},
		waiting: map[string]*keyWaits{}, barriers: map[string]*barrier{}, watchers: map[string]map[*Conn]struct{}{},
		identity: config.Identity(), homes: make([]home, max(config.Homes, 1)),
	}
}

// home is a part of the driver with connections of its own: one of several event loops.
type home struct {
	dirty     []*Conn
	lastDirty []*Conn // the other of two buffers: one is walked while the next is filled
	conns     int
}

// Conn is one client's connection.
type Conn struct {
	// Owner and Peer belong to the driver: what it needs to find the socket, and the client's address.
	Owner any
	Peer  string

	dialect wire.Dialect
	closed  bool
	dirty   bool
	paused  bool // it has to read first
	crowded bool // its next request waits for room for the reply; see crowd.go
	starved bool // it is not read from until there is room for its request; see senders.go
	yielded bool // its turn was over before its requests were; see turn.go
	greeted bool // VALIDATE was seen
	user    bool // it has used the store, see identity.go
	knows   bool // it was told the identity
	stale   bool // the store it knows is gone
	cut     error
	pos     int // its place in the list of all connections
	home    int

	out        []byte
	sent       int   // bytes of out that are gone
	outBase    int   // bytes that were before out and are gone
	refs       []ref // the large values of the output, see output.go
	firstRef   int   // those before are sent
	refOwed    int   // bytes of refs that are not sent
	refHeld    int   // their memory
	owed       int   // of those that were there at outSince, how many are not gone yet
	outSince   int64
	outMoved   int64 // when some were sent last
	in         []byte
	lent       int   // bytes of the larger buffer that the driver continues in, see Rest
	inSince    int64 // when the unfinished request began
	inMoved    int64 // when more of it came last
	looks      int   // how often Expire has found it where it was
	parsed     wire.Progress
	frame      int // native: bytes of the frame that is not all there
	skip       int // bytes of a refused native frame that are still to come
	countedIn  int // bytes of in and out in the machine's sums
	countedOut int
	granted    int // bytes that the unfinished request may take, see senders.go
	wants      int // when starved: bytes that it needs
	listing    *listing

	inCrowd bool    // waits for room for a reply, see crowd.go
	needs   int     // when crowded: bytes of the reply
	held    []*wait // those that are over

	waits     linked.List[wait] // all open ones
	byID      map[uint32]*wait
	nWaits    int
	waitBytes int64 // of waits, watches and claims
	watches   map[string]struct{}
	claims    []string // names it holds
	back      readBack
}

// attention is how often a driver looks at the machine, at least, while clients wait for room.
const attention = int64(100 * time.Millisecond)

// Tick begins a turn and tells the machine the time, in nanoseconds of the driver's choice.
//
// A turn counts for at most as long as a driver sleeps while somebody waits. If more time has passed, the process that serves
// got none of it, and what clients sent and read meanwhile is not known yet: it is not held against them. A driver that looks
// at its clock before it is its turn may be a little behind another part of it; then no time has passed.
func (m *Machine) Tick(now int64) {
	if passed := now - m.now; passed > 0 {
		m.patience += min(passed, attention)
		m.now = now
	}
	m.heavy, m.statsText = 0, nil
}

// Open adds a connection that is at home in the first part of the driver.
func (m *Machine) Open(peer string, owner any) *Conn { return m.OpenAt(0, peer, owner) }

// OpenAt adds a connection that is at home in a part of the driver.
func (m *Machine) OpenAt(home int, peer string, owner any) *Conn {
	m.opened++
	m.conns[wire.Undetected]++
	c := &Conn{Peer: peer, Owner: owner, pos: len(m.all), home: home}
	m.all = append(m.all, c)
	m.homes[home].conns++
	return c
}

// Conns returns the number of open connections.
func (m *Machine) Conns() int { return len(m.all) }

// Peers returns the addresses of open connections, at most as many as asked for.
func (m *Machine) Peers(most int) []string {
	peers := make([]string, 0, min(most, len(m.all)))
	for _, c := range m.all[:cap(peers)] {
		peers = append(peers, c.Peer)
	}
	return peers
}

// Quietest returns the home with the fewest connections.
func (m *Machine) Quietest() int {
	least := 0
	for i := range m.homes {
		if m.homes[i].conns < m.homes[least].conns {
			least = i
		}
	}
	return least
}

// Close removes a connection that is gone, with its waits and watches. It is idempotent.
func (m *Machine) Close(c *Conn) {
	if c.closed {
		return
	}
	c.closed = true
	m.conns[c.dialect]--
	m.homes[c.home].conns--
	m.dropWaits(c)
	m.unwatch(c)
	m.unclaim(c)
	c.in, c.lent = nil, 0
	c.clearOutput()
	m.dropListing(c)
	m.settle(c)
	m.leaveCrowd(c)
	m.leaveSenders(c)
	last := m.all[len(m.all)-1]
	m.all[c.pos], last.pos = last, c.pos
	m.all[len(m.all)-1] = nil
	m.all = m.all[:len(m.all)-1]
	m.leave(c)
	if invariants.Enabled && len(m.all) < checkedConns && len(m.claims.byName) < checkedConns {
		m.audit()
	}
}

// Dirty returns the connections of the first home that have something to send or are to be closed, and forgets them. The
// slice is valid until the call after the next one.
func (m *Machine) Dirty() []*Conn { return m.DirtyAt(0) }

// DirtyAt is Dirty for a home. No connection is in the list twice, so that is bounded by their number.
func (m *Machine) DirtyAt(home int) []*Conn {
	h := &m.homes[home]
	d := h.dirty
	h.dirty, h.lastDirty = h.lastDirty[:0], d
	m.mail &^= 1 << home
	for _, c := range d {
		c.dirty = false
	}
	return d
}

// Mail returns a bit for each home that has dirty connections.
func (m *Machine) Mail() uint64 { return m.mail }

// Cut returns why the connection is to be closed, or nil.
func (c *Conn) Cut() error { return c.cut }

// Dialect returns what the connection speaks.
func (c *Conn) Dialect() wire.Dialect { return c.dialect }

// Paused reports that the client should not be read from: it has too much unread output, or has to wait for room or for
// its turn. It is among the dirty ones when that has changed.
func (c *Conn) Paused() bool {
	return c.paused || c.crowded || c.starved || c.yielded || c.listing != nil
}

// high is the output at which a client's requests wait: all clients together may not take more than half of the share.
func (m *Machine) high() int {
	fair := m.shares.out / 2 / int64(max(len(m.all), 1))
	return int(min(max(fair, keepBuffer), highWater))
}

// consume applies the whole requests at the start of b, as many as c's turn allows, and returns how many bytes they took.
func (m *Machine) consume(c *Conn, b []byte) int {
	at := 0
	end := m.work + sliceWork
	for at < len(b) && !c.closed && !c.crowded && !c.yielded && c.listing == nil {
		if owed := c.Owed(); owed > keepBuffer && owed > m.high() {
			c.paused = true
			break
		}
		if m.work > end {
			m.yield(c)
			break
		}
		m.work++
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
			n, err = wire.ParseRequest(c.dialect, b[at:], &m.limits.Limits, &c.parsed, r)
			if err != nil {
				m.Refuse(c, err)
				return at
			}
			if n > 0 {
				m.offer(r, b[at:at+n], len(b)-at-n)
				m.apply(c, r)
			}
		}
		if n == 0 || c.crowded || c.yielded {
			break // the request is not all there, or stays where it is
		}
		at += n
		if m.given.taken {
			m.copied(n - len(r.Value))
			return at
		}
		m.copied(n)
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
	m.conns[c.dialect]--
	m.conns[d]++
	c.dialect = d
}

// frame applies the native frame at the start of b and returns its length, or 0 when it is not all there.
func (m *Machine) frame(c *Conn, b []byte) int {
	if c.skip > 0 {
		n := min(c.skip, len(b))
		c.skip -= n
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
	if size > m.limits.Request+wire.FrameHeader {
		// The connection stays in step: the frame's end is known, so the rest is read and forgotten.
		m.refuseRequest(c, id, dist.Newf("tcpstore: serve", dist.TooLarge,
			"a request of %d bytes is over the limit of %d", size, m.limits.Request))
		c.skip = size - wire.FrameHeader
		return wire.FrameHeader
	}
	if len(b) < size {
		c.frame = size
		return 0
	}
	c.frame = 0
	r := &m.request
	if err := wire.ParseFrameRequest(b[:size], &m.limits.Limits, r); err != nil {
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
	m.cuts++
	c.cut = reason
	m.Close(c)
	m.touch(c)
}

// Touch puts c among the dirty ones, for a driver that has something to do with it.
func (m *Machine) Touch(c *Conn) { m.touch(c) }

// touch puts c on the list of connections that the driver must look at.
func (m *Machine) touch(c *Conn) {
	if !c.dirty {
		c.dirty = true
		h := &m.homes[c.home]
		h.dirty = append(h.dirty, c)
		m.mail |= 1 << c.home
	}
}

func reserved(key []byte) error {
	if len(key) == 0 || key[0] != wire.ReservedPrefix[0] || !bytes.HasPrefix(key, []byte(wire.ReservedPrefix)) {
		return nil
	}
	return dist.Newf("tcpstore: serve", dist.InvalidArgument, "key %q is the server's own", key)
}
