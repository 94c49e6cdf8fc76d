// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/invariants"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

// post queues a message: eagerly when it is small and the peer has room for it, else when the peer is ready.
func (c *conn) post(op *link.Op) {
	if len(op.Buf) <= EagerMax && c.credit >= cost(op) {
		c.credit -= cost(op)
		c.out.Push(op)
		return
	}
	for i, r := range c.readys {
		if r.slot == op.Slot && len(op.Buf) > EagerMax {
			c.readys = append(c.readys[:i], c.readys[i+1:]...)
			c.admit2(op, r.room)
			return
		}
	}
	op.State.Aux = large
	c.waiting.Push(op)
	if len(op.Buf) <= EagerMax || !c.m.sized(op.Slot) {
		h := wire.Header{Type: wire.Request, Slot: op.Slot, Total: uint64(len(op.Buf))}
		c.describe(&h)
		c.tell(h)
	}
}

// tell queues a frame without payload.
func (c *conn) tell(h wire.Header) {
	if c.gone != nil || c.broken {
		return
	}
	h.Credit, h.Core = c.payBack(), c.m.mu.cores[c.m.rank]
	n := len(c.control)
	c.control = append(c.control, make([]byte, wire.HeaderSize)...)
	h.Put(c.control[n:])
}

// payBack returns the credit that goes back to the peer with a frame.
func (c *conn) payBack() uint32 {
	n := c.owed
	c.used -= n
	c.owed = 0
	if invariants.Enabled {
		invariants.Check(c.used >= 0, "a peer gets back no more credit than it used")
	}
	return uint32(n) //nolint:gosec // bounded by the window
}

// flush writes as much as the kernel takes.
func (c *conn) flush() {
	for c.gone == nil && !c.broken {
		if c.current == nil {
			if op := c.out.Pop(); op != nil {
				c.open(op)
			}
		}
		v := iovecs{}
		control := 0
		if c.headAt == 0 || c.current == nil { // between frames
			v.add(c.control)
			control = len(c.control)
		}
		if c.current != nil {
			v.add(c.head[c.headAt:])
			v.addUpTo(c.piece)
		}
		if v.bytes == 0 {
			if c.armed {
				c.arm(false)
			}
			return
		}
		n, errno := sendv(c.fd, &v)
		if errno == unix.EINTR {
			continue
		}
		if errno == unix.EAGAIN {
			if !c.armed {
				c.arm(true)
			}
			return
		}
		if errno != 0 {
			// The reader finds out why: a goodbye or the reason of the loss may still be in the socket.
			c.broken = true
			c.control = c.control[:0]
			c.read()
			if c.gone == nil {
				c.ended(errno)
			}
			return
		}
		c.spoke = true
		c.wrote(n, control)
	}
}

// wrote takes note of n bytes that the kernel took.
func (c *conn) wrote(n, control int) {
	if control > 0 {
		k := min(n, control)
		c.control = c.control[:copy(c.control, c.control[k:])]
		n -= k
	}
	if c.current == nil {
		return
	}
	k := min(n, wire.HeaderSize-c.headAt)
	c.headAt += k
	n -= k
	c.piece = c.piece[n:]
	if c.headAt < wire.HeaderSize || len(c.piece) > 0 {
		return
	}
	op := c.current
	c.headAt = 0
	if c.more {
		c.open(op)
		return
	}
	c.current = nil
	op.Complete(nil)
}

// The progress of a send is in its Aux: the bytes that were put into frames, and a mark for messages that asked first.
const (
	large    uint64 = 1 << 62
	progress        = large - 1
)

// open makes the next frame of a message.
func (c *conn) open(op *link.Op) {
	c.current, c.headAt = op, 0
	h := wire.Header{Slot: op.Slot, Credit: c.payBack(), Core: c.m.mu.cores[c.m.rank]}
	if op.State.Aux&large == 0 {
		h.Type = wire.Eager
		c.piece, c.more = op.Buf, false
		c.describe(&h)
	} else {
		at := int(op.State.Aux & progress)
		end := min(at+wire.MaxPiece, len(op.Buf))
		h.Type, h.Total = wire.Data, uint64(len(op.Buf))
		c.piece, c.more = op.Buf[at:end], end < len(op.Buf)
		if c.more {
			h.Flags |= wire.More
		}
		op.State.Aux = large | uint64(end)
	}
	h.Length = uint32(len(c.piece)) //nolint:gosec // at most MaxPiece
	h.Put(c.head[:])
}

// admit2 is admit for a message that is being posted.
func (c *conn) admit2(op *link.Op, room uint64) {
	op.State.Aux = large
	c.admit(op, room)
}

// arm tells epoll whether to report that the socket takes more.
func (c *conn) arm(on bool) {
	c.armed = on
	events := uint32(unix.EPOLLIN | unix.EPOLLRDHUP)
	if on {
		events |= unix.EPOLLOUT
	}
	_ = unix.EpollCtl(c.m.ep, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: int32(c.peer)}) //nolint:gosec // a rank
}

// abort tells the peer why the group failed, as far as the socket takes it at once.
func (c *conn) abort(err error) {
	h := wire.Header{Type: wire.Abort, Total: uint64(dist.CodeOf(err))}
	text := err.Error()
	if e, ok := errors.AsType[*dist.Error](err); ok {
		if e.Rank >= 0 {
			h.Slot = uint64(e.Rank) + 1
		}
		if e.Detail != "" {
			text = e.Detail
		}
	}
	if len(text) > wire.MaxText {
		text = text[:wire.MaxText]
	}
	h.Length = uint32(len(text)) //nolint:gosec // at most MaxText
	c.tell(h)
	if !c.broken {
		c.control = append(c.control, text...)
	}
	c.flush()
}
