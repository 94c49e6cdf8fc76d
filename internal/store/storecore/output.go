// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort/internal/store/keytable"
	"github.com/cohort-dist/cohort/internal/store/sendbuf"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// output is what waits to be sent to a client. Replies refer to large values instead of copying them, since those never change in the
// table (see keytable.FixedSize). Until it is sent a value counts for the reply, also when its key has got another one meanwhile.
type output struct {
	sendbuf.Stream

	batch   int // of those that were there at pace.Since, how many bytes are not gone yet
	pace    Pace
	paused  bool // the client has to read before its next request is applied
	counted int  // bytes in the machine's sum
}

// sharedSize is the largest value that is copied into a reply. A larger one is referred to.
const sharedSize = keytable.FixedSize

// begin notes that a reply is about to be put behind the output.
func (o *output) begin(now int64) {
	if o.Owed() == 0 {
		o.batch = 0
		o.pace.Start(now)
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

// Sent tells that n bytes of what is pending are gone. Once a paused client has read enough its requests go on.
func (m *Machine) Sent(c *Conn, n int) {
	if c.closed {
		return
	}
	if invariants.Enabled {
		invariants.Check(n <= c.Owed(), "no more was sent than was owed")
	}
	c.out.Shed(n)
	c.out.pace.Moved = m.clock.patience
	if c.Owed() == 0 {
		c.out.batch = 0
		if cap(c.out.Buf) > keepBuffer || m.budget.out > m.budget.shares.out/4 {
			c.out.Buf = nil
		}
		c.out.Restart()
	} else {
		m.turn.copied(c.out.Compact())
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
	if c.out.counted != 0 || c.Owed() != 0 {
		m.settle(c)
	}
}
