// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort/internal/invariants"
)

// What a client is owed is one stream of bytes: those of Conn.out, and between them large values, which replies refer to
// instead of copying them. A value that was referred to never changes (see table.set), and counts for the reply as a copy
// would until it is sent: also when its key has got another value meanwhile.

// ref is a value in a client's output.
type ref struct {
	at   int    // how many of the bytes that ever were in Conn.out stand before it
	data []byte // the part that is not sent yet
	held int    // the memory that it counts for
}

const (
	// sharedSize is the largest value that is copied into a reply. A larger one is referred to.
	sharedSize = keepBuffer
	refCost    = 64
)

// Owed returns how many bytes wait to be sent to c.
func (c *Conn) Owed() int { return len(c.out) - c.sent + c.refOwed }

// outMemory is the memory of c's output.
func (c *Conn) outMemory() int { return cap(c.out) + c.refHeld }

// Pending appends to pieces what waits to be sent to c, up to limit bytes of it. The bytes stay as they are until Sent is
// called for c, whatever else is done with the machine.
func (c *Conn) Pending(pieces [][]byte, limit int) [][]byte {
	if c.refOwed == 0 {
		if rest := c.out[c.sent:]; len(rest) > 0 {
			pieces = append(pieces, rest[:min(len(rest), limit)])
		}
		return pieces
	}
	at := c.sent
	put := func(b []byte) {
		if b = b[:min(len(b), limit)]; len(b) > 0 {
			pieces = append(pieces, b)
			limit -= len(b)
		}
	}
	for i := c.firstRef; i < len(c.refs) && limit > 0; i++ {
		r := &c.refs[i]
		put(c.out[at : r.at-c.outBase])
		put(r.data)
		at = r.at - c.outBase
	}
	put(c.out[at:])
	return pieces
}

// refer puts value, which must not change any more, behind c's output. The memory that it keeps is that of data.
func (c *Conn) refer(value, data []byte) {
	held := cap(data) + refCost
	c.refs = append(c.refs, ref{at: c.outBase + len(c.out), data: value, held: held})
	c.refOwed += len(value)
	c.refHeld += held
}

// referredSince is how many bytes were referred to since the output had start bytes of its own and got at least one more.
func (c *Conn) referredSince(start int) (n int) {
	for i := len(c.refs) - 1; i >= c.firstRef && c.refs[i].at > c.outBase+start; i-- {
		n += len(c.refs[i].data)
	}
	return n
}

// appendValue puts a value with its length behind c's output. data is the memory of a value that never changes if it is large;
// nil if it may.
func (c *Conn) appendValue(value, data []byte) {
	c.out = binary.LittleEndian.AppendUint64(c.out, uint64(len(value)))
	if len(value) > sharedSize && data != nil {
		c.refer(value, data)
	} else {
		c.out = append(c.out, value...)
	}
}

// copiedSize is how many bytes of a value are copied into a reply.
func copiedSize(value []byte) int {
	if len(value) > sharedSize {
		return 0
	}
	return len(value)
}

// clearOutput forgets what c is owed.
func (c *Conn) clearOutput() {
	c.out, c.sent, c.outBase = nil, 0, 0
	c.refs, c.firstRef, c.refOwed, c.refHeld = nil, 0, 0, 0
}

// shed takes n bytes off the front of c's output.
func (c *Conn) shed(n int) {
	for ; c.firstRef < len(c.refs); c.firstRef++ {
		r := &c.refs[c.firstRef]
		own := min(n, r.at-c.outBase-c.sent)
		c.sent += own
		n -= own
		gone := min(n, len(r.data))
		r.data = r.data[gone:]
		c.refOwed -= gone
		n -= gone
		if len(r.data) > 0 {
			return
		}
		c.refHeld -= r.held
		*r = ref{}
	}
	c.sent += n
	c.refs, c.firstRef = c.refs[:0], 0
	if cap(c.refs) > keepRefs {
		c.refs = nil
	}
}

// keepRefs is how many references an idle connection has room for.
const keepRefs = 16

// compact gives back the memory of what was sent. It returns how many bytes it copied.
func (c *Conn) compact() (copied int) {
	if n := c.firstRef; n > 32 && n > len(c.refs)/2 {
		copied = refCost * (len(c.refs) - n)
		rest := copy(c.refs, c.refs[n:])
		clear(c.refs[rest:])
		c.refs, c.firstRef = c.refs[:rest], 0
	}
	if c.sent > len(c.out)/2 {
		copied += len(c.out) - c.sent
		c.outBase += c.sent
		c.out, c.sent = c.out[:copy(c.out, c.out[c.sent:])], 0
	}
	return copied
}

// Sent tells that n bytes of what is pending are gone. Once a paused client has read enough its requests go on.
func (m *Machine) Sent(c *Conn, n int) {
	if c.closed {
		return
	}
	if invariants.Enabled {
		invariants.Check(n <= c.Owed(), "no more was sent than was owed")
	}
	c.shed(n)
	c.outMoved = m.patience
	if c.Owed() == 0 {
		c.sent, c.owed, c.outBase = 0, 0, 0
		if cap(c.out) > keepBuffer || m.outBytes > m.shares.out/4 {
			c.out = nil
		} else {
			c.out = c.out[:0]
		}
	} else {
		m.copied(c.compact())
		if c.owed -= n; c.owed <= 0 {
			c.owed, c.outSince = c.Owed(), m.patience
		}
	}
	if c.paused && c.Owed() <= m.high()/2 {
		c.paused = false
		m.touch(c) // it may be read from again
		m.Receive(c, nil)
		return
	}
	if c.countedOut != 0 || len(c.out) != 0 {
		m.settle(c)
	}
}
