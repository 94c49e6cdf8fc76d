// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
)

// withoutGrace: a dead worker's forks go at once, whatever is under way.
var withoutGrace = mutation.On("NoGrace")

// steps lists everything that can happen in a state.
func (c config) steps(s *state) []step {
	var all []step
	add := func(do func(*state), format string, args ...any) {
		all = append(all, step{func() string { return fmt.Sprintf(format, args...) }, do})
	}
	for _, role := range []string{"A", "C", "D"} {
		if h := s.held(role); h != nil {
			w := roleOf[role]
			add(func(s *state) { s.mut(w).Drop(s.forks[role]); s.drain(w) }, "drop %s", role)
		}
	}
	for share := range strings.SplitSeq(c.shares, "") {
		from, to := map[string]string{"C": "A", "D": "C", "P": "A"}[share], roleOf[share]
		h := s.held(from)
		if h == nil || h.state == failed || strings.Contains(s.shared, share) || s.known[[2]Worker{roleOf[from], to}] {
			continue
		}
		add(func(s *state) {
			w := roleOf[from]
			wire, code := s.mut(w).Share(s.forks[from], to)
			s.shared += share
			if code != OK {
				return
			}
			s.drain(w)
			s.net = append(s.net, packet{what: "carry", from: w, to: to, wire: wire, target: share})
		}, "share %s with %s", from, share)
	}
	if s.local > 0 {
		add(func(s *state) {
			s.local--
			s.mut(wO).ReleaseLocal(s.object)
			s.drain(wO)
		}, "owner ends its use")
	}
	for i, p := range s.net {
		if p.what == "frame" && s.behind(i) {
			continue
		}
		if p.what == "carry" && c.wire(p.from, p.to) == Cohort && (s.handoffOnItsWay(p) || s.unsettled(p)) {
			continue
		}
		if s.crashed[p.to] {
			add(func(s *state) { s.without(i) }, "lost to the dead: %s", p.what)
			continue
		}
		add(func(s *state) {
			s.without(i)
			c.deliver(s, p)
		}, "deliver %s %v to %d %v %s", p.what, p.msg.Kind, p.to, p.frame.Msgs, p.target)
		if s.dup > 0 && (p.what == "request" || p.what == "frame") {
			add(func(s *state) {
				s.dup--
				if p.what == "frame" {
					c.deliver(s, p)
				} else {
					s.net = append(slices.Clone(s.net), p)
				}
			}, "repeat %s", p.what)
		}
		if s.lose > 0 && p.what == "carry" {
			add(func(s *state) {
				s.lose--
				s.without(i)
				c.undelivered(s, p)
			}, "lose carry")
		}
	}
	for i, p := range s.net {
		if s.refuse > 0 && p.what == "carry" && !s.crashed[p.to] &&
			(c.wire(p.from, p.to) != Cohort || !s.handoffOnItsWay(p) && !s.unsettled(p)) {
			add(func(s *state) {
				s.refuse--
				s.without(i)
				if c.wire(p.from, p.to) == Cohort { // the header of the frame names the fork
					s.mut(p.to).Discard(p.from, p.wire.Fork)
					s.drain(p.to)
				}
				c.undelivered(s, p)
			}, "refuse carry undecoded")
		}
	}
	if s.forge > 0 {
		for _, f := range c.forgeries(s) {
			add(func(s *state) {
				s.forge--
				f.send(s)
			}, "forge %v to %d: %+v", f.msg.Kind, f.to, f.msg)
		}
	}
	if s.timeout > 0 && !s.crashed[wA] {
		if h := s.m[wA].handles[s.forks["A"]]; h != nil && h.state == pending {
			add(func(s *state) {
				s.timeout--
				s.mut(wA).CreateTimedOut(s.forks["A"])
				if !c.isTorch(wA) {
					s.mut(wA).Drop(s.forks["A"])
				}
				s.drain(wA)
			}, "creation times out")
		}
	}
	if s.crashes > 0 {
		for _, w := range c.crash {
			add(func(s *state) {
				s.crashes--
				s.crashed[w] = true
				s.m[w] = nil
			}, "crash %d", w)
		}
	}
	if c.detect {
		for w := wO; w <= wD; w++ {
			if !s.crashed[w] {
				continue
			}
			if !withoutGrace && (s.handoffsUnderWay(w) || s.proofUnderWay(w)) {
				continue
			}
			for o := wO; o <= wD; o++ {
				if s.m[o] != nil && !c.isTorch(o) && !s.known[[2]Worker{o, w}] {
					add(func(s *state) {
						s.known[[2]Worker{o, w}] = true
						s.mut(o).PeerDied(w)
						s.mut(o).Expire(w)
						s.drain(o)
					}, "%d finds %d dead", o, w)
				}
			}
		}
	}
	return all
}

// behind reports whether an earlier frame of the same stream is still on its way.
func (s *state) behind(i int) bool {
	f := s.net[i].frame
	return slices.ContainsFunc(s.net, func(p packet) bool {
		return p.what == "frame" && p.from == f.From && p.to == f.To && p.frame.First < f.First
	})
}

// handoffOnItsWay reports whether the hand-off of a carried reference has not arrived: the connection is ordered, so the
// message cannot arrive before it.
func (s *state) handoffOnItsWay(carry packet) bool {
	return slices.ContainsFunc(s.net, func(p packet) bool {
		return p.what == "frame" && p.to == carry.to &&
			slices.ContainsFunc(p.frame.Msgs, func(m Message) bool { return m.Kind == Handoff && m.Fork == carry.wire.Fork })
	})
}

// unsettled reports whether the owner has not decided yet if a carried reference can be claimed: it does not decode the message
// before.
func (s *state) unsettled(carry packet) bool {
	return s.m[carry.to] != nil && s.m[carry.to].Unsettled(carry.wire.Fork)
}

// handoffsUnderWay reports whether something that a dead worker handed out has not reached the owner yet: what the grace
// period is for.
func (s *state) handoffsUnderWay(w Worker) bool {
	child := func(fork ID) bool { return fork.On == w }
	return slices.ContainsFunc(s.net, func(p packet) bool {
		if s.crashed[p.to] {
			return false
		}
		if p.what == "carry" && p.from == w {
			return true
		}
		if p.what == "request" && p.msg.Kind == ForkRequest && child(p.msg.Fork) {
			return true
		}
		return p.what == "frame" && slices.ContainsFunc(p.frame.Msgs, func(m Message) bool {
			return (m.Kind == Handoff && p.from == w) || (m.Kind == ForkRequest && child(m.Fork))
		})
	})
}

// proofUnderWay reports whether the owner waits for something that a dead worker has sent: what the grace period is for, too.
func (s *state) proofUnderWay(w Worker) bool {
	if s.m[wO] == nil || len(s.m[wO].early) == 0 {
		return false
	}
	tells := func(m Message) bool { return m.Kind == Announce || m.Kind == ForkRequest }
	return slices.ContainsFunc(s.net, func(p packet) bool {
		if p.from != w || p.to != wO {
			return false
		}
		return p.what == "call" || p.what == "request" && tells(p.msg) || p.what == "frame" && slices.ContainsFunc(p.frame.Msgs, tells)
	})
}

// receive claims a carried reference as the agent does: by its fork on a link, by all it says on a pipe.
func (c config) receive(m *Machine, p packet) (owned bool, code Code) {
	if c.wire(p.from, p.to) == PyTorch {
		w := p.wire
		w.Root = ID{} // it is not on PyTorch's wire
		return m.Receive(p.from, w)
	}
	_, code = m.Claim(p.from, p.wire.Fork, p.wire.Owner == p.to)
	return p.wire.Owner == p.to, code
}

// undelivered notifies the sender of a carrier that it did not arrive.
func (c config) undelivered(s *state, p packet) {
	if !s.crashed[p.from] {
		s.mut(p.from).Undelivered(p.to, p.wire)
		s.drain(p.from)
	}
}

func (c config) deliver(s *state, p packet) {
	m := s.mut(p.to)
	switch p.what {
	case "call":
		if m.CallArrived(p.from, p.wire.ID, p.wire.Fork, p.wire.Key) == OK {
			m.Valued(p.wire.ID)
			s.valued, s.freed = true, false
		}
		if c.wire(p.from, p.to) == PyTorch {
			s.net = append(slices.Clone(s.net), packet{what: "return", from: p.to, to: p.from, wire: p.wire})
		}
	case "return":
		m.CreateReplied(p.wire.Fork, true)
	case "carry":
		owned, code := c.receive(m, p)
		switch {
		case code != OK:
			c.undelivered(s, p)
		case owned:
			s.local++
		default:
			s.forks[p.target] = p.wire.Fork
		}
	case "frame":
		m.ReceiveFrame(p.frame)
	case "request":
		m.Control(p.from, p.msg)
		if p.msg.Kind == ForkRequest {
			s.net = append(slices.Clone(s.net), packet{what: "reply", from: p.to, to: p.from, msg: p.msg})
		} else if s.m[p.from] != nil {
			s.mut(p.from).RequestDone(p.to, p.msg, true)
			s.drain(p.from)
		}
	case "reply":
		m.RequestDone(p.from, p.msg, true)
	}
	s.drain(p.to)
}
