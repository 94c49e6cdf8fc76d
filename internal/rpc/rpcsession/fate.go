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
// what may also be a cut connection, a pause or a slow network is no death.

// sign is what was seen of a worker.
type sign struct {
	of     *uint64       // of which start of a Go worker, if that matters: another one may have come since
	tried  error         // what an attempt to connect to it ended with
	taken  bool          // another socket than its own listens at its address
	left   bool          // it told us that it leaves
	moved  bool          // another process has its name and rank now
	leased bool          // it has a lease, whose end decides instead of the time
	away   time.Duration // for how long it has been out of reach
	limit  time.Duration // for how long a worker without a lease may be
}

// fate is what a sign means.
type fate uint8

const (
	uncertain fate = iota // whoever needs it tries again
	silent                // the same: its machine does not answer
	cut                   // the same: the connection was cut, or its process is about to end
	dead                  // its process has certainly ended
)

// fate judges a sign.
func (s sign) fate() fate {
	switch {
	case s.taken, s.left, s.moved, ctxdial.Refused(s.tried), !s.leased && s.limit > 0 && s.away > s.limit:
		return dead
	case ctxdial.Silent(s.tried):
		return silent
	case ctxdial.Ended(s.tried), errors.Is(s.tried, errHandshakeEnded):
		return cut
	}
	return uncertain
}

// connectError is the error of an attempt to connect to a worker that a sign was seen of.
func (s sign) connectError(name, addr string) *cohort.Error {
	e := cohort.New("rpc: connect", cohort.PeerLost, "it does not listen at "+addr+" any more: its process has ended")
	e.Err = rpcworld.ErrRefused
	if !s.taken {
		e = cohort.Wrap("rpc: connect", cohort.Unavailable, s.tried)
		switch s.fate() {
		case dead:
			e.Code, e.Err = cohort.PeerLost, errors.Join(rpcworld.ErrRefused, s.tried)
			e.Detail = "nobody listens at " + addr + ": its process has ended"
		case silent:
			e.Err = errors.Join(rpcworld.ErrSilent, s.tried)
			e.Detail = "its machine does not answer at " + addr
		case cut:
			e.Code, e.Err = cohort.PeerLost, errors.Join(errHandshakeEnded, s.tried)
			e.Detail = "the connection ended in its handshake: its process is ending, or the connection was cut"
		case uncertain:
		}
	}
	e.Peer = name
	return e
}

// judge tells whoever is above that a worker is dead, if a sign says so, and returns whether it does.
func (n *Links) judge(p *Peer, s sign) bool {
	if s.fate() != dead {
		return false
	}
	if _, life := p.Life(); p.ID >= 0 && (s.of == nil || *s.of == life) {
		n.cfg.Above.Died(p)
	}
	return true
}

// Left notes that a worker has told us that it leaves.
func (n *Links) Left(p *Peer) {
	p.leaves()
	n.judge(p, sign{left: true})
}
