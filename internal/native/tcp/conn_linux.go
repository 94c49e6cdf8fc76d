// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

func itoa(i int) string { return strconv.Itoa(i) }

// bufferSize is the read buffer of a connection: several small messages, and the head of a large one.
const bufferSize = 16 << 10

// maxRequests bounds the announcements of one peer that no receive has matched.
const maxRequests = 1 << 16

// conn is the connection to one peer. Everything is guarded by the mesh's mutex.
type conn struct {
	m    *Mesh
	peer int
	fd   int
	addr string
	gone error // why it cannot be used any more
	left bool  // the peer said Bye

	// Reading.
	in       []byte
	from, to int         // the unread part of in
	header   wire.Header // of the frame whose payload is being read
	rest     int         // payload bytes that are missing
	sink     []byte      // where they go; shorter than rest when the end is dropped
	filling  *link.Op    // the receive that the payload belongs to
	held     *arrival    // or the arrival
	tooLong  bool        // the payload does not fit the receive
	iov      iovecs
	lastIn   time.Time
	heard    bool // something arrived since the keeper looked

	// Receives.
	recvs    opList // posted, unmatched
	granted  opList // Ready was said, Data will come
	inbox    arrivals
	requests int // announcements in inbox
	owed     int // credit to give back

	// Sends.
	out     opList // to be written
	waiting opList // wait for Ready
	readys  []ready
	notices []ready // calls that this rank has not made yet
	credit  int     // eager bytes that the peer will hold
	control []byte  // small frames to be written before the next message
	current *link.Op
	orphan  link.Op // stands for a message whose owner has given up
	head    [wire.HeaderSize]byte
	headAt  int    // bytes of head written; HeaderSize when there is no frame
	piece   []byte // payload of the frame that is missing
	more    bool   // the message goes on after this frame
	armed   bool   // epoll tells when the socket takes more
	broken  bool   // a write failed
	spoke   bool   // something was written since the keeper looked
}

// ready is room that the peer announced before the message was posted.
type ready struct {
	slot, room uint64
	call       wire.Call
}

// cost is what an eager message takes from the window.
func cost(op *link.Op) int { return len(op.Buf) + wire.HeaderSize }

// want posts a receive: from the inbox if the message is here, else it waits for it.
func (c *conn) want(op *link.Op) {
	switch {
	case len(op.Buf) > EagerMax && c.m.sized(op.Slot):
		c.grant(op) // what is in the inbox is small and belongs to other receives of the slot
	case !c.takeArrival(op):
		c.recvs.push(op)
	}
}

// takeArrival matches a receive with what is in the inbox.
func (c *conn) takeArrival(op *link.Op) bool {
	a := c.inbox.first(op.Slot)
	if a == nil || len(op.Buf) > EagerMax && c.m.sized(op.Slot) {
		return false
	}
	if !a.whole && !a.request {
		return false // still arriving: settle matches it
	}
	op.Source = c.peer
	c.take(a, op)
	return true
}

// take gives an arrival to a receive.
func (c *conn) take(a *arrival, op *link.Op) {
	c.inbox.remove(a)
	if a.request {
		c.requests--
		if a.total > uint64(len(op.Buf)) {
			c.tell(wire.Header{Type: wire.Ready, Slot: op.Slot, Total: uint64(len(op.Buf))})
			complete(op, c.overflow(op, a.total))
		} else {
			c.grant(op)
		}
		c.m.recycle(a)
		return
	}
	c.giveBack(len(a.data) + wire.HeaderSize)
	if len(a.data) > len(op.Buf) {
		complete(op, c.overflow(op, uint64(len(a.data))))
	} else {
		op.N = copy(op.Buf, a.data)
		complete(op, nil)
	}
	c.m.recycle(a)
}

// grant says Ready and waits for the data.
func (c *conn) grant(op *link.Op) {
	c.granted.push(op)
	h := wire.Header{Type: wire.Ready, Slot: op.Slot, Total: uint64(len(op.Buf))}
	c.describe(&h)
	c.tell(h)
}

func (c *conn) overflow(op *link.Op, length uint64) error {
	return &dist.Error{
		Op: "group: receive", Code: dist.Mismatch, Rank: dist.Rank(c.peer), Peer: c.addr,
		Detail: "rank " + itoa(c.peer) + " sent " + strconv.FormatUint(length, 10) + " bytes, this receive has room for " + itoa(len(op.Buf)),
	}
}

// giveBack returns credit to the peer: with the next frame, or at once when half of the window is used up.
func (c *conn) giveBack(n int) {
	c.owed += n
	if c.owed >= c.m.cfg.Window/2 {
		c.tell(wire.Header{Type: wire.Beat})
	}
}

// describe adds what this rank called to a header of a collective.
func (c *conn) describe(h *wire.Header) {
	if !wire.IsCollective(h.Slot) {
		return
	}
	if e := c.m.entry(h.Slot); e.slot == wire.BaseSlot(h.Slot) {
		h.Flags |= wire.Called
		h.Call = e.call
	}
}

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
		v.add(c.sink)
		direct := v.bytes
		if direct == 0 || direct == c.rest {
			v.add(c.in[c.to:])
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

// parse handles the frames in the buffer. It returns false when the connection cannot go on.
func (c *conn) parse() bool {
	for {
		if c.rest > 0 {
			avail := min(c.rest, c.to-c.from)
			k := copy(c.sink, c.in[c.from:c.from+avail])
			c.sink = c.sink[k:]
			c.from += avail
			c.rest -= avail
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
	if h.Flags&wire.Called != 0 && !c.m.compare(c.peer, &h) {
		return false
	}
	c.header, c.rest = h, int(h.Length)
	c.sink, c.filling, c.held, c.tooLong = nil, nil, nil, false
	if c.m.err != nil && (h.Type == wire.Eager || h.Type == wire.Data) {
		return true // dropped: nobody waits any more
	}
	if c.m.lost != nil && wire.IsCollective(h.Slot) {
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
		c.held = &arrival{data: c.sink}
	case wire.Request, wire.Ready, wire.Beat, wire.Bye, wire.Notice:
	}
	return true
}

// sameClass returns the first op of a slot that a message of total bytes belongs to. Where all ranks agree on the sizes,
// small and large messages of a slot go separate ways and may overtake each other.
func (c *conn) sameClass(l *opList, slot, total uint64) *link.Op {
	if !c.m.sized(slot) {
		return l.first(slot)
	}
	for op := l.head; op != nil; op = op.State.Next {
		if op.Slot == slot && (len(op.Buf) > EagerMax) == (total > EagerMax) {
			return op
		}
	}
	return nil
}

func (c *conn) beginEager() bool {
	h := &c.header
	op := c.recvs.first(h.Slot)
	if op != nil {
		c.recvs.remove(op)
	} else if op = c.m.anyFor(h.Slot, c.peer); op != nil {
		c.m.anyRecvs.remove(op)
	}
	// A message behind others of its slot that wait in the inbox waits too; receives are only posted when there are none.
	if op == nil {
		a := c.m.newArrival(int(h.Length))
		a.slot, a.total, a.call, a.called = h.Slot, uint64(h.Length), h.Call, h.Flags&wire.Called != 0
		c.inbox.push(a)
		c.held, c.sink = a, a.data
		return true
	}
	op.Source = c.peer
	c.filling = op
	c.sink = op.Buf
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
			complete(op, c.overflow(op, uint64(h.Length)))
		case op != nil:
			c.giveBack(int(h.Length) + wire.HeaderSize)
			op.N = int(h.Length)
			complete(op, nil)
		case c.held != nil:
			a := c.held
			c.held = nil
			a.whole = true
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
			c.granted.remove(op)
			op.N = int(op.State.Aux) //nolint:gosec // bounded by the buffer
			complete(op, nil)
		}
	case wire.Request:
		c.announced(h)
	case wire.Ready:
		c.room(h)
	case wire.Abort:
		text := ""
		if c.held != nil {
			text = string(c.held.data)
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

// offer gives an arrival that has just become whole to a receive that was posted while it arrived.
func (c *conn) offer(a *arrival) {
	if c.inbox.first(a.slot) != a {
		return
	}
	op := c.recvs.first(a.slot)
	if op != nil {
		c.recvs.remove(op)
	} else if op = c.m.anyFor(a.slot, c.peer); op != nil {
		c.m.anyRecvs.remove(op)
	}
	if op != nil {
		op.Source = c.peer
		c.take(a, op)
	}
}

// announced handles a Request.
func (c *conn) announced(h wire.Header) {
	if c.requests >= maxRequests {
		c.violated("too many announced messages")
		return
	}
	a := c.m.newArrival(0)
	a.slot, a.total, a.request, a.call, a.called = h.Slot, h.Total, true, h.Call, h.Flags&wire.Called != 0
	c.inbox.push(a)
	c.requests++
	op := c.recvs.first(h.Slot)
	if op != nil {
		c.recvs.remove(op)
	} else if op = c.m.anyFor(h.Slot, c.peer); op != nil {
		c.m.anyRecvs.remove(op)
	}
	if op != nil {
		op.Source = c.peer
		c.take(a, op)
		c.flush()
	}
}

// room handles a Ready: the message that waits for it may go, or one that is posted later.
func (c *conn) room(h wire.Header) {
	op := c.sameClass(&c.waiting, h.Slot, h.Total)
	if op == nil {
		if !wire.IsCollective(h.Slot) || len(c.readys) >= maxRequests {
			c.violated("room for a message that was not announced")
			return
		}
		c.readys = append(c.readys, ready{h.Slot, h.Total, h.Call})
		return
	}
	c.waiting.remove(op)
	c.admit(op, h.Total)
	c.flush()
}

// admit queues a message that has room at the peer.
func (c *conn) admit(op *link.Op, room uint64) {
	if room < uint64(len(op.Buf)) && room < 1<<32-1 {
		complete(op, &dist.Error{
			Op: "group: send", Code: dist.Mismatch, Rank: dist.Rank(c.peer), Peer: c.addr,
			Detail: "rank " + itoa(c.peer) + " has room for " + strconv.FormatUint(room, 10) + " bytes, the message has " + itoa(len(op.Buf)),
		})
		return
	}
	c.out.push(op)
}

// anyFor returns the first receive from any rank that accepts a message of peer on slot.
func (m *Mesh) anyFor(slot uint64, peer int) *link.Op {
	for op := m.anyRecvs.head; op != nil; op = op.State.Next {
		if op.Slot != slot {
			continue
		}
		if slices.Contains(op.From, peer) {
			return op
		}
	}
	return nil
}

// newArrival returns an arrival with room for n bytes.
func (m *Mesh) newArrival(n int) *arrival {
	a := m.spare
	if a != nil {
		m.spare = a.next
	} else {
		a = new(arrival)
	}
	data := a.data
	*a = arrival{order: m.order}
	m.order++
	if cap(data) < n {
		data = make([]byte, n)
	}
	a.data = data[:n]
	return a
}

func (m *Mesh) recycle(a *arrival) {
	if cap(a.data) > EagerMax {
		a.data = nil
	}
	a.next = m.spare
	m.spare = a
}

// ended handles the end of the stream.
func (c *conn) ended(errno syscall.Errno) {
	if c.left {
		c.close(c.leftError())
		return
	}
	detail := "the connection ended without a goodbye: the process of rank " + itoa(c.peer) + " has died"
	if errno != 0 {
		detail = "the connection broke (" + errno.Error() + "): the process of rank " + itoa(c.peer) + " has died or is unreachable"
	}
	c.lose(detail)
}

// lose gives the peer up, and the collectives with it.
func (c *conn) lose(detail string) {
	err := &dist.Error{Op: "group", Code: dist.PeerLost, Rank: dist.Rank(c.peer), Peer: c.addr, Detail: detail}
	c.close(err)
	c.m.lose(err)
}

func (c *conn) leftError() error {
	return &dist.Error{Op: "group", Code: dist.PeerLost, Rank: dist.Rank(c.peer), Peer: c.addr, Detail: "rank " + itoa(c.peer) + " has closed its end of the group"}
}

// leave handles a goodbye: nothing that is not here will come.
func (c *conn) leave() { c.close(c.leftError()) }

// close ends the connection and every op that needs it. What has arrived stays for later receives.
func (c *conn) close(err error) {
	if c.gone != nil {
		return
	}
	c.gone = err
	_ = unix.EpollCtl(c.m.ep, unix.EPOLL_CTL_DEL, c.fd, nil)
	_ = unix.Close(c.fd)
	c.endAll(err)
	m := c.m
	for op := m.anyRecvs.head; op != nil; {
		next := op.State.Next
		alive := false
		for _, rank := range op.From {
			alive = alive || rank >= 0 && rank < m.size && rank != m.rank && m.conns[rank].gone == nil
		}
		if !alive {
			m.anyRecvs.remove(op)
			complete(op, err)
		}
		op = next
	}
}

// endAll completes every op of the connection with err.
func (c *conn) endAll(err error) { c.endSome(err, func(uint64) bool { return true }) }

// endSome completes the ops on some slots with err.
func (c *conn) endSome(err error, ends func(slot uint64) bool) {
	if ends(c.header.Slot) {
		if c.filling != nil && c.header.Type == wire.Eager { // it is in no list while it is filled
			complete(c.filling, err)
		}
		if c.held != nil && c.header.Type == wire.Eager {
			c.inbox.remove(c.held)
		}
		c.filling, c.held, c.sink = nil, nil, nil
	}
	if op := c.current; op != nil && op != &c.orphan && ends(op.Slot) {
		c.current = nil
		if c.headAt > 0 { // the frame must end before another can follow, but the buffer goes back to its owner
			c.piece = bytes.Clone(c.piece)
			c.current, c.more = &c.orphan, false
		}
		complete(op, err)
	}
	for _, l := range []*opList{&c.recvs, &c.granted, &c.out, &c.waiting} {
		for op := l.head; op != nil; {
			next := op.State.Next
			if ends(op.Slot) {
				l.remove(op)
				complete(op, err)
			}
			op = next
		}
	}
}

// remoteFailure turns an Abort frame into the error that the peer met.
func remoteFailure(c *conn, h wire.Header, text string) error {
	code := dist.Aborted
	if h.Total > 0 && h.Total < 64 {
		code = dist.Code(h.Total)
	}
	rank := dist.Rank(c.peer)
	if h.Slot > 0 && h.Slot <= wire.MaxRanks && int(h.Slot) <= c.m.size {
		rank = dist.Rank(h.Slot - 1)
	}
	return &dist.Error{Op: "group", Code: code, Rank: rank, Detail: text + " (told by rank " + itoa(c.peer) + ")"}
}
