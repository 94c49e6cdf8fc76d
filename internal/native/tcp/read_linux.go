// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

// bufferSize is the read buffer of a connection: several small messages, and the head of a large one.
const bufferSize = 16 << 10

// read takes what the socket has and handles it. It reports whether anything came.
func (c *conn) read() bool {
	came := false
	for c.gone == nil {
		if !c.parse() {
			return true
		}
		v := &c.iov
		v.reset()
		if c.from == c.to {
			c.from, c.to = 0, 0
		} else if c.from > 0 && len(c.in)-c.to < wire.HeaderSize {
			c.to = copy(c.in, c.in[c.from:c.to])
			c.from = 0
		}
		v.addUpTo(c.sink)
		direct := v.bytes
		if direct == 0 || direct == c.rest {
			v.add(c.buffer())
		}
		n, errno := recvv(c.fd, v)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return came
		case errno != 0:
			c.ended(errno)
			return true
		case n == 0:
			c.ended(0)
			return true
		}
		came, c.heard = true, true
		into := min(n, direct)
		c.sink = c.sink[into:]
		c.rest -= into
		c.to += n - into
		if n < v.bytes { // the socket is empty
			c.parse()
			return true
		}
	}
	return came
}

// headRoom is the part of the buffer that is used while large messages are on their way: a few headers. What else it took would
// have to be copied once more.
const headRoom = 4 * wire.HeaderSize

// buffer is the part of the read buffer that the next read may fill.
func (c *conn) buffer() []byte {
	room := c.in[c.to:]
	if c.granted.Head != nil {
		room = room[:min(len(room), headRoom)]
	}
	return room
}

// parse handles the frames in the buffer. It returns false when the connection cannot go on.
func (c *conn) parse() bool {
	for {
		if c.rest > 0 {
			avail := min(c.rest, c.to-c.from)
			k := copy(c.sink, c.in[c.from:c.from+avail])
			c.sink = c.sink[k:]
			c.from += avail
			c.rest -= avail
			c.m.mu.copied += k
			if c.rest > 0 {
				return true
			}
		}
		if c.header.Type != 0 {
			c.settle()
			c.header.Type = 0
			if c.gone != nil {
				return false
			}
		}
		if c.to-c.from < wire.HeaderSize {
			return true
		}
		h, err := wire.Parse(c.in[c.from:])
		if err != nil {
			c.violated(err.Error())
			return false
		}
		c.from += wire.HeaderSize
		if !c.begin(h) {
			return false
		}
	}
}

// violated fails the mesh because of what the peer sent.
func (c *conn) violated(what string) {
	err := &dist.Error{Op: "group", Code: dist.Protocol, Rank: dist.Rank(c.peer), Peer: c.addr, Detail: what}
	c.close(err)
	c.m.fail(err, true)
}

// begin handles the header of a frame: it decides where the payload goes.
func (c *conn) begin(h wire.Header) bool {
	c.credit += int(h.Credit)
	if c.credit > c.m.cfg.Window {
		c.violated("more credit than the window has")
		return false
	}
	if h.Type == wire.Eager {
		if c.used += int(h.Length) + wire.HeaderSize; c.used > c.m.cfg.Window {
			c.violated("more messages than the window takes were sent without asking")
			return false
		}
	}
	if h.Flags&wire.Called != 0 && !c.m.compare(c.peer, &h) {
		return false
	}
	if c.m.cfg.Local != nil && c.m.cfg.Local[c.peer] {
		c.m.mu.cores[c.peer] = h.Core
	}
	c.header, c.rest = h, int(h.Length)
	c.sink, c.filling, c.held, c.tooLong = nil, nil, nil, false
	if c.m.mu.err != nil && (h.Type == wire.Eager || h.Type == wire.Data) {
		return true // dropped: nobody waits any more
	}
	if c.m.mu.lost != nil && wire.IsCollective(h.Slot) {
		if h.Type != wire.Eager && h.Type != wire.Data {
			c.header.Type = wire.Beat // of no more interest
		}
		return true
	}
	switch h.Type {
	case wire.Eager:
		return c.beginEager()
	case wire.Data:
		op := c.sameClass(&c.granted, h.Slot, h.Total)
		if op == nil || uint64(h.Length) > uint64(len(op.Buf))-op.State.Aux {
			c.violated("data that this rank has no room for")
			return false
		}
		c.filling = op
		c.sink = op.Buf[op.State.Aux : op.State.Aux+uint64(h.Length)]
	case wire.Abort:
		c.sink = make([]byte, h.Length)
		c.held = &early{Data: c.sink}
	case wire.Request, wire.Ready, wire.Beat, wire.Bye, wire.Notice:
	}
	return true
}

func (c *conn) beginEager() bool {
	h := &c.header
	op := c.match(h.Slot)
	// A message behind others of its slot that wait in the inbox waits too; receives are only posted when there are none.
	if op == nil {
		a := c.m.mu.early.New(h.Slot, int(h.Length))
		a.Note = note{call: h.Call, called: h.Flags&wire.Called != 0}
		c.inbox.Add(a)
		c.held, c.sink = a, a.Data
		return true
	}
	c.filling = op
	if int(h.Length) > len(op.Buf) {
		c.sink, c.tooLong = nil, true
	} else {
		c.sink = op.Buf[:h.Length]
	}
	return true
}

// settle handles a frame whose payload is complete.
func (c *conn) settle() {
	h := c.header
	op := c.filling
	c.filling = nil
	switch h.Type {
	case wire.Eager:
		switch {
		case op != nil && c.tooLong:
			c.giveBack(int(h.Length) + wire.HeaderSize)
			op.Complete(c.overflow(op, uint64(h.Length)))
		case op != nil:
			c.giveBack(int(h.Length) + wire.HeaderSize)
			op.N = int(h.Length)
			op.Complete(nil)
		case c.held != nil:
			a := c.held
			c.held = nil
			a.Note.whole = true
			c.offer(a)
		default: // dropped
			c.giveBack(int(h.Length) + wire.HeaderSize)
		}
	case wire.Data:
		if op == nil {
			return
		}
		op.State.Aux += uint64(h.Length)
		if h.Flags&wire.More == 0 {
			c.granted.Remove(op)
			op.N = int(op.State.Aux) //nolint:gosec // bounded by the buffer
			op.Complete(nil)
		}
	case wire.Request:
		c.announced(h)
	case wire.Ready:
		c.room(h)
	case wire.Abort:
		text := ""
		if c.held != nil {
			text = string(c.held.Data)
			c.held = nil
		}
		c.m.fail(remoteFailure(c, h, text), false) // its finder tells everybody
	case wire.Bye:
		c.left = true
		c.leave()
	case wire.Notice:
		// A call that this rank has begun was compared with the header.
		if e := c.m.entry(h.Slot); e.slot != wire.BaseSlot(h.Slot) && len(c.notices) < maxNotices {
			c.notices = append(c.notices, ready{slot: h.Slot, call: h.Call})
		}
	case wire.Beat:
	}
}

// maxNotices bounds the notices of one peer about calls that this rank has not made yet.
const maxNotices = 16

// remoteFailure turns an Abort frame into the error that the peer met.
func remoteFailure(c *conn, h wire.Header, text string) error {
	code := dist.Aborted
	if h.Total > 0 && h.Total < 64 {
		code = dist.Code(h.Total)
	}
	rank := dist.Rank(c.peer)
	switch {
	case h.Slot > 0 && h.Slot <= wire.MaxRanks && int(h.Slot) <= c.m.size:
		rank = dist.Rank(h.Slot - 1)
	case code == dist.DeadlineExceeded: // whose time is over has waited for another rank
		rank = dist.NoRank
	}
	return &dist.Error{Op: "group", Code: code, Rank: rank, Detail: text + " (told by rank " + itoa(c.peer) + ")"}
}
