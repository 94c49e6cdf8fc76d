// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
)

// deferPause is how long a dialler that was told to wait does so before it asks again.
const deferPause = 250 * time.Millisecond

// place is where the session with one worker is or will be.
type place struct {
	session  *Session
	err      error
	dialing  bool // we dial
	incoming bool // a link of the peer's own dial is being set up
	settled  bool
	// Arriving links are numbered, so that a restarted worker's link is not replaced by that of its former start, whose
	// set-up was slower.
	arrived, installed uint64
	ready              chan struct{} // closed when settled: there is a session, or an error, or nothing
}

func newPlace() *place { return &place{ready: make(chan struct{})} }

func (p *place) settle() {
	if !p.settled {
		p.settled = true
		close(p.ready)
	}
}

func (p *place) busy() bool { return p.dialing || p.incoming }

// Connect returns the session with a worker: the one that exists, or a new one to addr ("host:port" or PyTorch's
// "uv://host:port"). With a PyTorch worker it is a pipe for our requests. With a Go worker it is the link of this pair,
// whoever opened it; when both dial at once, the connection of the worker whose name sorts first is kept.
//
// A dial goes on when ctx ends, and a later Connect finds its outcome. The session belongs to the endpoint.
func (ep *Endpoint) Connect(ctx context.Context, name, addr string) (*Session, error) {
	addr = strings.TrimPrefix(addr, "uv://")
	for {
		ep.mu.Lock()
		if ep.closed {
			ep.mu.Unlock()
			return nil, dist.New("tensorpipe: connect", dist.Closed, "the endpoint is closed")
		}
		p := ep.places[name]
		if p != nil && p.session != nil && p.session.alive() {
			ep.mu.Unlock()
			return p.session, nil
		}
		if p == nil || !p.busy() {
			p = newPlace()
			p.dialing = true
			ep.places[name] = p
			ep.work.Go(func() { ep.dialPeer(name, addr, p) })
		}
		ep.mu.Unlock()
		select {
		case <-p.ready:
		case <-ctx.Done():
			e := dist.FromContext("tensorpipe: connect", ctx)
			e.Peer = name
			return nil, e
		}
		if s, err := ep.outcome(p); s != nil || err != nil {
			return s, err
		}
		if err := dist.FromContext("tensorpipe: connect", ctx); err != nil { // the session ended at once; try again
			return nil, err
		}
	}
}

func (ep *Endpoint) outcome(p *place) (*Session, error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if p.session != nil && p.session.alive() {
		return p.session, nil
	}
	return nil, p.err
}

// dialPeer dials and publishes the outcome.
func (ep *Endpoint) dialPeer(name, addr string, p *place) {
	s, wait, err := ep.dial(addr, name != ep.name)
	for begin := time.Now(); wait; { // the peer's own dial is the one that counts
		select {
		case <-p.ready:
			return
		case <-time.After(deferPause): // or it is a link that ended here and not yet there: ask again
			s, wait, err = ep.dial(addr, true)
		case <-ep.ctx.Done():
			wait, err = false, context.Cause(ep.ctx)
		}
		if wait && time.Since(begin) > ep.cfg.handshake {
			wait, err = false, dist.New("tensorpipe: connect", dist.Unavailable, "the peer asks us to wait for its own connection, which does not come")
		}
	}
	if err == nil && s.Link != nil && s.Link.Peer().Name != name {
		err = dist.Newf("tensorpipe: connect", dist.Mismatch, "%s is worker %q, not %q", addr, s.Link.Peer().Name, name)
		_ = s.Close()
	}
	ep.mu.Lock()
	if !p.dialing { // the peer's link arrived meanwhile
		ep.mu.Unlock()
		if err == nil {
			_ = s.Close()
		}
		return
	}
	p.dialing = false
	if err != nil {
		p.err = err
		if ep.places[name] == p && !p.incoming {
			delete(ep.places, name)
		}
	} else {
		p.session = s
	}
	p.settle()
	ep.mu.Unlock()
	if err == nil && s.Link != nil && !s.alive() { // it ended before it was entered, so nobody took it out
		ep.dropLink(s.Link)
	}
}

// reserve keeps the place of a worker for the link that it is opening, and numbers that link. It returns nil when our own dial to that worker is
// under way and wins, or when there is a link with the same start of that worker: its dial then crossed ours.
func (ep *Endpoint) reserve(name string, incarnation uint64) (*place, uint64) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.places[name]
	if p != nil && p.dialing && ep.name < name {
		return nil, 0
	}
	if p != nil && p.session != nil && p.session.Link != nil && p.session.alive() && p.session.Link.Peer().Incarnation == incarnation {
		return nil, 0
	}
	if p == nil || !p.busy() {
		fresh := newPlace()
		if p != nil {
			fresh.session, fresh.arrived, fresh.installed = p.session, p.arrived, p.installed
		}
		p = fresh
		ep.places[name] = p
	}
	p.incoming = true
	p.arrived++
	return p, p.arrived
}

// unreserve ends a reservation that may or may not have been used.
func (ep *Endpoint) unreserve(name string, p *place) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p.incoming = false
	if p.dialing {
		return
	}
	p.settle()
	if ep.places[name] == p && (p.session == nil || !p.session.alive()) {
		delete(ep.places, name)
	}
}

// startLink begins the cohort transport on a negotiated connection.
func (ep *Endpoint) startLink(s *stream) (*cohortwire.Link, error) {
	buffered, err := s.br.Peek(s.br.Buffered())
	if err != nil {
		return nil, err
	}
	cfg := *ep.cfg.cohort
	user := cfg.OnClose
	cfg.OnClose = func(l *cohortwire.Link, err error) {
		ep.dropLink(l)
		if user != nil {
			user(l, err)
		}
	}
	return cohortwire.Start(s.nc, buffered, cfg)
}

// dropLink forgets a link that ended.
func (ep *Endpoint) dropLink(l *cohortwire.Link) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	name := l.Peer().Name
	if p := ep.places[name]; p != nil && !p.busy() && p.session != nil && p.session.Link == l {
		delete(ep.places, name)
	}
}

// accepted makes an arriving link the session with its worker. An older link, of an earlier start of that worker, ends.
func (ep *Endpoint) accepted(name string, p *place, number uint64, s *stream) error {
	link, err := ep.startLink(s)
	if err != nil {
		return err
	}
	if link.Peer().Name != name {
		_ = link.Close()
		return dist.Newf("tensorpipe: handshake", dist.Protocol, "worker %q calls itself %q", name, link.Peer().Name)
	}
	session := &Session{Peer: name, Link: link}
	ep.mu.Lock()
	if ep.closed {
		ep.mu.Unlock()
		_ = link.Close()
		return nil
	}
	if p.installed > number { // a later start of that worker was quicker
		ep.mu.Unlock()
		_ = link.Close()
		return nil
	}
	p.installed = number
	replaced := p.session
	p.session, p.err, p.dialing, p.incoming = session, nil, false, false
	ep.places[name] = p
	p.settle()
	ep.mu.Unlock()
	if replaced != nil {
		_ = replaced.Close()
	}
	select {
	case ep.sessions <- session:
		return nil
	default:
		_ = link.Close()
		return dist.Newf("tensorpipe: handshake", dist.Exhausted, "more than %d sessions wait to be accepted", cap(ep.sessions))
	}
}

func (ep *Endpoint) closePlaces() {
	ep.mu.Lock()
	places := ep.places
	ep.places = map[string]*place{}
	ep.mu.Unlock()
	for _, p := range places {
		if p.session != nil {
			_ = p.session.Close()
		}
	}
}
