// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"

	"github.com/cohort-dist/cohort/dist"
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
	// Observe, when set, is called after every request that was applied.
	Observe func(c *Conn, r *wire.Request, err error)
}

const (
	// highWater is the output at which a client's further requests wait until it has read some of it.
	highWater = 256 << 10
	// keepBuffer is the largest buffer that an idle connection keeps.
	keepBuffer = 4 << 10
	// bufferShare is the part of the memory limit that buffers of connections may take, so that clients that send half
	// requests cannot keep others from storing.
	bufferShare = 4
	// smallShare is the part that they may take with small requests and replies.
	smallShare = 2
)

// Machine is the server's state. See the package comment for how it is driven.
type Machine struct {
	config    Config
	limits    Limits
	now       int64
	table     *table
	queues    map[string]*queue
	waiting   map[string]*waitList // by the key they lack
	barriers  map[string]*waitList
	watchers  map[string][]*Conn
	claims    map[string]*claim
	dirty     []*Conn
	lastDirty []*Conn      // the other of two buffers: one is walked while the next is filled
	request   wire.Request // reused, so that parsing allocates nothing
	crowd     []*Conn      // those whose reply has no room, in the order in which they asked
	crowdGone int          // how many of them are closed

	all      []*Conn // open connections
	identity Identity
	users    int   // of them those that have used the store
	left     int   // keys that the last run left behind
	leftAt   int64 // when it ended

	extraBytes  int64 // queues, waits, watches
	bufferBytes int64 // what connections hold unparsed or unsent
	waits       int
	opened      uint64
	conns       [wire.DialectCount]int
	ops         [wire.OpLimit]uint64
	cuts        uint64
}

// New returns a machine without keys.
func New(config Config) *Machine {
	if config.Identity == nil {
		config.Identity = func() Identity { return Identity{} }
	}
	return &Machine{
		config: config, limits: config.Limits, table: newTable(), queues: map[string]*queue{},
		waiting: map[string]*waitList{}, barriers: map[string]*waitList{}, watchers: map[string][]*Conn{},
		identity: config.Identity(),
	}
}

// Conn is one client's connection.
type Conn struct {
	// Owner and Peer belong to the driver: what it needs to find the socket, and the client's address.
	Owner any
	Peer  string

	dialect wire.Dialect
	closed  bool
	dirty   bool
	paused  bool
	crowded bool // its next request waits for room in the buffers; see crowd.go
	greeted bool // VALIDATE was seen
	user    bool // it has used the store, see identity.go
	knows   bool // it was told the identity
	stale   bool // the store it knows is gone
	cut     error
	pos     int // its place in the list of all connections

	out     []byte
	sent    int // bytes of out that are gone
	in      []byte
	parsed  wire.Progress
	skip    int // bytes of a refused native frame that are still to come
	counted int // bytes of in and out in the machine's sum
	needs   int // when crowded: bytes of the reply
	since   int64

	waits   *wait // all open ones
	byID    map[uint32]*wait
	nWaits  int
	watches []string
	claims  []string // names it holds
}

// Tick tells the machine the time, in nanoseconds of the driver's choice.
func (m *Machine) Tick(now int64) { m.now = now }

// Open adds a connection.
func (m *Machine) Open(peer string, owner any) *Conn {
	m.opened++
	m.conns[wire.Undetected]++
	c := &Conn{Peer: peer, Owner: owner, pos: len(m.all)}
	m.all = append(m.all, c)
	return c
}

// Close removes a connection that is gone, with its waits and watches. It is idempotent.
func (m *Machine) Close(c *Conn) {
	if c.closed {
		return
	}
	c.closed = true
	m.conns[c.dialect]--
	m.dropWaits(c)
	m.unwatch(c)
	m.unclaim(c)
	c.in, c.out, c.sent = nil, nil, 0
	m.settle(c)
	m.leaveCrowd(c)
	last := m.all[len(m.all)-1]
	m.all[c.pos], last.pos = last, c.pos
	m.all[len(m.all)-1] = nil
	m.all = m.all[:len(m.all)-1]
	m.leave(c)
}

// Dirty returns the connections that have something to send or are to be closed, and forgets them. The slice is valid
// until the call after the next one.
func (m *Machine) Dirty() []*Conn {
	d := m.dirty
	m.dirty, m.lastDirty = m.lastDirty[:0], d
	for _, c := range d {
		c.dirty = false
	}
	return d
}

// Pending returns what waits to be sent to c.
func (c *Conn) Pending() []byte { return c.out[c.sent:] }

// Cut returns why the connection is to be closed, or nil.
func (c *Conn) Cut() error { return c.cut }

// Dialect returns what the connection speaks.
func (c *Conn) Dialect() wire.Dialect { return c.dialect }

// Paused reports that the client has too much unread output, or that its next reply has to wait for room: it should not
// be read from until Sent or Admit has changed that.
func (c *Conn) Paused() bool { return c.paused || c.crowded }

// Sent tells that n bytes of what is pending are gone. Once a paused client has read enough its requests go on.
func (m *Machine) Sent(c *Conn, n int) {
	if c.closed {
		return
	}
	c.sent += n
	if c.sent == len(c.out) {
		c.sent = 0
		if cap(c.out) > keepBuffer {
			c.out = nil
		} else {
			c.out = c.out[:0]
		}
	} else if c.sent > len(c.out)/2 {
		c.out = c.out[:copy(c.out, c.out[c.sent:])]
		c.sent = 0
	}
	if c.paused && len(c.out)-c.sent <= highWater/2 {
		c.paused = false
		m.Receive(c, nil)
		return
	}
	if c.counted != 0 || len(c.out) != 0 {
		m.settle(c)
	}
}

// Receive takes what a client sent. data is not kept.
func (m *Machine) Receive(c *Conn, data []byte) {
	if c.closed {
		return
	}
	if len(c.in) == 0 {
		if used := m.consume(c, data); used < len(data) && !c.closed {
			if !m.mayBuffer(c, len(data)-used) {
				return
			}
			c.in = append(c.in[:0], data[used:]...)
		}
	} else {
		if len(data) > 0 && !m.mayBuffer(c, len(data)) {
			return
		}
		c.in = append(c.in, data...)
		if used := m.consume(c, c.in); used > 0 && !c.closed {
			c.in = c.in[:copy(c.in, c.in[used:])]
			if len(c.in) == 0 && cap(c.in) > keepBuffer {
				c.in = nil
			}
		}
	}
	if !c.closed && (c.counted != 0 || len(c.in) != 0 || len(c.out) != 0) {
		m.settle(c)
	}
}

// mayBuffer refuses a client whose n bytes more would be over what the buffers of all clients may take. The small request
// of a client that waits for room is kept as long as small replies are.
func (m *Machine) mayBuffer(c *Conn, n int) bool {
	share := m.limits.Memory / bufferShare
	if c.crowded && len(c.in)+n <= keepBuffer {
		share = m.limits.Memory / smallShare
	}
	if m.bufferBytes+int64(n) <= share {
		return true
	}
	m.Refuse(c, m.buffersFull())
	return false
}

// settle brings the sum of all buffers up to date.
func (m *Machine) settle(c *Conn) {
	held := cap(c.in) + cap(c.out)
	m.bufferBytes += int64(held - c.counted)
	c.counted = held
}

// consume applies the whole requests at the start of b and returns how many bytes they took.
func (m *Machine) consume(c *Conn, b []byte) int {
	at := 0
	for at < len(b) && !c.closed && !c.crowded {
		if len(c.out)-c.sent > highWater {
			c.paused = true
			break
		}
		var n int
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
			r := &m.request
			n, err = wire.ParseRequest(c.dialect, b[at:], &m.limits.Limits, &c.parsed, r)
			if err != nil {
				m.Refuse(c, err)
				return at
			}
			if n > 0 {
				m.apply(c, r)
				if c.crowded {
					return at // the request stays where it is
				}
			}
		}
		if n == 0 {
			break
		}
		at += n
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
		return 0
	}
	r := &m.request
	if err := wire.ParseFrameRequest(b[:size], &m.limits.Limits, r); err != nil {
		m.refuseRequest(c, id, err)
		return size
	}
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

// touch puts c on the list of connections that the driver must look at.
func (m *Machine) touch(c *Conn) {
	if !c.dirty {
		c.dirty = true
		m.dirty = append(m.dirty, c)
	}
}

// memory is what counts against the limit.
func (m *Machine) memory() int64 { return m.table.bytes + m.extraBytes + m.bufferBytes }

// room reports an error when n more bytes would be over the memory limit.
func (m *Machine) room(n int) error {
	if m.memory()+int64(n) <= m.limits.Memory {
		return nil
	}
	return dist.Newf("tcpstore: serve", dist.Exhausted, "the store holds %d of %d bytes: delete keys or raise the memory limit",
		m.memory(), m.limits.Memory)
}

func reserved(key []byte) error {
	if len(key) == 0 || key[0] != wire.ReservedPrefix[0] || !bytes.HasPrefix(key, []byte(wire.ReservedPrefix)) {
		return nil
	}
	return dist.Newf("tcpstore: serve", dist.InvalidArgument, "key %q is the server's own", key)
}
