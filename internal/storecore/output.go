// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort/internal/invariants"
	"github.com/cohort-dist/cohort/internal/keytable"
	"github.com/cohort-dist/cohort/internal/pace"
)

// What a client is owed is one stream of bytes: those of output.buf, and between them large values, which replies refer to
// instead of copying them. A value that was referred to never changes (see keytable.FixedSize), and counts for the reply as a copy
// would until it is sent: also when its key has got another value meanwhile.

// output is what waits to be sent to a client.
type output struct {
	buf      []byte
	sent     int   // bytes of buf that are gone
	base     int   // bytes that were before buf and are gone
	refs     []ref // the large values
	firstRef int   // those before are sent
	refOwed  int   // bytes of refs that are not sent
	refHeld  int   // their memory
	batch    int   // of those that were there at pace.Since, how many are not gone yet
	pace     pace.Pace
	paused   bool // the client has to read before its next request is applied
	counted  int  // bytes in the machine's sum
}

// ref is a value in a client's output.
type ref struct {
	at   int    // how many of the bytes that ever were in output.buf stand before it
	data []byte // the part that is not sent yet
	held int    // the memory that it counts for
}

const (
	// sharedSize is the largest value that is copied into a reply. A larger one is referred to.
	sharedSize = keytable.FixedSize
	refCost    = 64
)

// owed is how many bytes wait to be sent.
func (o *output) owed() int { return len(o.buf) - o.sent + o.refOwed }

// begin notes that a reply is about to be put behind the output.
func (o *output) begin(now int64) {
	if o.owed() == 0 {
		o.batch = 0
		o.pace.Start(now)
	}
}

// memory is what counts against the limit.
func (o *output) memory() int { return cap(o.buf) + o.refHeld }

// pending appends to pieces what waits to be sent, up to limit bytes of it.
func (o *output) pending(pieces [][]byte, limit int) [][]byte {
	if o.refOwed == 0 {
		if rest := o.buf[o.sent:]; len(rest) > 0 {
			pieces = append(pieces, rest[:min(len(rest), limit)])
		}
		return pieces
	}
	at := o.sent
	put := func(b []byte) {
		if b = b[:min(len(b), limit)]; len(b) > 0 {
			pieces = append(pieces, b)
			limit -= len(b)
		}
	}
	for i := o.firstRef; i < len(o.refs) && limit > 0; i++ {
		r := &o.refs[i]
		put(o.buf[at : r.at-o.base])
		put(r.data)
		at = r.at - o.base
	}
	put(o.buf[at:])
	return pieces
}

// refer puts value, which must not change any more, behind the output. The memory that it keeps is that of data.
func (o *output) refer(value, data []byte) {
	held := cap(data) + refCost
	o.refs = append(o.refs, ref{at: o.base + len(o.buf), data: value, held: held})
	o.refOwed += len(value)
	o.refHeld += held
}

// referredSince is how many bytes were referred to since the output had start bytes of its own and got at least one more.
func (o *output) referredSince(start int) (n int) {
	for i := len(o.refs) - 1; i >= o.firstRef && o.refs[i].at > o.base+start; i-- {
		n += len(o.refs[i].data)
	}
	return n
}

// appendValue puts a value with its length behind the output. data is the memory of a value that never changes if it is large;
// nil if it may.
func (o *output) appendValue(value, data []byte) {
	o.buf = binary.LittleEndian.AppendUint64(o.buf, uint64(len(value)))
	if len(value) > sharedSize && data != nil {
		o.refer(value, data)
	} else {
		o.buf = append(o.buf, value...)
	}
}

// copiedSize is how many bytes of a value are copied into a reply.
func copiedSize(value []byte) int {
	if len(value) > sharedSize {
		return 0
	}
	return len(value)
}

// clear forgets what waits to be sent.
func (o *output) clear() {
	o.buf, o.sent, o.base = nil, 0, 0
	o.refs, o.firstRef, o.refOwed, o.refHeld = nil, 0, 0, 0
}

// shed takes n bytes off the front of the output.
func (o *output) shed(n int) {
	for ; o.firstRef < len(o.refs); o.firstRef++ {
		r := &o.refs[o.firstRef]
		own := min(n, r.at-o.base-o.sent)
		o.sent += own
		n -= own
		gone := min(n, len(r.data))
		r.data = r.data[gone:]
		o.refOwed -= gone
		n -= gone
		if len(r.data) > 0 {
			return
		}
		o.refHeld -= r.held
		*r = ref{}
	}
	o.sent += n
	o.refs, o.firstRef = o.refs[:0], 0
	if cap(o.refs) > keepRefs {
		o.refs = nil
	}
}

// keepRefs is how many references an idle connection has room for.
const keepRefs = 16

// compact gives back the memory of what was sent. It returns how many bytes it copied.
func (o *output) compact() (copied int) {
	if n := o.firstRef; n > 32 && n > len(o.refs)/2 {
		copied = refCost * (len(o.refs) - n)
		rest := copy(o.refs, o.refs[n:])
		clear(o.refs[rest:])
		o.refs, o.firstRef = o.refs[:rest], 0
	}
	if o.sent > len(o.buf)/2 {
		copied += len(o.buf) - o.sent
		o.base += o.sent
		o.buf, o.sent = o.buf[:copy(o.buf, o.buf[o.sent:])], 0
	}
	return copied
}

// Owed returns how many bytes wait to be sent to c.
func (c *Conn) Owed() int { return c.out.owed() }

// Pending appends to pieces what waits to be sent to c, up to limit bytes of it. The bytes stay as they are until Sent is
// called for c, whatever else is done with the machine.
func (c *Conn) Pending(pieces [][]byte, limit int) [][]byte { return c.out.pending(pieces, limit) }

// Sent tells that n bytes of what is pending are gone. Once a paused client has read enough its requests go on.
func (m *Machine) Sent(c *Conn, n int) {
	if c.closed {
		return
	}
	if invariants.Enabled {
		invariants.Check(n <= c.Owed(), "no more was sent than was owed")
	}
	c.out.shed(n)
	c.out.pace.Moved = m.clock.patience
	if c.Owed() == 0 {
		c.out.sent, c.out.batch, c.out.base = 0, 0, 0
		if cap(c.out.buf) > keepBuffer || m.budget.out > m.budget.shares.out/4 {
			c.out.buf = nil
		} else {
			c.out.buf = c.out.buf[:0]
		}
	} else {
		m.turn.copied(c.out.compact())
		if c.out.batch -= n; c.out.batch <= 0 {
			c.out.batch, c.out.pace.Since = c.Owed(), m.clock.patience
		}
	}
	if c.out.paused && c.Owed() <= m.high()/2 {
		c.out.paused = false
		m.conns.touch(c) // it may be read from again
		m.Receive(c, nil)
		return
	}
	if c.out.counted != 0 || len(c.out.buf) != 0 {
		m.settle(c)
	}
}
