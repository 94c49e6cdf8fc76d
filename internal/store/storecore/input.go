// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// input is what a client has sent of a request that is not all there, and how far that is understood.
type input struct {
	buf     []byte
	lent    int // bytes of the larger buffer that the driver continues in, see Rest
	pace    progress
	looks   int // how often Expire has found it where it was
	parsed  wire.Progress
	frame   int // native: bytes of the frame that is not all there
	skip    int // native: bytes of a refused frame that are still to come
	counted int // bytes in the machine's sum
}

func (i *input) clear() { i.buf, i.lent = nil, 0 }

// given is a buffer of requests that belongs to the machine. A large value that makes up most of it is not copied into the
// table: the buffer becomes the entry's memory.
type given struct {
	size  int    // of the buffer; 0: it is not the machine's
	data  []byte // key and value of the present request, if the table may have the buffer
	taken bool   // it has it
}

// Begins reports whether data, the next bytes that c has sent, begins with a large value to be stored: a driver should pass
// it to Take. It may be called without the driver's lock by c's loop, as long as c is not
// paused, and changes nothing.
func (c *Conn) Begins(data []byte) bool {
	return len(data) > sharedSize && wire.SetSize(c.dialect, data) > sharedSize
}

// Receive takes what a client sent. data is not kept.
func (m *Machine) Receive(c *Conn, data []byte) { m.Take(c, data, 0) }

// Take is Receive of data in a buffer of which the machine may keep and change size bytes: its capacity, or none. So a driver can copy
// what it has read before it holds a lock.
func (m *Machine) Take(c *Conn, data []byte, size int) {
	if c.closed {
		return
	}
	if len(c.in.buf) == 0 {
		used := m.consume(c, data, size)
		if m.given.taken {
			m.goOn(c, data[used:])
			return
		}
		if used < len(data) && !c.closed {
			c.in.pace.Start(m.clock.counted)
			c.in.looks = 0
			if used == 0 && size > keepBuffer {
				if m.enforce(size); c.closed {
					return
				}
				c.in.buf = data
			} else if !m.keep(c, data[used:]) {
				return
			}
		}
	} else {
		if len(data) > 0 && !m.keep(c, data) {
			return
		}
		m.goOnKept(c, len(data) > 0)
		return
	}
	m.seek(c)
}

// goOnKept goes on with what c has sent before, to which something was added or not.
func (m *Machine) goOnKept(c *Conn, more bool) {
	if more {
		c.in.pace.Moved, c.in.looks = m.clock.counted, 0
	}
	in := c.in.buf
	used := m.consume(c, in, cap(in))
	if m.given.taken {
		c.in.buf = nil
		m.settle(c)
		m.goOn(c, in[used:])
		return
	}
	if used > 0 && !c.closed {
		c.in.pace.Since = m.clock.counted
		m.turn.copied(len(c.in.buf) - used)
		c.in.buf = c.in.buf[:copy(c.in.buf, c.in.buf[used:])]
		if len(c.in.buf) == 0 && cap(c.in.buf) > keepBuffer {
			c.in.buf = nil
		}
	}
	m.seek(c)
}

// seek counts what c holds after a step and looks for room for what it has begun.
func (m *Machine) seek(c *Conn) {
	if !c.closed && (c.in.counted != 0 || len(c.in.buf) != 0 || c.Owed() != 0 || c.allowance.granted != 0) {
		m.settle(c)
		if len(c.in.buf) != 0 || c.allowance.granted != 0 {
			m.seekRoom(c)
		}
	}
}

// Rest returns how a driver should read the rest of a request that c has room for: have is the part that is here, and the whole
// goes into a buffer of size bytes, that of have or a larger one to which the driver has copied it. So neither the reading nor
// the copying needs the driver's lock. The buffer grows with what arrives; size is 0 when the driver should read as usual. It is
// asked in the step in which c was read from, and the answer holds until c is read from again.
func (m *Machine) Rest(c *Conn) (have []byte, size int) {
	if c.closed || c.Paused() || c.allowance.granted <= len(c.in.buf) {
		return nil, 0
	}
	if c.in.lent == 0 && len(c.in.buf) == cap(c.in.buf) {
		larger := min(4*cap(c.in.buf), c.allowance.granted)
		if m.enforce(larger); c.closed { // both are there for a moment
			return nil, 0
		}
		c.in.lent = larger - cap(c.in.buf)
		m.settle(c)
	}
	return c.in.buf, min(cap(c.in.buf)+c.in.lent, c.allowance.granted)
}

// Extend goes on with a request as Rest has returned: buf is what it returned, with more behind it.
func (m *Machine) Extend(c *Conn, buf []byte) {
	if c.closed {
		return
	}
	c.in.buf, c.in.lent = buf, 0
	m.goOnKept(c, true)
}

// consume applies the whole requests at the start of b, as many as c's turn allows, and returns how many bytes they
// took. Of the buffer that b is in, size bytes are the machine's: the table may have it.
func (m *Machine) consume(c *Conn, b []byte, size int) (at int) {
	m.given = given{size: size}
	if c.dialect == wire.Undetected && !m.detect(c, b) {
		return 0
	}
	for end := m.turn.work + sliceWork; at < len(b) && !m.given.taken && m.mayApply(c, end); {
		n := m.applyFirst(c, b[at:])
		if n == 0 || c.held.request || c.yielded {
			break // the request is not all there, or stays where it is
		}
		at += n
		if m.given.taken {
			n -= len(m.request.Value)
		}
		m.turn.work += uint64(n) / unitBytes //nolint:gosec // not negative
	}
	m.given.size, m.given.data = 0, nil
	return at
}

// mayApply reports whether c's next request may be applied: c has read enough of its replies, and its turn is not over before this work.
func (m *Machine) mayApply(c *Conn, end uint64) bool {
	switch owed := c.Owed(); {
	case c.closed || c.held.request || c.yielded || c.listing != nil || m.config.Relay != nil && m.stall(c):
		return false
	case owed > keepBuffer && owed > m.high():
		c.out.paused = true
		return false
	case m.turn.work > end:
		m.turn.yield(c)
		return false
	}
	m.turn.work++
	return true
}

// applyFirst applies the request at the start of b, if it is all there, and returns how many bytes are done with.
func (m *Machine) applyFirst(c *Conn, b []byte) int {
	var n int
	var whole bool
	if c.dialect == wire.Native {
		n, whole = m.frame(c, b)
	} else {
		n, whole = m.plain(c, b)
	}
	if whole {
		if m.given.size != 0 {
			m.offer(&m.request, b[:n], len(b)-n)
		}
		m.apply(c, &m.request)
	}
	return n
}

// frame reads the native frame at the start of b. It returns how many bytes are done with, 0 when the frame is not all there, and whether
// they are a request that is to be applied.
func (m *Machine) frame(c *Conn, b []byte) (n int, whole bool) {
	if c.in.skip > 0 {
		n = min(c.in.skip, len(b))
		c.in.skip -= n
		return n, false
	}
	id, size, err := wire.ParseFrame(b)
	switch {
	case err != nil:
		m.Refuse(c, err)
		return 0, false
	case size > m.config.Limits.Request+wire.FrameHeader:
		m.skipFrame(c, id, size)
		return wire.FrameHeader, false
	case size == 0 || len(b) < size:
		c.in.frame = size
		return 0, false
	}
	c.in.frame = 0
	if err := wire.ParseFrameRequest(b[:size], &m.config.Limits.Limits, &m.request); err != nil {
		m.refuseRequest(c, id, err)
		return size, false
	}
	return size, true
}

// skipFrame refuses a frame that is too large. The connection stays in step: the frame's end is known, so the rest is read and forgotten.
func (m *Machine) skipFrame(c *Conn, id uint32, size int) {
	m.refuseRequest(c, id, cohort.Newf("tcpstore: serve", cohort.TooLarge,
		"a request of %d bytes is over the limit of %d", size, m.config.Limits.Request))
	c.in.skip = size - wire.FrameHeader
}

// plain is frame for the dialects without frames.
func (m *Machine) plain(c *Conn, b []byte) (n int, whole bool) {
	n, err := wire.ParseRequest(c.dialect, b, &m.config.Limits.Limits, &c.in.parsed, &m.request)
	if err != nil {
		m.Refuse(c, err)
		return 0, false
	}
	return n, n > 0
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

// goOn goes on with the rest of a buffer that the table has taken, which is little: the bytes are copied, since the entry's
// value may grow over them.
func (m *Machine) goOn(c *Conn, rest []byte) {
	m.given = given{}
	rest = append([]byte(nil), rest...)
	m.turn.copied(len(rest))
	m.Receive(c, rest)
}

// offer says that the table may have the buffer of a request, which has left more bytes behind it.
func (m *Machine) offer(r *wire.Request, raw []byte, left int) {
	m.given.data = nil // that of a request that was refused
	if m.given.size == 0 || m.log != nil || r.Op != wire.Set || len(r.Value) <= sharedSize || m.watched(r.Key) > 0 {
		return // a change that is watched may have to wait for the next turn, and the request must stay as it is
	}
	n := len(r.Key) + len(r.Value)
	if left > n/8 || m.given.size-left > n+n/8 {
		return
	}
	// The table has key and value in one piece. Here the value's length is between them: the key moves over it.
	data := raw[len(raw)-n:]
	copy(data, r.Key)
	r.Key, r.Value = data[:len(r.Key):len(r.Key)], data[len(r.Key):len(data):len(data)]
	m.given.data = data
}

// take returns the memory of key and value of the present request if the table may have it, and nil otherwise.
func (m *Machine) take() []byte {
	data := m.given.data
	m.given.data, m.given.taken = nil, data != nil
	return data
}
