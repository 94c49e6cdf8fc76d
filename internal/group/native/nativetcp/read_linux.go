// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// bufferSize is the read buffer of a connection: several small messages, and the head of a large one.
const bufferSize = 16 << 10

// reader is the reading side of a connection: bytes that have not been looked at, and the frame whose payload is on its way.
type reader struct {
	buf      []byte
	from, to int // the unread part of buf

	header  nativewire.Header // of the frame whose payload is being read
	rest    int               // payload bytes that are missing
	sink    []byte            // where they go; shorter than rest when the end is dropped
	filling *transport.Op     // the receive that the payload belongs to
	held    *early            // or the arrival
	tooLong bool              // the payload does not fit the receive
}

// compact makes room for a header behind the unread part.
func (r *reader) compact() {
	if r.from == r.to {
		r.from, r.to = 0, 0
	} else if r.from > 0 && len(r.buf)-r.to < nativewire.HeaderSize {
		r.to = copy(r.buf, r.buf[r.from:r.to])
		r.from = 0
	}
}

// fill moves payload from the buffer to the sink. It returns how many bytes it copied, and whether the payload is complete.
func (r *reader) fill() (copied int, complete bool) {
	avail := min(r.rest, r.to-r.from)
	copied = copy(r.sink, r.buf[r.from:r.from+avail])
	r.sink = r.sink[copied:]
	r.from += avail
	r.rest -= avail
	return copied, r.rest == 0
}

// drop lets the rest of the payload go nowhere.
func (r *reader) drop() { r.filling, r.held, r.sink = nil, nil, nil }

// read takes what the socket has and handles it. It reports whether anything came.
func (c *conn) read() bool {
	came := false
	for c.gone == nil {
		if !c.parse() {
			return true
		}
		v := iovecs{}
		c.in.compact()
		v.add(c.in.sink[:min(len(c.in.sink), maxCopy)])
		direct := v.bytes
		if direct == 0 || direct == c.in.rest {
			room := c.in.buf[c.in.to:]
			if c.recvs.granted.Head != nil {
				room = room[:min(len(room), headRoom)]
			}
			v.add(room)
		}
		n, errno := recvv(c.fd, &v)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return came
		case errno != 0 || n == 0:
			c.ended(errno)
			return true
		}
		came, c.activity.received = true, true
		into := min(n, direct)
		c.in.sink, c.in.rest, c.in.to = c.in.sink[into:], c.in.rest-into, c.in.to+n-into
		if n < v.bytes { // the socket is empty
			c.parse()
			return true
		}
	}
	return came
}

// headRoom is the part of the buffer that is used while large messages are on their way: a few headers. What else it took would
// have to be copied once more.
const headRoom = 4 * nativewire.HeaderSize

// parse handles the frames in the buffer. It returns false when the connection cannot go on.
func (c *conn) parse() bool {
	for {
		if c.in.rest > 0 {
			copied, complete := c.in.fill()
			c.m.mu.copied += copied
			if !complete {
				return true
			}
		}
		if c.in.header.Type != 0 {
			c.settle()
			if c.gone != nil {
				return false
			}
		}
		if c.in.to-c.in.from < nativewire.HeaderSize {
			return true
		}
		h, err := nativewire.Parse(c.in.buf[c.in.from:])
		if err != nil {
			c.violated(err.Error())
			return false
		}
		c.in.from += nativewire.HeaderSize
		if !c.begin(h) {
			return false
		}
	}
}

// violated fails the mesh because of what the peer sent.
func (c *conn) violated(what string) {
	err := &cohort.Error{Op: "group", Code: cohort.Protocol, Rank: cohort.Rank(c.peer), Peer: c.addr, Detail: what}
	c.close(err)
	c.m.fail(err, true)
}

// begin handles the header of a frame: it decides where the payload goes.
func (c *conn) begin(h nativewire.Header) bool {
	if h.Credit > 0 && !c.window.refund(int(h.Credit)) {
		c.violated("more credit than the window has")
		return false
	}
	if h.Type == nativewire.Eager && !c.window.take(int(h.Length)+nativewire.HeaderSize, c.m.cfg.Window) {
		c.violated("more messages than the window takes were sent without asking")
		return false
	}
	if c.m.cfg.Local != nil && c.m.cfg.Local[c.peer] {
		c.m.mu.cores[c.peer] = h.Core
	}
	in := &c.in
	in.header, in.rest, in.sink, in.filling, in.held, in.tooLong = h, int(h.Length), nil, nil, nil, false
	// If the calls differ the mesh fails, and this frame goes on like all that follow: the peer is still to learn why.
	if h.Flags&nativewire.Called != 0 && !c.m.compare(c.peer, &h) && c.gone != nil {
		return false
	}
	if c.m.mu.err != nil && (h.Type == nativewire.Eager || h.Type == nativewire.Data) {
		return true // dropped: no receive waits any more
	}
	if c.m.mu.lost != nil && nativewire.IsCollective(h.Slot) {
		if h.Type != nativewire.Eager && h.Type != nativewire.Data {
			c.in.header.Type = nativewire.Beat // of no more interest
		}
		return true
	}
	switch h.Type {
	case nativewire.Eager:
		return c.beginEager()
	case nativewire.Data:
		return c.beginData()
	case nativewire.Abort:
		c.in.sink = make([]byte, h.Length)
		c.in.held = &early{Data: c.in.sink}
	case nativewire.Request, nativewire.Ready, nativewire.Beat, nativewire.Bye, nativewire.Notice:
	}
	return true
}

func (c *conn) beginData() bool {
	h := &c.in.header
	op := c.sameClass(&c.recvs.granted, h.Slot, h.Total)
	if op != nil && op.Length() != len(op.Buf) && !c.agreed(op, h.Total) {
		return c.gone == nil
	}
	if op == nil || uint64(h.Length) > uint64(len(op.Buf))-op.State.Aux {
		c.violated("data that this rank has no room for")
		return false
	}
	c.in.filling = op
	c.in.sink = op.Buf[op.State.Aux : op.State.Aux+uint64(h.Length)]
	return true
}

func (c *conn) beginEager() bool {
	h := &c.in.header
	op := c.match(h.Slot)
	// A message behind others of its slot that wait in the inbox waits too; receives are only posted when there are none.
	if op == nil {
		a := c.m.mu.early.New(h.Slot, int(h.Length))
		a.Note = note{call: h.Call, called: h.Flags&nativewire.Called != 0}
		c.recvs.inbox.Add(a)
		c.in.held, c.in.sink = a, a.Data
		return true
	}
	c.in.filling = op
	if int(h.Length) > len(op.Buf) {
		c.in.sink, c.in.tooLong = nil, true
	} else {
		c.in.sink = op.Buf[:h.Length]
	}
	return true
}

// settle handles a frame whose payload is complete. What it does may find that the peer is gone and read what came
// last; so the frame counts as handled from here on.
func (c *conn) settle() {
	h := c.in.header
	op := c.in.filling
	c.in.header.Type, c.in.filling, c.in.sink = 0, nil, nil
	switch h.Type {
	case nativewire.Eager:
		c.settleEager(&h, op)
	case nativewire.Data:
		if op == nil {
			return
		}
		op.State.Aux += uint64(h.Length)
		if h.Flags&nativewire.More == 0 {
			c.recvs.granted.Remove(op)
			op.N = int(op.State.Aux) //nolint:gosec // bounded by the buffer
			op.Complete(nil)
		}
	case nativewire.Ready:
		c.room(h)
	default:
		c.settleControl(h)
	}
}

// settleEager handles a whole small message: it belongs to a receive, waits for one, or is dropped.
func (c *conn) settleEager(h *nativewire.Header, op *transport.Op) {
	if a := c.in.held; op == nil && a != nil {
		c.in.held = nil
		a.Note.whole = true
		c.offer(a)
		return
	}
	c.giveBack(int(h.Length) + nativewire.HeaderSize)
	switch {
	case op == nil: // dropped
	case c.in.tooLong:
		op.Complete(c.overflow(op, uint64(h.Length)))
	default:
		op.N = int(h.Length)
		op.Complete(nil)
	}
}

// settleControl handles a frame that belongs to no message that has room.
func (c *conn) settleControl(h nativewire.Header) {
	switch h.Type {
	case nativewire.Request:
		c.announced(h)
	case nativewire.Abort:
		text := ""
		if c.in.held != nil {
			text = string(c.in.held.Data)
			c.in.held = nil
		}
		c.m.fail(remoteFailure(c, h, text), false) // its finder notifies everybody
	case nativewire.Bye:
		c.left = true
		c.leave(c.lossReason(h))
	case nativewire.Notice:
		// A call that this rank has begun was compared with the header.
		if c.m.called(h.Slot) == nil && len(c.notices) < maxNotices {
			c.notices = append(c.notices, ready{slot: h.Slot, call: h.Call})
		}
	case nativewire.Beat, nativewire.Eager, nativewire.Data, nativewire.Ready:
	}
}

// maxNotices bounds the notices of one peer about calls that this rank has not made yet.
const maxNotices = 16

// maxCode bounds the codes that peers may name, of which later versions may have more.
const maxCode = 64

// remoteFailure turns an Abort frame, or a goodbye that says why, into the error that the peer met.
func remoteFailure(c *conn, h nativewire.Header, text string) error {
	code := cohort.Aborted
	if h.Total > 0 && h.Total < maxCode {
		code = cohort.Code(h.Total)
	}
	rank := cohort.Rank(c.peer)
	switch {
	case code == cohort.PeerLost && h.Slot == uint64(c.m.rank)+1: //nolint:gosec // not negative
		// It has lost this rank on another connection, and this rank has lost it there.
		text = "it has given up this rank: " + text
	case h.Slot > 0 && h.Slot <= nativewire.MaxRanks && int(h.Slot) <= c.m.size:
		rank = cohort.Rank(h.Slot - 1)
	case code == cohort.DeadlineExceeded: // whose time is over has waited for another rank
		rank = cohort.NoRank
	}
	return &cohort.Error{Op: "group", Code: code, Rank: rank, Detail: text + " (reported by rank " + itoa(c.peer) + ")"}
}
