// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

const (
	// maxAnnounced bounds the messages to one peer that wait for room. Those that are posted beyond it wait until the
	// peer has received some.
	maxAnnounced = 1 << 16
	// maxRequests bounds the announcements of one peer that no receive has matched. It is more: when a rank is lost the sender forgets
	// messages of collectives that it has announced.
	maxRequests = 2 * maxAnnounced
)

// ready is room that the peer announced before the message was posted.
type ready struct {
	slot, room uint64
	call       nativewire.Call
}

// receives is what this rank wants of the peer, and what the peer has sent before that.
type receives struct {
	posted  transport.List // unmatched
	granted transport.List // Ready was said, Data will come
	inbox   transport.Inbox[note]
}

// sends is messages that need room at the peer before they are written.
type sends struct {
	waiting transport.List // wait for Ready
	rooms   []ready        // Readys that came first
}

// cost is what an eager message takes from the window.
func cost(op *transport.Op) int { return len(op.Buf) + nativewire.HeaderSize }

// want posts a receive: from the inbox if the message is here, else it waits for it.
func (c *conn) want(op *transport.Op) {
	switch {
	case len(op.Buf) > eagerMax && c.m.sized(op.Slot):
		c.grant(op) // what is in the inbox is small and belongs to other receives of the slot
	case !c.takeArrival(op):
		c.recvs.posted.Push(op)
	}
}

// takeArrival matches a receive with what is in the inbox.
func (c *conn) takeArrival(op *transport.Op) bool {
	a := c.recvs.inbox.First(op.Slot)
	if a == nil || len(op.Buf) > eagerMax && c.m.sized(op.Slot) {
		return false
	}
	if !a.Note.whole && !a.Announced {
		return false // still arriving: settle matches it
	}
	op.Source = c.peer
	c.take(a, op)
	return true
}

// takeWhole is takeArrival on a connection that has ended: only what has arrived whole can be taken, a rank that is gone
// sends nothing that it had announced.
func (c *conn) takeWhole(op *transport.Op) bool {
	if a := c.recvs.inbox.First(op.Slot); a == nil || a.Announced {
		return false
	}
	return c.takeArrival(op)
}

// take gives an arrival to a receive.
func (c *conn) take(a *early, op *transport.Op) {
	c.recvs.inbox.Remove(a)
	defer c.m.mu.early.Recycle(a)
	if a.Announced {
		if a.Total > uint64(len(op.Buf)) {
			c.queueFrame(nativewire.Header{Type: nativewire.Ready, Slot: op.Slot, Total: uint64(len(op.Buf))})
			op.Complete(c.overflow(op, a.Total))
		} else {
			c.grant(op)
		}
		return
	}
	c.giveBack(len(a.Data) + nativewire.HeaderSize)
	if len(a.Data) > len(op.Buf) {
		op.Complete(c.overflow(op, uint64(len(a.Data))))
	} else {
		op.N = copy(op.Buf, a.Data)
		c.m.mu.copied += op.N
		op.Complete(nil)
	}
}

// grant says Ready and waits for the data.
func (c *conn) grant(op *transport.Op) {
	c.recvs.granted.Push(op)
	h := nativewire.Header{Type: nativewire.Ready, Slot: op.Slot, Total: uint64(op.Length())} //nolint:gosec // not negative
	c.m.describe(&h)
	c.queueFrame(h)
}

func (c *conn) overflow(op *transport.Op, length uint64) error {
	return transport.TooLong(c.peer, c.addr, length, len(op.Buf))
}

// giveBack returns credit to the peer: with the next frame, or at once when half of the window is used up.
func (c *conn) giveBack(n int) {
	c.window.owed += n
	if c.window.owed >= c.m.cfg.Window/2 {
		c.queueFrame(nativewire.Header{Type: nativewire.Beat})
	}
}

// sameClass returns the first op of a slot that a message of total bytes belongs to. Where all ranks agree on the sizes,
// small and large messages of a slot go separate ways and may overtake each other.
func (c *conn) sameClass(l *transport.List, slot, total uint64) *transport.Op {
	if !c.m.sized(slot) {
		return l.OnSlot(slot)
	}
	for op := l.Head; op != nil; op = op.State.Next {
		if op.Slot == slot && (len(op.Buf) > eagerMax) == (total > eagerMax) {
			return op
		}
	}
	return nil
}

// offer gives an arrival that has just become whole to a receive that was posted while it arrived.
func (c *conn) offer(a *early) {
	if c.recvs.inbox.First(a.Slot) != a {
		return
	}
	if op := c.match(a.Slot); op != nil {
		c.take(a, op)
	}
}

// announced handles a Request.
func (c *conn) announced(h nativewire.Header) {
	if c.recvs.inbox.Announced >= maxRequests {
		c.violated("too many announced messages")
		return
	}
	a := c.m.mu.early.New(h.Slot, 0)
	a.Total, a.Announced, a.Note = h.Total, true, note{call: h.Call, called: h.Flags&nativewire.Called != 0}
	c.recvs.inbox.Add(a)
	if op := c.match(h.Slot); op != nil {
		c.take(a, op)
		c.flush()
	}
}

// room handles a Ready: the message that waits for it may go, or one that is posted later.
func (c *conn) room(h nativewire.Header) {
	op := c.sameClass(&c.sends.waiting, h.Slot, h.Total)
	if op == nil {
		if !nativewire.IsCollective(h.Slot) || len(c.sends.rooms) >= maxRequests {
			c.violated("room for a message that was not announced")
			return
		}
		c.sends.rooms = append(c.sends.rooms, ready{h.Slot, h.Total, h.Call})
		return
	}
	c.sends.waiting.Remove(op)
	c.admit(op, h.Total)
	c.flush()
}

// admit queues a message that has room at the peer.
func (c *conn) admit(op *transport.Op, room uint64) {
	if length := op.Length(); room < uint64(length) && room < 1<<32-1 { //nolint:gosec // not negative
		op.Complete(transport.NoRoom(c.peer, c.addr, length, room))
		return
	}
	op.State.Aux = 0
	c.out.granted.Push(op)
}

// match takes out the receive that a message of the peer on slot belongs to.
func (c *conn) match(slot uint64) *transport.Op {
	return transport.TakeFor(&c.recvs.posted, &c.m.mu.anyRecvs, slot, c.peer)
}

// window bounds the eager messages of a connection that no receive has taken, in both directions. Who sends one pays for it
// with credit, and gets that back when the other rank has taken the message.
type window struct {
	theirs int // eager bytes that the peer holds at most
	credit int // of them, those that are left
	owed   int // credit to give back
	used   int // eager bytes that arrived and whose credit was not given back
}

// spend pays for n bytes to be sent, if there is credit for them.
func (w *window) spend(n int) bool {
	if w.credit < n {
		return false
	}
	w.credit -= n
	return true
}

// refund adds credit that the peer gives back. It returns false if that is more than its window has.
func (w *window) refund(n int) bool {
	w.credit += n
	return w.credit <= w.theirs
}

// take notes n bytes that arrived. It returns false if that is more than the own window, of size, takes.
func (w *window) take(n, size int) bool {
	w.used += n
	return w.used <= size
}

// payBack returns the credit that goes back to the peer with a frame.
func (w *window) payBack() uint32 {
	n := w.owed
	w.used -= n
	w.owed = 0
	if invariants.Enabled {
		invariants.Check(w.used >= 0, "a peer gets back no more credit than it used")
	}
	return uint32(n) //nolint:gosec // bounded by the window
}

// keep takes back a payment with a frame that was not sent.
func (w *window) keep(n uint32) {
	w.used += int(n)
	w.owed += int(n)
}

// note is what a connection knows about a message that came before its receive.
type note struct {
	call   nativewire.Call
	called bool
	whole  bool // all bytes are here
}

type early = transport.Early[note]
