// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A dialler that was told to wait dials again after deferPause. Once it has waited for insistAfter, the link that the peer
// refers to has ended on this side only: it insists.
const (
	deferPause  = 250 * time.Millisecond
	insistAfter = time.Second
)

// Connect returns the session with a worker: the one that exists, or a new one to addr ("host:port" or PyTorch's
// "uv://host:port"). With a PyTorch worker it is a pipe for our requests. With a Go worker it is the link of this pair,
// whichever side opened it; when both dial at once, the connection of the worker whose name sorts first is kept.
//
// A dial goes on when ctx ends, and a later Connect finds its outcome. The session belongs to the endpoint.
func (ep *Endpoint) Connect(ctx context.Context, name, addr string) (*Session, error) {
	addr = strings.TrimPrefix(addr, "uv://")
	var insist <-chan time.Time
	waited := false
	for pause := time.Duration(0); ; pause = min(max(2*pause, 5*time.Millisecond), deferPause) {
		failpoint.At("tensorpipe.endpoint.slot")
		ep.mu.Lock()
		if ep.mu.closed {
			ep.mu.Unlock()
			return nil, cohort.New("tensorpipe: connect", cohort.Closed, "the endpoint is closed")
		}
		p := ep.peerSlot(name)
		if p.alive() {
			s := p.session
			ep.mu.Unlock()
			return s, nil
		}
		if p.dial == nil && (p.incoming == 0 || waited) {
			p.dial = newDialing()
			d := p.dial
			ep.work.Go(func() { ep.dialPeer(name, addr, d) })
		}
		d, change := p.dial, p.change
		ep.mu.Unlock()
		if d == nil && insist == nil { // a link of the peer is being set up, or another process claims that
			timer := time.NewTimer(insistAfter)
			defer timer.Stop()
			insist = timer.C
		}
		failpoint.At("tensorpipe.endpoint.connect")
		var dialled <-chan struct{}
		if d != nil {
			dialled = d.done
		}
		select {
		case <-change: // a session was set up, or failed
		case <-insist:
			waited = true
			continue
		case <-dialled:
			if d.err != nil && (waited || !ep.isConnecting(name)) {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, connectTimeout(ctx, name)
		}
		if ep.has(name) {
			continue
		}
		failpoint.At("tensorpipe.endpoint.pause")
		select { // the new session has ended at once: try again after a pause
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, connectTimeout(ctx, name)
		}
	}
}

func connectTimeout(ctx context.Context, name string) error {
	e := cohort.Ended(ctx, "tensorpipe: connect")
	e.Peer = name
	return e
}

// has reports whether there is a session with a worker, isConnecting also whether that worker is setting one up.
func (ep *Endpoint) has(name string) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.mu.peerSlots[name]
	return p != nil && p.alive()
}

func (ep *Endpoint) isConnecting(name string) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.mu.peerSlots[name]
	return p != nil && (p.alive() || p.incoming > 0)
}

// dialPeer dials and publishes the outcome.
func (ep *Endpoint) dialPeer(name, addr string, d *dialing) {
	defer close(d.done)
	goPeer := name != ep.name
	s, wait, err := ep.dial(addr, goPeer, false)
	for begin := time.Now(); wait; { // the peer's own dial wins
		failpoint.At("tensorpipe.endpoint.overtaken")
		select {
		case <-d.overtaken:
			return
		case <-time.After(deferPause): // or it is a link that ended here and not yet there
			s, wait, err = ep.dial(addr, goPeer, time.Since(begin) >= insistAfter)
		case <-ep.ctx.Done():
			wait, err = false, context.Cause(ep.ctx)
		}
		if wait && time.Since(begin) > ep.cfg.handshake {
			wait, err = false, cohort.New("tensorpipe: connect", cohort.Unavailable,
				"the peer asks us to wait for its own connection, which it does not open")
		}
	}
	if err == nil && s.Link != nil && s.Link.Peer().Name != name {
		err = cohort.Newf("tensorpipe: connect", cohort.Mismatch, "%s is worker %q, not %q", addr, s.Link.Peer().Name, name)
		_ = s.Close()
	}
	if err == nil && s.Link != nil && !ep.trusts(s.Link) {
		err = cohort.Newf("tensorpipe: connect", cohort.Mismatch,
			"the listener at %s does not prove that it is worker %q: that name has published no secret", addr, name)
		_ = s.Close()
	}
	failpoint.At("tensorpipe.endpoint.dialled")
	ep.mu.Lock()
	defer ep.mu.Unlock()
	p := ep.peerSlot(name) // perhaps a new one, if this dial was overtaken
	if p.dial == d {
		p.dial = nil
	}
	switch {
	case err != nil:
		d.err = err
	case p.alive(): // the peer's link was set up meanwhile
		ep.closeInBackground(s)
	default:
		// The peer accepted our dial, so what it dialled itself before that has ended.
		p.install(s, p.arrived)
	}
	ep.removeIfUnused(name, p)
}

// closeInBackground closes a session that is not needed, in the background: Close waits for what the session is doing. Only for
// goroutines of the endpoint.
func (ep *Endpoint) closeInBackground(s *Session) { ep.work.Go(func() { _ = s.Close() }) }

// startLink begins the cohort transport on a negotiated connection.
func (ep *Endpoint) startLink(s *stream, dialled bool) (*cohortwire.Link, error) {
	buffered, err := s.br.Peek(s.br.Buffered())
	if err != nil {
		return nil, err
	}
	cfg := *ep.cfg.cohort
	cfg.Dialled = dialled
	user := cfg.OnClose
	cfg.OnClose = func(l *cohortwire.Link, err error) {
		ep.dropLink(l)
		if user != nil {
			user(l, err)
		}
	}
	link, err := cohortwire.Start(s.nc, buffered, cfg)
	if err == nil {
		ep.trackLink(link)
	}
	return link, err
}

// accepted makes an arriving link the session with its worker. An older link, of an earlier start of that worker, ends.
func (ep *Endpoint) accepted(name string, p *peerSlot, number uint64, s *stream) error {
	link, err := ep.startLink(s, false)
	if err != nil {
		return err
	}
	if link.Peer().Name != name {
		_ = link.Close()
		return cohort.Newf("tensorpipe: handshake", cohort.Protocol, "worker %q sent the name %q in its hello", name, link.Peer().Name)
	}
	session := &Session{Peer: name, Link: link}
	if !ep.trusts(link) { // it may send requests, but it does not become the session for our requests to that name
		return ep.arrive(session)
	}
	failpoint.At("tensorpipe.endpoint.install")
	ep.mu.Lock()
	if ep.mu.closed || p.installed > number { // or a later link of that worker was set up first
		ep.mu.Unlock()
		ep.closeInBackground(session)
		return nil
	}
	if replaced := p.install(session, number); replaced != nil {
		ep.closeInBackground(replaced)
	}
	ep.mu.Unlock()
	return ep.arrive(session)
}

// arrive passes a link to Accept.
func (ep *Endpoint) arrive(s *Session) error {
	failpoint.At("tensorpipe.endpoint.arrive")
	select {
	case ep.sessions <- s:
		return nil
	default:
		ep.closeInBackground(s)
		return cohort.Newf("tensorpipe: handshake", cohort.Exhausted, "more than %d sessions wait to be accepted", cap(ep.sessions))
	}
}

// trusts reports whether a link may be the session with the worker that its peer says it is: the peer has proved it, or
// proofs are not asked for.
func (ep *Endpoint) trusts(l *cohortwire.Link) bool {
	return ep.cfg.cohort.Published == nil || l.Proven()
}
