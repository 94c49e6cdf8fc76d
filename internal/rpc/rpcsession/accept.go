// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"bytes"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// accept takes the sessions that other workers open.
func (n *Links) accept() {
	for {
		failpoint.At("rpc.link.accept")
		s, err := n.ep.Accept(n.Context)
		if err != nil {
			return
		}
		if s.Link != nil {
			n.linkConn(s.Link)
			continue
		}
		c := newConn(n, n.sender(s.Peer), s)
		q := &requestReader{conn: c}
		c.Inline = rpcslots.NewInline(q, rpcslots.PipeGuard)
		failpoint.At("rpc.link.pipe")
		n.mu.Lock()
		if n.mu.closed {
			n.mu.Unlock()
			_ = s.Close()
			return
		}
		n.mu.pipes[c] = struct{}{}
		c.Peer().openedPipe.Store(true) // not before: see RequestPipesClosed
		n.work.Go(func() { q.read(0) })
		n.mu.Unlock()
	}
}

// linkConn returns the conn of a link, making it the session of its peer.
func (n *Links) linkConn(l *cohortwire.Link) *Conn {
	failpoint.At("rpc.link.of")
	n.mu.Lock()
	c := n.mu.links[l]
	closed := n.mu.closed
	n.mu.Unlock()
	if c != nil {
		n.startLink(c)
	}
	if c != nil || closed {
		return c
	}
	c = newConn(n, n.linked(l), &tensorpipe.Session{Link: l})
	failpoint.At("rpc.link.made")
	n.mu.Lock()
	if known := n.mu.links[l]; known != nil {
		c = known
	}
	n.mu.links[l] = c
	n.mu.Unlock()
	n.startLink(c)
	return c
}

// startLink makes a link the session of its peer, once the peer is a member. A second caller waits for the first.
func (n *Links) startLink(c *Conn) {
	if c.entered.Load() {
		return
	}
	if !n.enterLink(c) {
		return
	}
	select {
	case <-c.Link.Done(): // it ended before it was entered
		n.Background(func() { n.onLinkClosed(c.Link, c.Link.Err()) })
	default:
	}
}

// enterLink does that for the first caller. It looks up the peer's listener after it has released its locks.
func (n *Links) enterLink(c *Conn) (first bool) {
	session := false
	defer func() {
		if session {
			n.Background(c.Peer().noteListener)
		}
	}()
	failpoint.At("rpc.link.enter")
	c.enter.Lock()
	defer c.enter.Unlock()
	if c.entered.Load() {
		return false
	}
	p := c.Peer()
	if p.ID < 0 {
		p = n.linked(c.Link)
		c.from.Store(p)
		p.Met.Store(true)
	}
	if p.ID >= 0 {
		defer c.entered.Store(true)
		session = n.prefer(c)
		early := c.early
		c.early = nil
		for _, payload := range early {
			n.cfg.Handler.Control(c, payload)
		}
	}
	return true
}

// maxEarly bounds the control frames that wait for their sender to become a member, and the bytes of each.
const maxEarly, maxEarlyBytes = 64, 64 << 10

// bufferEarly keeps a control frame of a worker that joins at this moment: others know it already, and what they send it can make
// it send to us before we know of it.
func (c *Conn) bufferEarly(payload []byte) bool {
	if c.entered.Load() || c.Peer().ID >= 0 || len(payload) > maxEarlyBytes {
		return false
	}
	failpoint.At("rpc.link.early")
	c.enter.Lock()
	defer c.enter.Unlock()
	if c.entered.Load() || len(c.early) >= maxEarly {
		return false
	}
	c.early = append(c.early, bytes.Clone(payload))
	return true
}

// Admit makes the links of a new member its sessions.
func (n *Links) Admit(name string) {
	failpoint.At("rpc.link.admit")
	n.mu.Lock()
	var waiting []*Conn
	for l, c := range n.mu.links {
		if l.Peer().Name == name && !c.entered.Load() {
			waiting = append(waiting, c)
		}
	}
	n.mu.Unlock()
	for _, c := range waiting {
		n.startLink(c)
	}
}

// prefer makes a link the session for our requests to its peer, if it has no live one, and reports whether it did. Two workers may
// have two links for a moment; nothing changes over while the first one lives, since what was sent on it could be overtaken.
func (n *Links) prefer(c *Conn) bool {
	p, id := c.Peer(), c.Link.Peer()
	p.enter.Lock()
	defer p.enter.Unlock()
	p.mu.Lock()
	old := p.mu.conn
	p.mu.Unlock()
	if old == c || !c.Alive() || old != nil && old.Alive() && old.Link != nil && old.Link.Peer().Incarnation == id.Incarnation {
		return false
	}
	// References first: what was not acknowledged on an older link is sent before anything new.
	n.cfg.Handler.Connected(c)
	p.mu.Lock()
	if p.mu.epoch != id.Incarnation {
		p.mu.listener = ""
	}
	p.mu.conn, p.mu.goPeer, p.mu.epoch = c, true, id.Incarnation
	p.mu.Unlock()
	return true
}

func (n *Links) onLinkClosed(l *cohortwire.Link, err error) {
	failpoint.At("rpc.link.closed")
	n.mu.Lock()
	c := n.mu.links[l]
	delete(n.mu.links, l)
	n.mu.Unlock()
	if c != nil {
		n.connLost(c, err)
	}
}

// mayPassOn reports the types of frames that a caller may pass to onFrame while it waits for something else: none of them runs code of
// the program, except for observers.
func mayPassOn(t cohortwire.Type) bool {
	return t == FrameControl || t == cohortwire.Type(rpcwire.RemoteRet)
}

// onFrame gets every frame of every link, in the link's reading goroutine: it must not block.
func (n *Links) onFrame(l *cohortwire.Link, f *cohortwire.Frame) {
	c := n.linkConn(l)
	if c == nil {
		f.Release()
		return
	}
	c.Peer().Stats.received(frameSize(f))
	switch {
	case f.Type == FrameControl:
		if !c.bufferEarly(f.Payload) {
			n.cfg.Handler.Control(c, f.Payload)
		}
		l.FlushNow() // a peer that waits for the answer to a creation has sent it
		return
	case f.Type == frameCancel:
		c.canceledByCaller(f.ID)
		return
	case f.Type.IsResponse():
		m, err := rpcwire.DecodeFrame(f)
		if !c.answered(f.ID, Reply{Msg: m, Frame: f, Err: err}) {
			n.cfg.Handler.Discard(c, f) // too late: its references are not wanted
			f.Release()
		}
		return
	}
	in := Incoming{Conn: c, Peer: c.Peer(), ID: f.ID, Kind: rpcwire.Type(f.Type), Frame: f, Flags: f.Flags, Inline: f.BufferEmpty}
	if f.Deadline > 0 {
		in.Deadline = time.Now().Add(f.Deadline)
	}
	if len(f.Trace) > 0 {
		in.Trace = string(f.Trace)
	}
	var m rpcwire.Message
	err := m.FromFrame(f)
	if err == nil && !m.Type.Known() {
		err = cohort.Newf("rpc: decode", cohort.Protocol, "unknown message type %#x", f.Type)
	}
	if err != nil {
		n.cfg.Handler.Discard(c, f)
		f.Release()
		in.Err, in.Frame = err, nil
	} else {
		in.Payload, in.Tensors = m.Payload, m.Tensors
	}
	n.cfg.Handler.Request(in)
}
