// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

// writer is the writing side of a connection. Between two frames of messages it writes the small frames that have gathered.
type writer struct {
	queue   link.List // messages to be written
	control []byte    // small frames to be written before the next message
	current *link.Op  // the message whose frame is being written
	orphan  link.Op   // stands for a message whose owner has given up
	head    [wire.HeaderSize]byte
	headAt  int    // bytes of head written
	piece   []byte // payload of the frame that is missing
	more    bool   // the message goes on after this frame
	armed   bool   // epoll tells when the socket takes more
	broken  bool   // a write failed
}

// idle reports whether all is written that was begun.
func (w *writer) idle() bool { return len(w.control) == 0 && w.current == nil }

// put adds a small frame.
func (w *writer) put(h *wire.Header) {
	n := len(w.control)
	w.control = append(w.control, make([]byte, wire.HeaderSize)...)
	h.Put(w.control[n:])
}

// begin begins a frame of a message.
func (w *writer) begin(op *link.Op, h *wire.Header) {
	w.current, w.headAt = op, 0
	h.Put(w.head[:])
}

// gather adds to v what is to be written next. It returns how many bytes of that are small frames.
func (w *writer) gather(v *iovecs) (control int) {
	if w.headAt == 0 || w.current == nil { // between frames
		v.add(w.control)
		control = len(w.control)
	}
	if w.current != nil {
		v.add(w.head[w.headAt:])
		v.addUpTo(w.piece)
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
	k := min(n, wire.HeaderSize-w.headAt)
	w.headAt += k
	w.piece = w.piece[n-k:]
	if w.headAt < wire.HeaderSize || len(w.piece) > 0 {
		return false
	}
	w.headAt = 0
	return true
}

// abandon gives the buffer of the message that is being written back to its owner. A frame that has begun must end before another can
// follow, so that is written from a copy.
func (w *writer) abandon() {
	w.current = nil
	if w.headAt > 0 {
		w.piece = bytes.Clone(w.piece)
		w.current, w.more = &w.orphan, false
	}
}

// post queues a message: eagerly when it is small and the peer has room for it, else when the peer is ready.
func (c *conn) post(op *link.Op) {
	if len(op.Buf) <= EagerMax && c.window.spend(cost(op)) {
		c.out.queue.Push(op)
		return
	}
	for i, r := range c.sends.rooms {
		if r.slot == op.Slot && len(op.Buf) > EagerMax {
			c.sends.rooms = append(c.sends.rooms[:i], c.sends.rooms[i+1:]...)
			c.admit2(op, r.room)
			return
		}
	}
	op.State.Aux = large
	c.sends.waiting.Push(op)
	if len(op.Buf) <= EagerMax || !c.m.sized(op.Slot) {
		h := wire.Header{Type: wire.Request, Slot: op.Slot, Total: uint64(len(op.Buf))}
		c.describe(&h)
		c.tell(h)
	}
}

// tell queues a frame without payload.
func (c *conn) tell(h wire.Header) {
	if c.gone != nil || c.out.broken {
		return
	}
	h.Credit, h.Core = c.window.payBack(), c.m.mu.cores[c.m.rank]
	c.out.put(&h)
}

// flush writes as much as the kernel takes.
func (c *conn) flush() {
	for c.gone == nil && !c.out.broken {
		if c.out.current == nil {
			if op := c.out.queue.Pop(); op != nil {
				c.open(op)
			}
		}
		v := iovecs{}
		control := c.out.gather(&v)
		if v.bytes == 0 {
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
			// The reader finds out why: a goodbye or the reason of the loss may still be in the socket.
			c.out.broken = true
			c.out.control = c.out.control[:0]
			c.read()
			if c.gone == nil {
				c.ended(errno)
			}
			return
		}
		c.signs.spoke = true
		if c.out.wrote(n, control) {
			c.next()
		}
	}
}

// next goes on with the message of which a frame was written, or completes it.
func (c *conn) next() {
	op := c.out.current
	if c.out.more {
		c.open(op)
		return
	}
	c.out.current = nil
	op.Complete(nil)
}

// The progress of a send is in its Aux: the bytes that were put into frames, and a mark for messages that asked first.
const (
	large    uint64 = 1 << 62
	progress        = large - 1
)

// open makes the next frame of a message.
func (c *conn) open(op *link.Op) {
	h := wire.Header{Slot: op.Slot, Credit: c.window.payBack(), Core: c.m.mu.cores[c.m.rank]}
	if op.State.Aux&large == 0 {
		h.Type = wire.Eager
		c.out.piece, c.out.more = op.Buf, false
		c.describe(&h)
	} else {
		at := int(op.State.Aux & progress)
		end := min(at+wire.MaxPiece, len(op.Buf))
		h.Type, h.Total = wire.Data, uint64(len(op.Buf))
		c.out.piece, c.out.more = op.Buf[at:end], end < len(op.Buf)
		if c.out.more {
			h.Flags |= wire.More
		}
		op.State.Aux = large | uint64(end)
	}
	h.Length = uint32(len(c.out.piece)) //nolint:gosec // at most MaxPiece
	c.out.begin(op, &h)
}

// admit2 is admit for a message that is being posted.
func (c *conn) admit2(op *link.Op, room uint64) {
	op.State.Aux = large
	c.admit(op, room)
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

// because returns a frame that says why a group failed, and the words for it.
func because(kind wire.Type, err error) (h wire.Header, text string) {
	h, text = wire.Header{Type: kind, Total: uint64(dist.CodeOf(err))}, err.Error()
	if e, ok := errors.AsType[*dist.Error](err); ok {
		if e.Rank >= 0 {
			h.Slot = uint64(e.Rank) + 1
		}
		if e.Detail != "" {
			text = e.Detail
		}
	}
	return h, text
}

// abort tells the peer why the group failed, as far as the socket takes it at once.
func (c *conn) abort(err error) {
	h, text := because(wire.Abort, err)
	if len(text) > wire.MaxText {
		text = text[:wire.MaxText]
	}
	h.Length = uint32(len(text)) //nolint:gosec // at most MaxText
	c.tell(h)
	if !c.out.broken {
		c.out.control = append(c.out.control, text...)
	}
	c.flush()
}
