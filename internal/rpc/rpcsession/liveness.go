// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// Whether a worker's process has ended is decided here and nowhere else. What a dead worker holds is dropped, and calls to it fail for good. So
// what may also be a cut connection, a pause or a slow network does not count as death.

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

// Left notes that a worker has announced that it leaves.
func (n *Links) Left(p *Peer) {
	p.markLeft()
	n.reportIfDead(p, evidence{left: true})
}
