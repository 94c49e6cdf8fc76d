// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"bytes"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// writer is the writing side of a connection. Between two frames of messages it writes the small frames that have gathered.
//
// The peer matches messages of a slot in the order in which it hears of them first. So what tells of a message, which is the message itself
// or a request for room, is written in the order in which the messages were posted. Those that have room have been heard of: their order is
// a matter of fairness.
type writer struct {
	fresh   transport.List // messages that the peer has not learned of
	granted transport.List // messages that the peer has room for
	ahead   int            // bytes of fresh messages since the last frame of a granted one
	control []byte         // small frames to be written before the next message
	current *transport.Op  // the message whose frame is being written
	orphan  transport.Op   // stands for a message whose owner has given up
	head    [nativewire.HeaderSize]byte
	headAt  int    // bytes of head written
	piece   []byte // payload of the frame that is missing
	more    bool   // the message goes on after this frame
	armed   bool   // epoll tells when the socket takes more
	broken  bool   // a write failed
}

// idle reports whether all is written that was begun.
func (w *writer) idle() bool { return len(w.control) == 0 && w.current == nil }

// gather adds to v what is to be written next. It returns how many bytes of that are small frames.
func (w *writer) gather(v *iovecs) (control int) {
	if w.headAt == 0 || w.current == nil { // between frames
		v.add(w.control)
		control = len(w.control)
	}
	if w.current != nil {
		v.add(w.head[w.headAt:])
		v.add(w.piece[:min(len(w.piece), maxCopy)])
	}
	return control
}

// wrote notes that the kernel took n bytes, of which the first are small frames. It reports whether the frame of a message ends there.
func (w *writer) wrote(n, control int) bool {
	if control > 0 {
		k := min(n, control)
		w.control = w.control[:copy(w.control, w.control[k:])]
		n -= k
	}
	if w.current == nil {
		return false
	}
	k := min(n, nativewire.HeaderSize-w.headAt)
	w.headAt += k
	w.piece = w.piece[n-k:]
	if w.headAt < nativewire.HeaderSize || len(w.piece) > 0 {
		return false
	}
	w.headAt = 0
	return true
}

// asksForRoom is the Aux of a fresh message that asks for room. That of a granted one is the number of bytes that were put into frames.
const asksForRoom = 1

// post queues a message: eagerly when it is small and the peer has room for it, else when the peer is ready.
func (c *conn) post(op *transport.Op) {
	if len(op.Buf) > eagerMax {
		for i, r := range c.sends.rooms {
			if r.slot == op.Slot {
				c.sends.rooms = append(c.sends.rooms[:i], c.sends.rooms[i+1:]...)
				c.admit(op, r.room)
				return
			}
		}
		if c.m.sized(op.Slot) { // the peer says unasked when it has room
			c.sends.waiting.Push(op)
			return
		}
	}
	if len(op.Buf) > eagerMax || !c.window.spend(cost(op)) {
		op.State.Aux = asksForRoom
	}
	c.out.fresh.Push(op)
}

// unspend takes back what a message that will not be written has paid.
func (c *conn) unspend(op *transport.Op) {
	if op.State.Aux != asksForRoom {
		c.window.credit += cost(op)
	}
}

// abandon gives the buffer of the message that is being written back to its owner. A frame of which a part is written
// must end before another can follow, so the rest is written from a copy. Of any other frame the peer receives nothing, so
// what was paid with it is taken back.
func (c *conn) abandon(op *transport.Op) {
	c.out.granted.Remove(op) // where it is if more frames follow
	if c.out.headAt > 0 {
		c.out.piece = bytes.Clone(c.out.piece)
		c.out.current, c.out.more = &c.out.orphan, false
		return
	}
	c.out.current, c.out.piece = nil, nil
	h, _ := nativewire.Parse(c.out.head[:]) // its own
	c.window.keep(h.Credit)
	c.sentCore = 0
	if h.Type == nativewire.Eager {
		c.unspend(op)
	}
}

// queueFrame queues a frame without payload.
func (c *conn) queueFrame(h nativewire.Header) {
	if c.gone != nil || c.out.broken {
		return
	}
	c.enclose(&h)
	n := len(c.out.control)
	c.out.control = append(c.out.control, make([]byte, nativewire.HeaderSize)...)
	h.Put(c.out.control[n:])
}

// enclose adds to a frame what every frame carries.
func (c *conn) enclose(h *nativewire.Header) {
	c.sentCore = c.m.mu.cores[c.m.rank]
	h.Core = c.sentCore
	if c.window.owed > 0 {
		h.Credit = c.window.payBack()
	}
}

// flush writes as much as the kernel takes.
func (c *conn) flush() {
	for c.gone == nil && !c.out.broken {
		if c.out.current == nil {
			c.openNext()
		}
		v := iovecs{}
		control := c.out.gather(&v)
		if v.bytes == 0 {
			if c.m.cfg.Local != nil && c.outdated() {
				c.queueFrame(beatFrame)
				continue
			}
			if c.out.armed {
				c.arm(false)
			}
			return
		}
		n, errno := sendv(c.fd, &v)
		if errno == unix.EINTR {
			continue
		}
		if errno == unix.EAGAIN {
			if !c.out.armed {
				c.arm(true)
			}
			return
		}
		if errno != 0 {
			c.writeFailed(errno)
			return
		}
		c.activity.spoke = true
		if c.out.wrote(n, control) {
			op := c.out.current
			c.out.current, c.out.piece = nil, nil
			if !c.out.more { // this was its last frame
				op.Complete(nil)
			}
		}
	}
}

// writeFailed leaves it to the reader to find out why: a goodbye or the reason of the loss may still be in the socket.
func (c *conn) writeFailed(errno syscall.Errno) {
	c.out.broken = true
	c.out.control = c.out.control[:0]
	c.read()
	if c.gone == nil {
		c.ended(errno)
	}
}

// openNext begins the next frame of a message. Fresh messages are small and go first, until they have taken as much as
// a frame of a granted one may take.
func (c *conn) openNext() {
	first := c.out.fresh.Head != nil && (c.out.granted.Head == nil || c.out.ahead < nativewire.MaxPiece)
	if (!first || !c.openFresh()) && c.out.granted.Head != nil {
		c.openGranted()
	}
}

// openFresh begins the frame of the oldest fresh message, behind the requests of those before it. It returns false if there is none, or
// the peer is to receive others first.
func (c *conn) openFresh() bool {
	for op := c.out.fresh.Head; op != nil; op = c.out.fresh.Head {
		if op.State.Aux == asksForRoom && c.sends.waiting.Len >= maxAnnounced {
			return false
		}
		c.out.fresh.Pop()
		if op.State.Aux != asksForRoom {
			h := nativewire.Header{Type: nativewire.Eager, Slot: op.Slot}
			c.m.describe(&h)
			c.out.more = false
			c.out.ahead += cost(op)
			c.frame(op, &h, op.Buf)
			return true
		}
		c.sends.waiting.Push(op)
		h := nativewire.Header{Type: nativewire.Request, Slot: op.Slot, Total: uint64(len(op.Buf))}
		c.m.describe(&h)
		c.queueFrame(h)
	}
	return false
}

// openGranted begins the next frame of the oldest granted message.
func (c *conn) openGranted() {
	op := c.out.granted.Head
	at := int(op.State.Aux) //nolint:gosec // at most the length
	end := min(at+nativewire.MaxPiece, len(op.Buf))
	op.State.Aux = uint64(end)
	h := nativewire.Header{Type: nativewire.Data, Slot: op.Slot, Total: uint64(op.Length())} //nolint:gosec // not negative
	c.out.more, c.out.ahead = end < len(op.Buf), 0
	if c.out.more {
		h.Flags |= nativewire.More
	} else {
		c.out.granted.Remove(op)
	}
	c.frame(op, &h, op.Buf[at:end])
}

// frame begins a frame of a message.
func (c *conn) frame(op *transport.Op, h *nativewire.Header, piece []byte) {
	c.enclose(h)
	h.Length = uint32(len(piece)) //nolint:gosec // at most MaxPiece
	c.out.current, c.out.headAt, c.out.piece = op, 0, piece
	h.Put(c.out.head[:])
}

// arm tells epoll whether to report that the socket takes more.
func (c *conn) arm(on bool) {
	c.out.armed = on
	events := uint32(unix.EPOLLIN | unix.EPOLLRDHUP)
	if on {
		events |= unix.EPOLLOUT
	}
	_ = unix.EpollCtl(c.m.ep, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: int32(c.peer)}) //nolint:gosec // a rank
}

// failureFrame returns a frame that says why a group failed, and the words for it.
func failureFrame(kind nativewire.Type, err error) (h nativewire.Header, text string) {
	h, text = nativewire.Header{Type: kind, Total: uint64(cohort.CodeOf(err))}, err.Error()
	if e, ok := errors.AsType[*cohort.Error](err); ok {
		if e.Rank >= 0 {
			h.Slot = uint64(e.Rank) + 1
		}
		if e.Detail != "" {
			text = e.Detail
		}
	}
	return h, text
}

// abort reports to the peer why the group failed, as far as the socket takes it at once.
func (c *conn) abort(err error) {
	h, text := failureFrame(nativewire.Abort, err)
	if len(text) > nativewire.MaxText {
		text = text[:nativewire.MaxText]
	}
	h.Length = uint32(len(text)) //nolint:gosec // at most MaxText
	c.queueFrame(h)
	if !c.out.broken {
		c.out.control = append(c.out.control, text...)
	}
	c.flush()
}
