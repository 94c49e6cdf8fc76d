// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "time"

// leaseState is what a worker believes of another one.
type leaseState uint8

const (
	alive    leaseState = iota
	departed            // certainly dead, or silent for a lease: its forks are kept for the grace period
	dead                // its forks are gone, it is fenced
)

// lease is one worker's view of another one's life. There is one per pair of workers, not per reference, so its cost
// does not grow with the number of references.
type lease struct {
	state          leaseState
	lastReceivedAt Time // when the last frame of the peer came
	renewedAt      Time // the send time of the newest of our frames that the peer has seen
	lastSentAt     Time // when we sent it the last frame
	departedAt     Time
	certain        bool // its process is known to be dead
	expiredTo      bool // our handles of that owner were failed because we could not renew
}

func newLease(now Time) lease { return lease{lastReceivedAt: now, renewedAt: now, lastSentAt: now} }

func (l *lease) heard(now, echo Time) {
	l.lastReceivedAt = now
	l.renewedAt = max(l.renewedAt, echo)
	if l.state == departed && !l.certain {
		l.state = alive // a suspicion that was wrong, and in time
	}
}

// PeerDied reports that a worker's process is certainly dead: its connection was refused, its exit was seen, or it left.
// References to its objects fail at once; its own forks are kept for the grace period, because a reference that it had
// just handed to a worker may still be on its way.
func (m *Machine) PeerDied(id Worker) {
	p := m.peer(id)
	if p.lease.state == dead {
		return
	}
	m.failHandlesOf(id, OwnerLost)
	if p.lease.state == alive {
		p.lease.departedAt = m.now
	}
	p.lease.state, p.lease.certain = departed, true
	p.requests, p.lost = nil, nil
}

// Expire ends the grace period of a departed worker at once. Tick does it when the time has come; the checker, which
// has no clock, when no hand-off of that worker is under way.
func (m *Machine) Expire(id Worker) {
	if p := m.peers[id]; p != nil && p.lease.state != dead {
		m.expire(p)
	}
}

// expire forgets everything about a dead worker and fences it: if it was only unreachable, it will find that a new
// session has begun and that all it held is gone.
func (m *Machine) expire(p *peer) {
	m.startSession(p, p.session+1)
	p.lease.state = dead
	m.revisitOf(p.id)
}

// startSession forgets all that two workers had to do with each other.
func (m *Machine) startSession(p *peer, session uint32) {
	code := LeaseExpired
	if p.lease.certain {
		code = OwnerLost
	}
	m.failHandlesOf(p.id, code)
	m.forget(p.life())
	p.session, p.floor = session, m.next
	p.stream, p.requests, p.lost, p.lease = stream{}, nil, nil, newLease(m.now)
}

// forget drops the forks of a dead worker, its unclaimed hand-offs and the pins of children that it held.
func (m *Machine) forget(gone life) {
	m.forgetEarly(gone)
	m.dropForksOf(gone, CreatorLost)
	for _, fork := range sortedKeys(m.handles) {
		h := m.handles[fork]
		if h == nil {
			continue
		}
		for child, to := range h.children {
			if to == gone {
				m.unpin(h, child)
			}
		}
		if h.offered && h.parent == gone {
			h.offered, h.held = false, false
		}
		if h.parent == gone {
			h.accepting = false
		}
		m.settle(h)
	}
}

// formerLife is a former life whose forks are kept for the grace period.
type formerLife struct {
	life  life
	since Time
}

// endLife ends a former life of a peer that has restarted. Its objects are gone; its forks stay for the grace period.
func (m *Machine) endLife(p *peer) {
	m.failHandlesOf(p.id, OwnerRestarted)
	m.formerLives = append(m.formerLives, formerLife{p.life(), m.now})
	if p.endedLives == nil || len(p.endedLives) >= 1024 {
		p.endedLives = map[Epoch]bool{}
	}
	p.endedLives[p.epoch] = true
}

// Tick gives the time. It sends heartbeats, repeats what was not acknowledged and ends leases. The driver calls it a
// few times per heartbeat.
func (m *Machine) Tick(now Time) {
	m.now = now
	m.ExpireFormerLives(m.opt.Grace)
	for _, id := range m.Peers() {
		p := m.peers[id]
		if p.lease.state == dead {
			continue
		}
		if p.kind == PyTorch {
			m.retry(p)
			m.retryLost(p)
			if p.lease.state == departed && m.now-p.lease.departedAt >= m.opt.Grace {
				m.expire(p)
			}
			continue
		}
		m.tickStream(p)
		m.tickLease(p)
	}
}

// ExpireFormerLives forgets the former lives that ended at least age ago.
func (m *Machine) ExpireFormerLives(age time.Duration) {
	for len(m.formerLives) > 0 && m.now-m.formerLives[0].since >= age {
		gone := m.formerLives[0].life
		m.formerLives = m.formerLives[1:]
		m.forget(gone)
	}
}

func (m *Machine) tickStream(p *peer) {
	s := &p.stream
	if s.sent > 0 && m.now-s.sentAt >= m.opt.Retransmit {
		s.sent = 0
	}
	if len(s.queue) > streamLimit {
		m.PeerDied(p.id)
		return
	}
	if m.now-p.lease.lastSentAt >= m.opt.Heartbeat {
		s.owesAck = true
	}
	if s.sent < len(s.queue) || s.owesAck {
		m.emit(Effect{Kind: Flush, To: p.id})
	}
}

func (m *Machine) tickLease(p *peer) {
	l := &p.lease
	// As a user: what could not be renewed for a lease is expired here before the owner may drop it there.
	if m.now-l.renewedAt >= m.opt.Lease && !l.expiredTo {
		l.expiredTo = true
		m.expireHandlesOf(p.id)
	} else if m.now-l.renewedAt < m.opt.Lease {
		l.expiredTo = false
	}
	// As an owner and parent: silence, then grace, then the end.
	if l.state == alive && m.now-l.lastReceivedAt >= m.opt.Lease+m.opt.Heartbeat {
		l.state, l.departedAt = departed, m.now
	}
	if l.state == departed && m.now-l.departedAt >= m.opt.Grace {
		m.expire(p)
	}
}

// retry repeats requests to a PyTorch peer whose time has come.
func (m *Machine) retry(p *peer) {
	for _, r := range p.requests {
		if r.at != 0 && m.now >= r.at {
			r.at = 0
			m.emit(Effect{Kind: Send, To: p.id, Msg: r.msg})
		}
	}
}
