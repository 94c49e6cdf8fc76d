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

// peer is what the endpoint knows about a worker it has, or wants, a session with.
type peer struct {
	session *Session
	err     error
	dialing bool
	ready   chan struct{} // closed when dialing ends or a link arrives
}

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
		p := ep.peers[name]
		if p != nil && p.session != nil && p.session.alive() {
			ep.mu.Unlock()
			return p.session, nil
		}
		if p == nil || !p.dialing {
			p = &peer{dialing: true, ready: make(chan struct{})}
			ep.peers[name] = p
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
		if p.err != nil {
			return nil, p.err
		}
		if p.session != nil && p.session.alive() {
			return p.session, nil
		}
		select {
		case <-ctx.Done():
			return nil, dist.FromContext("tensorpipe: connect", ctx)
		default: // the session ended at once; try again
		}
	}
}

// dialPeer dials and publishes the outcome.
func (ep *Endpoint) dialPeer(name, addr string, p *peer) {
	s, wait, err := ep.dial(addr, name != ep.name)
	if wait { // the peer's own dial is the one that counts
		timeout := time.NewTimer(ep.cfg.handshake)
		defer timeout.Stop()
		select {
		case <-p.ready:
			return
		case <-timeout.C:
			err = dist.New("tensorpipe: connect", dist.Unavailable, "the peer asked us to wait for its own dial, which did not come")
		case <-ep.ctx.Done():
			err = context.Cause(ep.ctx)
		}
	}
	if err == nil && s.Link != nil && s.Link.Peer().Name != name {
		err = dist.Newf("tensorpipe: connect", dist.Mismatch, "%s is worker %q, not %q", addr, s.Link.Peer().Name, name)
		_ = s.Close()
	}
	ep.mu.Lock()
	if !p.dialing { // a link arrived meanwhile
		ep.mu.Unlock()
		if s != nil && err == nil {
			_ = s.Close()
		}
		return
	}
	p.dialing = false
	if err != nil {
		p.err = err
		if ep.peers[name] == p {
			delete(ep.peers, name)
		}
	} else {
		p.session = s
	}
	close(p.ready)
	ep.mu.Unlock()
}

// dialsFirst reports whether a dial of ours to that worker is under way and wins over its dial to us.
func (ep *Endpoint) dialsFirst(name string) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.peers[name]
	return p != nil && p.dialing && ep.name < name
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
	if p := ep.peers[name]; p != nil && p.session != nil && p.session.Link == l {
		delete(ep.peers, name)
	}
}

// accepted makes an arriving link the session with its worker. An older link, of an earlier start of that worker, ends.
func (ep *Endpoint) accepted(name string, s *stream) error {
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
	old := ep.peers[name]
	if ep.closed {
		ep.mu.Unlock()
		_ = link.Close()
		return nil
	}
	fresh := &peer{session: session, ready: make(chan struct{})}
	close(fresh.ready)
	ep.peers[name] = fresh
	var replaced *Session
	if old != nil {
		if old.dialing {
			old.dialing = false
			old.session = session
			close(old.ready)
		} else {
			replaced = old.session
		}
	}
	ep.mu.Unlock()
	if replaced != nil {
		_ = replaced.Close()
	}
	if !session.alive() { // it ended before it was entered, so nobody took it out
		ep.dropLink(link)
	}
	select {
	case ep.sessions <- session:
		return nil
	default:
		_ = link.Close()
		return dist.Newf("tensorpipe: handshake", dist.Exhausted, "more than %d sessions wait to be accepted", cap(ep.sessions))
	}
}

func (ep *Endpoint) closePeers() {
	ep.mu.Lock()
	peers := ep.peers
	ep.peers = map[string]*peer{}
	ep.mu.Unlock()
	for _, p := range peers {
		if p.session != nil {
			_ = p.session.Close()
		}
	}
}
