// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Peer is another worker of the world.
type Peer struct {
	net   *Links
	Name  string
	ID    rrefcore.Worker // -1 for a client, which is not a member
	Stats counters
	types knownTypes // of a PyTorch worker
	State any        // of the [Handler]

	reconnecting atomic.Bool // a goroutine tries to reach it again
	Met          atomic.Bool // there was a session
	openedPipe   atomic.Bool // it has opened a pipe for its requests
	enter        sync.Mutex  // one link at a time becomes the session

	mu struct {
		sync.Mutex
		addr   string
		epoch  uint64 // of a Go worker, once known
		goPeer bool   // a Go worker that speaks the cohort transport
		conn   *Conn  // for our requests
		left   bool   // it announced that it leaves

		listener string // the socket that it listens with, once known: see reused.go
	}
}

// SpeaksCohort reports whether this is known to be a Go worker on the cohort transport.
func (p *Peer) SpeaksCohort() bool {
	failpoint.At("rpc.peer.speaks")
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.goPeer
}

// Epoch reports whether this is a Go worker on the cohort transport, and which start of it.
func (p *Peer) Epoch() (goPeer bool, epoch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.goPeer, p.mu.epoch
}

// markLeft notes that it has announced that it leaves.
func (p *Peer) markLeft() {
	failpoint.At("rpc.peer.leaves")
	p.mu.Lock()
	p.mu.left = true
	p.mu.Unlock()
}

func (p *Peer) hasLeft() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.left
}

// learn notes what a worker has published.
func (p *Peer) learn(addr string, e rpcworld.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr != "" {
		p.mu.addr, p.mu.listener = addr, "" // a new start of it may have the same address
	}
	if e.Epoch != 0 {
		p.mu.epoch, p.mu.goPeer = e.Epoch, true
	}
}

// Replaced reports whether a worker of this name that announces that it joins is another process, so that this one has ended: a worker
// announces that once. Two Go workers, which may repeat it, are told apart by their epochs.
func (p *Peer) Replaced(e rpcworld.Entry) bool {
	return e.Epoch == 0 || !p.SpeaksCohort()
}

// Current returns the session that exists, or nil.
func (p *Peer) Current() *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn != nil && p.mu.conn.Alive() {
		return p.mu.conn
	}
	return nil
}

// openTries bounds how long connect repeats a handshake that ended early.
const openTries = 5 * time.Second

// Connect returns the session for requests to this peer, opening it if need be. Nothing was sent yet, so a connection that
// ends in its handshake is tried again: it was cut, or the peer's process is ending and will refuse the next one.
func (p *Peer) Connect(ctx context.Context) (*Conn, error) {
	if c := p.Current(); c != nil {
		return c, nil
	}
	begun := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		c, err := p.open(ctx)
		if err == nil || !errors.Is(err, errHandshakeEnded) || time.Since(begun) > openTries || p.net.Context.Err() != nil {
			return c, err
		}
		failpoint.At("rpc.peer.retry")
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
func (p *Peer) open(ctx context.Context) (*Conn, error) {
	n := p.net
	_, life := p.Epoch()
	addr, err := n.address(ctx, p)
	if err != nil {
		return nil, err
	}
	if s := (evidence{of: &life, addressReused: p.listenerClosed(addr)}); n.reportIfDead(p, s) {
		return nil, s.connectError(p.Name, addr)
	}
	s, err := n.ep.Connect(ctx, p.Name, addr)
	if p.hasLeft() { // the session may be that of its successor
		return nil, n.lostError(p, cohort.New("rpc: connect", cohort.PeerLost, "it has left, or another worker has replaced it"))
	}
	if err == nil && stale(s, p, addr) {
		if !n.Go(func() { _ = s.Close() }) {
			return nil, ErrClosed("call")
		}
		failpoint.At("rpc.peer.stale")
		<-s.Done()
		err = fmt.Errorf("%w: the connection belongs to an earlier worker with this name", errHandshakeEnded)
	}
	var c *Conn
	if err == nil {
		if c, err = n.adopt(p, s); err == nil {
			n.Background(p.noteListener)
			return c, nil
		}
		if s.Link != nil && n.Context.Err() == nil {
			err = errors.Join(errHandshakeEnded, err)
		}
	}
	failed := evidence{of: &life, connectErr: err}
	n.reportIfDead(p, failed)
	return nil, failed.connectError(p.Name, addr)
}

// stale reports whether a session is one with a former worker of the same name.
func stale(s *tensorpipe.Session, p *Peer, addr string) bool {
	if s.Link != nil {
		return p.ID >= 0 && rrefcore.Worker(s.Link.Peer().ID) != p.ID
	}
	return s.Peer != strings.TrimPrefix(addr, "uv://") || !s.Claim(p) // another worker may get the address of the former
}

// adopt makes a session the one for requests to p.
func (n *Links) adopt(p *Peer, s *tensorpipe.Session) (*Conn, error) {
	if s.Link != nil {
		c := n.linkConn(s.Link)
		if c == nil || !c.Alive() {
			return nil, n.lostError(p, s.Link.Err())
		}
		n.prefer(c)
		return c, nil
	}
	failpoint.At("rpc.peer.adopt")
	p.mu.Lock()
	if p.mu.conn != nil && p.mu.conn.Pipe == s.Pipe {
		c := p.mu.conn
		p.mu.Unlock()
		if !c.Alive() {
			return nil, n.lostError(p, s.Pipe.Err())
		}
		return c, nil
	}
	c := newConn(n, p, s)
	c.at = s.Peer
	p.mu.conn = c
	p.mu.goPeer = false
	p.mu.Unlock()
	n.cfg.Handler.Connected(c)
	if !n.Go(c.readAnswers) {
		return nil, ErrClosed("call")
	}
	return c, nil
}

func (n *Links) lostError(p *Peer, err error) error {
	if err == nil {
		err = cohort.New("rpc: connection", cohort.PeerLost, "the session has ended")
	}
	e := cohort.Wrap("rpc: connection", cohort.PeerLost, err)
	e.Peer = p.Name
	if p.ID >= 0 {
		e.Rank = cohort.Rank(p.ID)
	}
	return e
}

// connLost is called once per session when it has ended.
func (n *Links) connLost(c *Conn, err error) {
	p := c.Peer()
	e := n.lostError(p, err)
	c.fail(e)
	failpoint.At("rpc.peer.lost")
	p.mu.Lock()
	if p.mu.conn == c {
		p.mu.conn = nil
	}
	left := p.mu.left
	replaced := c.at != "" && c.at != strings.TrimPrefix(p.mu.addr, "uv://") // another process has its name and rank now
	p.mu.Unlock()
	if n.Context.Err() != nil || p.ID < 0 {
		return
	}
	if c.Link == nil && !n.Leaving.Load() && !left {
		n.cfg.Logger.Debug("pipe ended", slog.String("peer", p.Name), slog.String("err", e.Error()))
	}
	if n.reportIfDead(p, evidence{left: left, replaced: replaced}) {
		return
	}
	// The end of a session, by either side, says nothing about the process at its other end.
	n.StartReconnect(p)
}

// StartReconnect tries in the background to reach a worker without a session: a Go worker to which references connect us,
// and any PyTorch worker, because that is how its death is found.
func (n *Links) StartReconnect(p *Peer) {
	if !p.reconnecting.CompareAndSwap(false, true) {
		return
	}
	if !n.Go(func() { n.reconnect(p) }) {
		p.reconnecting.Store(false)
	}
}

// unreachableLimit is how long a PyTorch worker may be unreachable before it is declared dead: it has no lease.
const unreachableLimit = 20 * time.Second

// reconnect tries to reach a worker whose session was lost, as long as that is wanted. A refused connection proves its
// death; otherwise its lease decides, whose end drops the references. An ending process may still accept a pipe, so a
// pipe counts once it has lasted.
//
//nolint:contextcheck,nolintlint // it outlives the caller's context
func (n *Links) reconnect(p *Peer) {
	over := false
	defer func() {
		p.reconnecting.Store(false)
		if !over && n.Context.Err() == nil && p.Current() == nil && n.wanted(p) { // it was lost again meanwhile
			n.StartReconnect(p)
		}
	}()
	begun := time.Now()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(n.Context, 5*time.Second)
		c, err := p.Connect(ctx)
		cancel()
		over = errors.Is(err, rpcworld.ErrRefused) // it was declared dead, see open
		if n.Context.Err() != nil || over || !n.wanted(p) || err == nil && c.Link != nil {
			return
		}
		failpoint.At("rpc.peer.heal")
		select {
		case <-time.After(pause):
		case <-n.Context.Done():
			return
		}
		if err == nil && c.Alive() {
			return
		}
		if over = n.reportIfDead(p, evidence{
			leased: p.SpeaksCohort(), unreachableFor: time.Since(begun),
			limit: n.unreachableLimit,
		}); over {
			return
		}
	}
}

// wanted reports whether a session with a worker is worth reconnecting.
func (n *Links) wanted(p *Peer) bool {
	failpoint.At("rpc.peer.wanted")
	p.mu.Lock()
	goPeer, left := p.mu.goPeer, p.mu.left
	p.mu.Unlock()
	if goPeer {
		return n.cfg.Handler.HoldsReferences(p)
	}
	return !left
}

// stats counts the traffic with one worker.
type stats struct {
	Calls         uint64 // requests sent
	Served        uint64 // requests received
	Errors        uint64 // calls that failed
	BytesSent     uint64
	BytesReceived uint64
}

// counters are behind [Stats].
type counters struct{ calls, Served, Errors, bytesOut, bytesIn atomic.Uint64 }

func (s *counters) sent(n int) {
	s.calls.Add(1)
	s.bytesOut.Add(uint64(n)) //nolint:gosec // a length
}

func (s *counters) received(n int) { s.bytesIn.Add(uint64(n)) } //nolint:gosec // a length

// Snapshot returns what they are now.
func (s *counters) Snapshot() stats {
	return stats{
		Calls: s.calls.Load(), Served: s.Served.Load(), Errors: s.Errors.Load(),
		BytesSent: s.bytesOut.Load(), BytesReceived: s.bytesIn.Load(),
	}
}

// LaterType is the bit of an element type that PyTorch has not always had, 0 for one that it has.
func LaterType(dt tensor.DType) uint32 {
	if dt < tensor.Float8E5M2 {
		return 0
	}
	return 1 << (dt - tensor.Float8E5M2)
}

// knownTypes are the later element types that a PyTorch worker has been seen to know.
type knownTypes struct{ bits atomic.Uint32 }

func tensorTypes(v any) uint32 {
	switch t := v.(type) {
	case *tensor.Tensor:
		return LaterType(t.DType())
	case *tensor.Sparse:
		return LaterType(t.Values.DType())
	}
	return 0
}

// learn notes the types of a message that the worker sent.
func (k *knownTypes) learn(tensors []any) {
	for _, t := range tensors {
		if bit := tensorTypes(t); bit != 0 {
			k.bits.Or(bit)
		}
	}
}

// check refuses a message whose types could end the worker's process.
func (k *knownTypes) check(tensors []any, all uint32) error {
	for _, t := range tensors {
		if bit := tensorTypes(t); bit&^(all|k.bits.Load()) != 0 {
			what := t
			if s, ok := t.(*tensor.Sparse); ok {
				what = s.Values
			}
			return cohort.Newf("rpc: send", cohort.NotSupported,
				"a tensor of %v would end a PyTorch process older than that type: convert it, or declare with WithElementTypes that "+
					"all processes know it", what.(*tensor.Tensor).DType()) //nolint:errcheck,forcetypeassert // the only two
		}
	}
	return nil
}
