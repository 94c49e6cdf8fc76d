// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Whether a worker's process has ended is decided here and nowhere else. What a dead worker holds is dropped, and calls
// to it fail for good. So what may also be a cut connection, a pause or a slow network does not count as death.

// evidence is what was observed of a worker.
type evidence struct {
	of             *uint64       // of which start of a Go worker, if that matters: another one may have joined since
	connectErr     error         // what an attempt to connect to it ended with
	addressReused  bool          // another socket than its own listens at its address
	left           bool          // it announced that it leaves
	replaced       bool          // another process has its name and rank now
	leased         bool          // it has a lease, whose end decides instead of the time
	unreachableFor time.Duration // for how long it has been out of reach
	limit          time.Duration // for how long a worker without a lease may be
}

// liveness is what the evidence means.
type liveness uint8

const (
	unknownLiveness liveness = iota // callers retry
	unresponsive                    // the same: its machine does not answer
	disconnected                    // the same: the connection was cut, or its process is about to end
	dead                            // its process has certainly ended
)

// liveness evaluates the evidence.
func (s evidence) liveness() liveness {
	switch {
	case s.addressReused, s.left, s.replaced, ctxdial.Refused(s.connectErr), !s.leased && s.limit > 0 && s.unreachableFor > s.limit:
		return dead
	case ctxdial.Silent(s.connectErr):
		return unresponsive
	case ctxdial.Ended(s.connectErr), errors.Is(s.connectErr, errHandshakeEnded):
		return disconnected
	}
	return unknownLiveness
}

// connectError is the error of an attempt to connect to a worker, given the evidence.
func (s evidence) connectError(name, addr string) *cohort.Error {
	e := cohort.New("rpc: connect", cohort.PeerLost, "it does not listen at "+addr+" any more: its process has ended")
	e.Err = rpcworld.ErrRefused
	if !s.addressReused {
		e = cohort.Wrap("rpc: connect", cohort.Unavailable, s.connectErr)
		switch s.liveness() {
		case dead:
			e.Code, e.Err = cohort.PeerLost, errors.Join(rpcworld.ErrRefused, s.connectErr)
			e.Detail = "connection refused at " + addr + ": its process has ended"
		case unresponsive:
			e.Err = errors.Join(rpcworld.ErrSilent, s.connectErr)
			e.Detail = "its machine does not answer at " + addr
		case disconnected:
			e.Code, e.Err = cohort.PeerLost, errors.Join(errHandshakeEnded, s.connectErr)
			e.Detail = "the connection ended in its handshake: its process is ending, or the connection was cut"
		case unknownLiveness:
		}
	}
	e.Peer = name
	return e
}

// reportIfDead reports to the handler that a worker is dead, if the evidence says so, and returns whether it does.
func (n *Links) reportIfDead(p *Peer, s evidence) bool {
	if s.liveness() != dead {
		return false
	}
	if _, life := p.Epoch(); p.ID >= 0 && (s.of == nil || *s.of == life) {
		n.cfg.Handler.Died(p)
	}
	return true
}

// Probe opens a pipe to the worker at addr, and ends it: so it is found whether a worker has ended whose place this one wants. It does not
// give the name of this worker. A PyTorch listener does not live on after a connection that ends early, so a probe that was begun goes on
// when ctx ends. Its errors are those of a connection to the worker.
func (n *Links) Probe(ctx context.Context, addr string) error {
	ep, err := tensorpipe.New("cohort probe")
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if !n.Go(func() {
		s, failed := ep.Dial(n.Context, addr)
		if failed == nil {
			_ = s.Close()
		}
		_ = ep.Close()
		done <- failed
	}) {
		_ = ep.Close()
		return ErrClosed("agent")
	}
	failpoint.At("rpc.link.probe")
	select {
	case err = <-done:
	case <-ctx.Done():
		return cohort.FromContext(ctx, "rpc: connect")
	}
	if err != nil {
		return evidence{connectErr: err}.connectError("", addr)
	}
	return nil
}

// Left notes that a worker has announced that it leaves.
func (n *Links) Left(p *Peer) {
	p.markLeft()
	n.reportIfDead(p, evidence{left: true})
}

// When the process of a worker has ended, another one may get its port. A PyTorch process listens on some twenty of them, and
// a hello that arrives at the wrong one ends it. So the socket that a worker of this machine listens with is noted while
// there is a session with it, and its address is not dialled when that socket is closed. Sockets of other machines cannot be checked.

// listeners are the sockets of this machine that listen, as they were read last: that takes time on a machine with many
// connections, so concurrent callers share it.
type listeners struct {
	mu struct {
		sync.Mutex
		since time.Time // they were read after this
		of    map[netip.AddrPort]string
	}
}

// at returns the identity of the socket that listens at an address of this machine, or "" if none does. known is false when
// it cannot be determined. What is older than since is read again.
func (l *listeners) at(addr string, since time.Time) (id string, known bool) {
	ap, err := netip.ParseAddrPort(strings.TrimPrefix(addr, "uv://"))
	if err != nil || !ctxdial.OwnAddress(ap.Addr().Unmap()) {
		return "", false
	}
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	failpoint.At("rpc.link.listeners")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.since.Before(since) {
		l.mu.since = time.Now()
		l.mu.of = portowner.Listeners()
	}
	for _, ip := range [...]netip.Addr{ap.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if id = l.mu.of[netip.AddrPortFrom(ip, ap.Port())]; id != "" {
			return id, true
		}
	}
	return "", len(l.mu.of) > 0
}

// noteListener remembers the socket that the worker listens with, while there is a session with it.
func (p *Peer) noteListener() {
	met := time.Now()
	failpoint.At("rpc.peer.note")
	p.mu.Lock()
	addr, known := p.mu.addr, p.mu.listener != ""
	p.mu.Unlock()
	if addr == "" || known {
		return
	}
	id, _ := p.net.listeners.at(addr, met)
	failpoint.At("rpc.peer.noted")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.addr == addr && p.mu.conn != nil && p.mu.conn.Alive() {
		p.mu.listener = id
	}
}

// listenerClosed reports whether the socket that the worker listens with is known to be closed. Another one may have its address.
func (p *Peer) listenerClosed(addr string) bool {
	failpoint.At("rpc.peer.gone")
	p.mu.Lock()
	was := p.mu.listener
	p.mu.Unlock()
	if was == "" {
		return false
	}
	now, known := p.net.listeners.at(addr, time.Now())
	return known && now != was
}
