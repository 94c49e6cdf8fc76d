// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcworld"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/internal/tensorpipe"
)

// WorkerInfo names a worker. It corresponds to torch.distributed.rpc.WorkerInfo.
type WorkerInfo struct {
	Name string
	ID   int
}

// peer is another worker of the world.
type peer struct {
	agent  *Agent
	name   string
	worker rrefcore.Worker // -1 for a guest, who is no member
	stats  peerStats
	types  knownTypes // of a PyTorch worker

	mu     sync.Mutex
	addr   string
	epoch  uint64 // of a Go worker, once known
	cohort bool   // a Go worker that speaks the cohort transport
	conn   *conn  // for our requests
	left   bool   // it told us that it leaves

	healing atomic.Bool // somebody tries to reach it again
	met     atomic.Bool // there was a session

	enter    sync.Mutex // one link at a time becomes the session
	flush    sync.Mutex // keeps control frames in order
	flushes  struct{ wanted, running atomic.Bool }
	stream   *conn      // where they go; guarded by flush
	creating sync.Mutex // keeps two copies of a creating call apart

	control struct {
		mu      sync.Mutex
		queue   []rrefcore.Message
		running bool
	}
}

func (p *peer) info() WorkerInfo { return WorkerInfo{Name: p.name, ID: int(p.worker)} }

// speaksCohort reports whether this is known to be a Go worker on the cohort transport.
func (p *peer) speaksCohort() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cohort
}

// learn notes what a worker has published.
func (p *peer) learn(addr string, e rpcworld.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr != "" {
		p.addr = addr
	}
	if e.Epoch != 0 {
		p.epoch, p.cohort = e.Epoch, true
	}
}

// current returns the session that exists, or nil.
func (p *peer) current() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.conn.alive() {
		return p.conn
	}
	return nil
}

// openTries bounds how long connect repeats a handshake that ended early.
const openTries = 5 * time.Second

// connect returns the session for requests to this peer, opening it if need be. Nothing was sent yet, so a connection that
// ends in its handshake is tried again: it was cut, or the peer's process is ending and will refuse the next one.
func (p *peer) connect(ctx context.Context) (*conn, error) {
	if c := p.current(); c != nil {
		return c, nil
	}
	begun := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		c, err := p.open(ctx)
		if err == nil || !errors.Is(err, errHandshakeEnded) || time.Since(begun) > openTries || p.agent.ctx.Err() != nil {
			return c, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// errHandshakeEnded is the cause of a connection that ended before it was a session.
var errHandshakeEnded = errors.New("the connection ended in its handshake")

// open makes one attempt.
func (p *peer) open(ctx context.Context) (*conn, error) {
	a := p.agent
	addr, err := a.address(ctx, p)
	if err != nil {
		return nil, err
	}
	s, err := a.ep.Connect(ctx, p.name, addr)
	if err == nil && stale(s, p, addr) {
		if !a.own(func() { _ = s.Close() }) {
			return nil, errClosed("call")
		}
		<-s.Done()
		err = fmt.Errorf("%w: it is with a former worker of this name", errHandshakeEnded)
	}
	var c *conn
	if err == nil {
		if c, err = a.adopt(p, s); err == nil {
			return c, nil
		}
		if s.Link != nil && a.ctx.Err() == nil {
			err = errors.Join(errHandshakeEnded, err)
		}
	}
	e := dist.Wrap("rpc: connect", dist.Unavailable, err)
	e.Peer = p.name
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Code, e.Err = dist.PeerLost, errors.Join(rpcworld.ErrRefused, err)
		e.Detail = "nobody listens at " + addr + ": its process has ended"
		a.peerDied(p)
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		e.Err = errors.Join(rpcworld.ErrSilent, err)
		e.Detail = "its machine does not answer at " + addr
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE), errors.Is(err, errHandshakeEnded):
		e.Code, e.Err = dist.PeerLost, errors.Join(errHandshakeEnded, err)
		e.Detail = "the connection ended in its handshake: its process is ending, or the connection was cut"
	}
	return nil, e
}

// stale reports whether a session is one with a former worker of the same name.
func stale(s *tensorpipe.Session, p *peer, addr string) bool {
	if s.Link != nil {
		return p.worker >= 0 && rrefcore.Worker(s.Link.Peer().ID) != p.worker
	}
	return s.Peer != strings.TrimPrefix(addr, "uv://")
}

// adopt makes a session the one for requests to p.
func (a *Agent) adopt(p *peer, s *tensorpipe.Session) (*conn, error) {
	if s.Link != nil {
		c := a.linkConn(s.Link)
		if c == nil || !c.alive() {
			return nil, a.lostError(p, s.Link.Err())
		}
		a.prefer(c)
		return c, nil
	}
	p.mu.Lock()
	if p.conn != nil && p.conn.pipe == s.Pipe {
		c := p.conn
		p.mu.Unlock()
		if !c.alive() {
			return nil, a.lostError(p, s.Pipe.Err())
		}
		return c, nil
	}
	c := newConn(a, p, s)
	p.conn = c
	p.cohort = false
	p.mu.Unlock()
	a.refs.connected(p, rrefcore.PyTorch, 0, c)
	if !a.own(c.readAnswers) {
		return nil, errClosed("call")
	}
	return c, nil
}

func (a *Agent) lostError(p *peer, err error) error {
	if err == nil {
		err = dist.New("rpc: connection", dist.PeerLost, "the session has ended")
	}
	e := dist.Wrap("rpc: connection", dist.PeerLost, err)
	e.Peer = p.name
	if p.worker >= 0 {
		e.Rank = dist.Rank(p.worker)
	}
	return e
}

// connLost is called once per session when it has ended.
func (a *Agent) connLost(c *conn, err error) {
	p := c.peer()
	e := a.lostError(p, err)
	c.fail(e)
	p.mu.Lock()
	if p.conn == c {
		p.conn = nil
	}
	left := p.left
	p.mu.Unlock()
	if a.ctx.Err() != nil || p.worker < 0 {
		return
	}
	if c.link == nil {
		// A PyTorch worker closes a pipe only when it shuts down or dies.
		if !a.leaving.Load() && !left {
			a.cfg.logger.Debug("pipe ended", slog.String("peer", p.name), slog.String("err", e.Error()))
		}
		a.peerDied(p)
		return
	}
	if left {
		a.peerDied(p)
		return
	}
	// A link that ended, whoever ended it, says nothing about the process at its other end.
	a.heal(p)
}

// heal makes sure that somebody tries to reach a Go worker to which references tie us but no link.
func (a *Agent) heal(p *peer) {
	if !p.healing.CompareAndSwap(false, true) {
		return
	}
	if !a.own(func() { a.reconnect(p) }) {
		p.healing.Store(false)
	}
}

// reconnect tries to reach a Go worker whose link was lost, as long as references tie us to it. A refused connection is
// certain death; otherwise its lease decides, whose end unties us.
//
//nolint:contextcheck,nolintlint // whoever noticed has nothing to do with it
func (a *Agent) reconnect(p *peer) {
	refused := false
	defer func() {
		p.healing.Store(false)
		if !refused && a.ctx.Err() == nil && p.current() == nil && a.refs.tied(p) { // it was lost again meanwhile
			a.heal(p)
		}
	}()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(a.ctx, 5*time.Second)
		_, err := p.connect(ctx)
		cancel()
		refused = errors.Is(err, rpcworld.ErrRefused)
		if err == nil || a.ctx.Err() != nil || refused || !a.refs.tied(p) {
			return
		}
		select {
		case <-time.After(pause):
		case <-a.ctx.Done():
			return
		}
	}
}

// PeerStats counts the traffic with one worker.
type PeerStats struct {
	Calls         uint64 // requests sent
	Served        uint64 // requests received
	Errors        uint64 // calls that failed
	BytesSent     uint64
	BytesReceived uint64
}

type peerStats struct{ calls, served, errors, bytesOut, bytesIn atomic.Uint64 }

func (s *peerStats) sent(n int) {
	s.calls.Add(1)
	s.bytesOut.Add(uint64(n)) //nolint:gosec // a length
}

func (s *peerStats) received(n int) { s.bytesIn.Add(uint64(n)) } //nolint:gosec // a length

func (s *peerStats) snapshot() PeerStats {
	return PeerStats{
		Calls: s.calls.Load(), Served: s.served.Load(), Errors: s.errors.Load(),
		BytesSent: s.bytesOut.Load(), BytesReceived: s.bytesIn.Load(),
	}
}
