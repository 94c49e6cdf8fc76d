// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// begin starts a reply and end completes it: a frame in the native dialect, nothing in the others.
func (m *Machine) begin(c *Conn, id uint32) int {
	start := len(c.out)
	if c.dialect == wire.Native {
		c.out = append(wire.BeginFrame(c.out, id), 0)
	}
	return start
}

func (m *Machine) end(c *Conn, start int) {
	if c.dialect == wire.Native {
		c.out = wire.EndFrame(c.out, start)
	}
	m.touch(c)
	if cap(c.out) > keepBuffer {
		m.settle(c) // c may be one of many that are answered in this step: the next must see what this one took
	}
	if len(c.out)-c.sent > m.limits.Output {
		m.Refuse(c, dist.Newf("tcpstore: serve", dist.Exhausted,
			"the client does not read: %d bytes wait to be sent to it, the limit is %d", len(c.out)-c.sent, m.limits.Output))
	}
}

// ack confirms a write, which only native clients hear of.
func (m *Machine) ack(c *Conn, id uint32) {
	if c.dialect == wire.Native {
		m.end(c, m.begin(c, id))
	}
}

func (m *Machine) replyByte(c *Conn, id uint32, b byte) {
	start := m.begin(c, id)
	c.out = append(c.out, b)
	m.end(c, start)
}

func (m *Machine) replyInt(c *Conn, id uint32, n int64) {
	start := m.begin(c, id)
	c.out = wire.AppendInt(c.out, n)
	m.end(c, start)
}

func (m *Machine) replyBytes(c *Conn, id uint32, value []byte) {
	start := m.begin(c, id)
	c.out = wire.AppendBytes(c.out, value)
	m.end(c, start)
}

// replyFits reports an error when a reply of n bytes is more than a client may be owed, or more than the buffers of all
// clients may take: large replies stop first, so that small ones are served as long as possible.
func (m *Machine) replyFits(n int) error {
	share := m.limits.Memory
	switch {
	case n > m.limits.Output:
		return m.replyTooLarge(n)
	case n > highWater:
		share /= bufferShare
	case n > keepBuffer:
		share /= smallShare
	default:
		return nil
	}
	switch {
	case m.bufferBytes+int64(n) <= share:
		return nil
	case int64(n) > share:
		return m.buffersFull() // and it will never fit
	}
	return crowdedError(n)
}

func (m *Machine) replyTooLarge(n int) error {
	return dist.Newf("tcpstore: serve", dist.TooLarge, "a reply of %d bytes is over the limit of %d: ask for less at a time", n, m.limits.Output)
}

// refuseRequest answers a native request with an error, and ends a connection of the other dialects, which have no way
// to say what was wrong.
func (m *Machine) refuseRequest(c *Conn, id uint32, err error) {
	if _, crowded := err.(crowdedError); crowded { //nolint:errorlint // never wrapped
		err = m.buffersFull()
	}
	if c.dialect != wire.Native {
		m.Refuse(c, err)
		return
	}
	code := dist.CodeOf(err)
	if code == dist.Unknown {
		code = dist.Internal
	}
	start := len(c.out)
	c.out = append(wire.BeginFrame(c.out, id), byte(code))
	c.out = append(c.out, err.Error()...)
	m.end(c, start)
}

func (m *Machine) buffersFull() error {
	return dist.Newf("tcpstore: serve", dist.Exhausted, "buffers of all clients take %d of %d bytes: raise the memory limit",
		m.bufferBytes, m.limits.Memory/bufferShare)
}
