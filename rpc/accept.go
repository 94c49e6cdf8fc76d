// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/internal/tensorpipe"
)

// accept takes the sessions that others open.
func (a *Agent) accept() {
	for {
		s, err := a.ep.Accept(a.ctx)
		if err != nil {
			return
		}
		if s.Link != nil {
			a.linkConn(s.Link)
			continue
		}
		c := newConn(a, a.sender(s.Peer), s)
		q := &requests{conn: c}
		c.inline = rpcplace.NewInline(q, rpcplace.PipeGuard)
		a.mu.Lock()
		if a.closed {
			a.mu.Unlock()
			_ = s.Close()
			return
		}
		a.pipes[c] = struct{}{}
		a.work.Go(func() { q.read(0) })
		a.mu.Unlock()
	}
}

// linkConn returns the conn of a link, making it the session of its peer.
func (a *Agent) linkConn(l *cohortwire.Link) *conn {
	a.mu.Lock()
	c := a.links[l]
	closed := a.closed
	a.mu.Unlock()
	if c != nil {
		a.startLink(c)
	}
	if c != nil || closed {
		return c
	}
	c = newConn(a, a.linked(l), &tensorpipe.Session{Link: l})
	a.mu.Lock()
	if known := a.links[l]; known != nil {
		c = known
	}
	a.links[l] = c
	a.mu.Unlock()
	a.startLink(c)
	return c
}

// startLink makes a link the session of its peer, once the peer is a member. Whoever comes second waits for the first.
func (a *Agent) startLink(c *conn) {
	if c.entered.Load() {
		return
	}
	c.enter.Lock()
	defer c.enter.Unlock()
	if c.entered.Load() {
		return
	}
	p := c.peer()
	if p.worker < 0 {
		p = a.linked(c.link)
		c.from.Store(p)
		p.met.Store(true)
	}
	if p.worker >= 0 {
		defer c.entered.Store(true)
	}
	if p.worker >= 0 {
		a.prefer(c)
		early := c.early
		c.early = nil
		for _, payload := range early {
			a.refs.frame(c, payload)
		}
	}
	select {
	case <-c.link.Done(): // it ended before it was entered
		a.background(func() { a.onLinkClosed(c.link, c.link.Err()) })
	default:
	}
}

// maxEarly bounds the control frames that wait for their sender to become a member, and the bytes of each.
const maxEarly, maxEarlyBytes = 64, 64 << 10

// tooEarly keeps a control frame of a worker that joins at this moment: others know it already, and what they tell it can make
// it turn to us before we are told.
func (c *conn) tooEarly(payload []byte) bool {
	if c.entered.Load() || c.peer().worker >= 0 || len(payload) > maxEarlyBytes {
		return false
	}
	c.enter.Lock()
	defer c.enter.Unlock()
	if c.entered.Load() || len(c.early) >= maxEarly {
		return false
	}
	c.early = append(c.early, bytes.Clone(payload))
	return true
}

// admit makes the links of a new member its sessions.
func (a *Agent) admit(name string) {
	a.mu.Lock()
	var waiting []*conn
	for l, c := range a.links {
		if l.Peer().Name == name && !c.entered.Load() {
			waiting = append(waiting, c)
		}
	}
	a.mu.Unlock()
	for _, c := range waiting {
		a.startLink(c)
	}
}

// prefer makes a link the session for our requests to its peer, if it has none that lives. Two workers may have two links
// for a moment; nothing changes over while the first one lives, since what was sent on it could be overtaken.
func (a *Agent) prefer(c *conn) {
	p, id := c.peer(), c.link.Peer()
	p.enter.Lock()
	defer p.enter.Unlock()
	p.mu.Lock()
	old := p.conn
	p.mu.Unlock()
	if old == c || !c.alive() || old != nil && old.alive() && old.link != nil && old.link.Peer().Incarnation == id.Incarnation {
		return
	}
	// References first: what was not acknowledged on an older link goes out before anything new.
	a.refs.connected(p, rrefcore.Cohort, id.Incarnation, c)
	p.mu.Lock()
	p.conn, p.cohort, p.epoch = c, true, id.Incarnation
	p.mu.Unlock()
}

func (a *Agent) onLinkClosed(l *cohortwire.Link, err error) {
	a.mu.Lock()
	c := a.links[l]
	delete(a.links, l)
	a.mu.Unlock()
	if c != nil {
		a.connLost(c, err)
	}
}

// aside tells the frames that a caller may pass to onFrame while it waits for something else: none of them runs code of
// the program, except for observers.
func aside(t cohortwire.Type) bool {
	return t == frameControl || t == cohortwire.Type(rpcwire.RemoteRet)
}

// onFrame gets every frame of every link, in the link's reading goroutine: it must not block.
func (a *Agent) onFrame(l *cohortwire.Link, f *cohortwire.Frame) {
	c := a.linkConn(l)
	if c == nil {
		f.Release()
		return
	}
	c.peer().stats.received(frameSize(f))
	switch {
	case f.Type == frameControl:
		if !c.tooEarly(f.Payload) {
			a.refs.frame(c, f.Payload)
		}
		return
	case f.Type == frameCancel:
		c.mu.Lock()
		cancel := c.serving[f.ID]
		c.mu.Unlock()
		if cancel != nil {
			cancel(errGivenUp)
		}
		return
	case f.Type.IsResponse():
		m, err := rpcwire.DecodeFrame(f)
		if !c.answered(f.ID, reply{msg: m, frame: f, err: err}) {
			a.refs.discard(c, f) // too late: what it brought is not wanted
			f.Release()
		}
		return
	}
	r := &request{conn: c, peer: c.peer(), id: f.ID, kind: rpcwire.Type(f.Type), frame: f, flags: f.Flags}
	if f.Deadline > 0 {
		r.deadline = time.Now().Add(f.Deadline)
	}
	m, err := rpcwire.DecodeFrame(f)
	if err == nil && !m.Type.Known() {
		err = dist.Newf("rpc: decode", dist.Protocol, "unknown message type %#x", f.Type)
	}
	if err != nil {
		a.refs.discard(c, f)
		f.Release()
		r.refuse(err)
		return
	}
	r.payload, r.tensors = m.Payload, m.Tensors
	r.inline = f.Quiet
	a.dispatch(r)
}
