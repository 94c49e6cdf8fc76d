// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// output is what waits to be sent to a client. Replies refer to large values instead of copying them, since those never change in the
// table (see keytable.FixedSize). Until it is sent a value counts for the reply, also when its key has got another one meanwhile.
type output struct {
	sendBuffer

	batch   int // of those that were there at pace.Since, how many bytes are not gone yet
	pace    progress
	paused  bool // the client has to read before its next request is applied
	counted int  // bytes in the machine's sum
}

// sharedSize is the largest value that is copied into a reply. A larger one is referred to.
const sharedSize = keytable.FixedSize

// begin notes that a reply is about to be put behind the output.
func (o *output) begin(now int64) {
	if o.Owed() == 0 {
		o.batch = 0
		o.pace = progress{Since: now, Moved: now}
	}
}

// appendValue puts a value with its length behind the output. data is the memory of a value that never changes if it is large;
// nil if it may.
func (o *output) appendValue(value, data []byte) {
	o.Buf = binary.LittleEndian.AppendUint64(o.Buf, uint64(len(value)))
	if len(value) > sharedSize && data != nil {
		o.Refer(value, data)
	} else {
		o.Buf = append(o.Buf, value...)
	}
}

// copiedSize is how many bytes of a value are copied into a reply.
func copiedSize(value []byte) int {
	if len(value) > sharedSize {
		return 0
	}
	return len(value)
}

// Owed returns how many bytes wait to be sent to c.
func (c *Conn) Owed() int { return c.out.Owed() }

// Pending appends to pieces what waits to be sent to c, up to limit bytes of it. The bytes stay as they are until Sent is
// called for c, whatever else is done with the machine.
func (c *Conn) Pending(pieces [][]byte, limit int) [][]byte { return c.out.Pending(pieces, limit) }

// Sent notes that n bytes of what is pending were sent. Once a paused client has read enough its requests go on.
func (m *Machine) Sent(c *Conn, n int) {
	if c.closed {
		return
	}
	if invariants.Enabled {
		invariants.Check(n <= c.Owed(), "no more was sent than was owed")
	}
	c.out.Shed(n)
	c.out.pace.Moved = m.clock.counted
	if c.Owed() == 0 {
		c.out.batch = 0
		if cap(c.out.Buf) > keepBuffer || m.admission.out > m.admission.shares.out/4 {
			c.out.Buf = nil
		}
	} else {
		m.turn.copied(c.out.Compact())
		if c.out.batch -= n; c.out.batch <= 0 {
			c.out.batch, c.out.pace.Since = c.Owed(), m.clock.counted
		}
	}
	if c.out.paused && c.Owed() <= m.high()/2 {
		c.out.paused = false
		m.conns.touch(c) // it may be read from again
		m.Receive(c, nil)
		return
	}
	if c.out.counted != 0 || c.Owed() != 0 {
		m.settle(c)
	}
}

// begin starts a reply and end completes it: a frame in the native dialect, nothing in the others.
func (m *Machine) begin(c *Conn, id uint32) int {
	c.out.begin(m.clock.counted)
	start := len(c.out.Buf)
	if c.dialect == wire.Native {
		c.out.Buf = append(wire.BeginFrame(c.out.Buf, id), 0)
	}
	return start
}

// beginLarge is begin for a reply of n bytes that replyFits has room for: no more memory is taken than it needs.
func (m *Machine) beginLarge(c *Conn, id uint32, n int) int {
	if n > keepBuffer {
		c.out.Buf = grow(c.out.Buf, n+wire.FrameHeader+1)
	}
	return m.begin(c, id)
}

func (m *Machine) end(c *Conn, start int) {
	if c.dialect == wire.Native {
		referred := 0
		if c.out.refOwed > 0 {
			referred = c.out.ReferredSince(start)
		}
		c.out.Buf = wire.EndFrame(c.out.Buf, start, referred)
	}
	m.conns.touch(c)
	if m.recorder.conn != nil {
		m.remember(c, start)
	}
	m.turn.work += uint64(len(c.out.Buf)-start) / unitBytes //nolint:gosec // not negative
	// c may be one of many that are answered in this step: the next must see what this one took
	m.settle(c)
	m.enforce(0)
	if c.Owed() > m.config.Limits.Output {
		m.boundOutput(c)
	}
}

// boundOutput cuts a client that is owed more than one may be.
func (m *Machine) boundOutput(c *Conn) {
	if owed := c.Owed(); owed > m.config.Limits.Output {
		m.Refuse(c, cohort.Newf("tcpstore: serve", cohort.Exhausted,
			"the client does not read: %d bytes wait to be sent to it, the limit is %d", owed, m.config.Limits.Output))
	}
}

// ack confirms a write, which only native clients get.
func (m *Machine) ack(c *Conn, id uint32) {
	if c.dialect == wire.Native {
		m.end(c, m.begin(c, id))
	}
}

func (m *Machine) replyByte(c *Conn, id uint32, b byte) {
	start := m.begin(c, id)
	c.out.Buf = append(c.out.Buf, b)
	m.end(c, start)
}

func (m *Machine) replyInt(c *Conn, id uint32, n int64) {
	start := m.begin(c, id)
	c.out.Buf = wire.AppendInt(c.out.Buf, n)
	m.end(c, start)
}

func (m *Machine) replyBytes(c *Conn, id uint32, value []byte) {
	start := m.beginLarge(c, id, len(value)+8)
	c.out.Buf = wire.AppendBytes(c.out.Buf, value)
	m.end(c, start)
}

// replyValue is replyBytes with the value of an entry.
func (m *Machine) replyValue(c *Conn, id uint32, e *keytable.Entry) {
	start := m.beginLarge(c, id, copiedSize(e.Value())+8)
	c.out.appendValue(e.Value(), e.Data())
	m.end(c, start)
}

// replyFits reports an error when a reply of n bytes is more than a client may be owed, when it has to wait for room or for
// the next turn, or when there will never be room for it. Large replies wait first, so that small ones are served as long as
// possible.
func (m *Machine) replyFits(n int) error { return m.fitsBeside(m.admission.out, n) }

// fitsBeside is replyFits where others are owed what takes so many bytes.
func (m *Machine) fitsBeside(others int64, n int) error {
	if n <= keepBuffer {
		return nil
	}
	others += m.admission.promised
	share := m.admission.shares.out
	if n > highWater {
		share -= share / 4
	}
	switch {
	case n > m.config.Limits.Output:
		return m.replyTooLarge(n)
	case others+int64(n) <= share:
		return nil
	case int64(n) > share:
		return cohort.Newf("tcpstore: serve", cohort.TooLarge,
			"a reply of %d bytes is more than all replies may take, %d: raise the memory limit", n, share)
	}
	return noRoomError(n)
}

// mayReply is replyFits for a request: one whose reply has many bytes that are copied may also have to wait for the next turn.
func (m *Machine) mayReply(n, copied int) error {
	if n <= keepBuffer || m.applies() {
		return nil
	}
	if err := m.replyFits(n); err != nil {
		return err
	}
	return m.turn.mayCopy(copied)
}

func (m *Machine) replyTooLarge(n int) error {
	return cohort.Newf("tcpstore: serve", cohort.TooLarge, "a reply of %d bytes is over the limit of %d: ask for less at a time",
		n, m.config.Limits.Output)
}

// refuseRequest answers a native request with an error, and ends a connection of the other dialects, which have no way
// to say what was wrong.
func (m *Machine) refuseRequest(c *Conn, id uint32, err error) {
	if c.dialect != wire.Native {
		m.Refuse(c, err)
		return
	}
	code := cohort.CodeOf(err)
	if code == cohort.Unknown {
		code = cohort.Internal
	}
	c.out.begin(m.clock.counted)
	start := len(c.out.Buf)
	c.out.Buf = append(wire.BeginFrame(c.out.Buf, id), byte(code))
	c.out.Buf = append(c.out.Buf, err.Error()...)
	m.end(c, start)
}
