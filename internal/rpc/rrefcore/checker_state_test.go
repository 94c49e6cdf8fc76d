// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// packet is something on its way.
type packet struct {
	what   string // frame, request, reply, call, return, carry
	from   Worker
	to     Worker
	frame  Frame
	msg    Message
	wire   Wire
	target string // of a carry: which share it is
	digest digest // of the rest, once it was asked for; a packet does not change
}

// state is one state of the whole world.
type state struct {
	m       [4]*cell // nil once crashed
	own     [4]bool  // cells that belong to this state alone
	net     []packet
	forks   map[string]ID // the fork of each role that has appeared: "A", "C", "D"
	shared  string        // shares that were made
	local   int           // uses by code of the owner
	dup     int
	timeout int
	lose    int
	refuse  int
	forge   int
	crashes int
	crashed map[Worker]bool
	known   map[[2]Worker]bool // observer, dead worker
	freed   bool               // the value was destroyed
	valued  bool
	split   bool
	object  ID
}

// cell is a machine in a state, with its digest once that was needed. Cells are shared among states until one changes.
type cell struct {
	*Machine
	digest digest
}

// mut returns a machine of this state for a change.
func (s *state) mut(w Worker) *Machine {
	if !s.own[w] {
		s.m[w], s.own[w] = &cell{Machine: s.m[w].clone()}, true
	}
	s.m[w].digest = digest{}
	return s.m[w].Machine
}

func (s *state) clone() *state {
	c := *s
	c.own = [4]bool{}
	c.net = slices.Clone(s.net)
	c.forks = maps.Clone(s.forks)
	c.crashed = maps.Clone(s.crashed)
	c.known = maps.Clone(s.known)
	return &c
}

func (m *Machine) clone() *Machine {
	c := *m
	c.effects = slices.Clone(m.effects)
	c.objects = make(map[ID]*object, len(m.objects))
	for id, o := range m.objects {
		oc := *o
		oc.forks.more, oc.offers, oc.open = maps.Clone(o.forks.more), maps.Clone(o.offers), maps.Clone(o.open)
		c.objects[id] = &oc
	}
	c.handles, c.pins = make(map[ID]*handle, len(m.handles)), map[ID]*handle{}
	for id, h := range m.handles {
		hc := *h
		hc.children, hc.doubtful = maps.Clone(h.children), maps.Clone(h.doubtful)
		c.handles[id] = &hc
		for child := range hc.children {
			c.pins[child] = &hc
		}
	}
	c.peers = make(map[Worker]*peer, len(m.peers))
	for id, p := range m.peers {
		pc := *p
		pc.stream.queue = slices.Clone(p.stream.queue)
		pc.endedLives = maps.Clone(p.endedLives)
		pc.lost = slices.Clone(p.lost)
		pc.requests = nil
		for _, r := range p.requests {
			rc := *r
			pc.requests = append(pc.requests, &rc)
		}
		c.peers[id] = &pc
	}
	c.formerLives = slices.Clone(m.formerLives)
	c.tombs, c.offered, c.early = m.tombs.Clone(), maps.Clone(m.offered), make(map[ID][]earlyMessage, len(m.early))
	c.unsettled = maps.Clone(m.unsettled)
	for id, waiting := range m.early {
		c.early[id] = slices.Clone(waiting)
	}
	return &c
}

// start returns the first state: A has called remote().
func (c config) start() *state {
	s := &state{
		forks: map[string]ID{}, dup: c.dup, timeout: c.timeout, lose: c.lose, refuse: c.refuse, forge: c.forge,
		crashed: map[Worker]bool{}, known: map[[2]Worker]bool{},
	}
	if len(c.crash) > 0 {
		s.crashes = 1
	}
	for w := wO; w <= wD; w++ {
		epoch := Epoch(0)
		if !c.isTorch(w) {
			epoch = Epoch(100 + w)
		}
		m := New(w, epoch, Options{})
		m.newKey = knownKey
		s.m[w], s.own[w] = &cell{Machine: m}, true
	}
	for w, m := range s.m {
		for v, other := range s.m {
			if v != w {
				m.AddPeer(Worker(v), c.wire(Worker(w), Worker(v)), other.epoch)
			}
		}
	}
	wire, _ := s.mut(wA).Create(wO)
	s.forks["A"], s.object = wire.Fork, wire.ID
	s.drain(wA)
	s.net = append(s.net, packet{what: "call", from: wA, to: wO, wire: wire})
	return s
}

// drain turns the effects of a machine into packets and observations.
func (s *state) drain(w Worker) {
	m := s.mut(w)
	for _, e := range m.Take(nil) {
		switch e.Kind {
		case Send:
			s.net = append(s.net, packet{what: "request", from: w, to: e.To, msg: e.Msg})
		case Flush:
			p := m.peers[e.To]
			if p.stream.sent < len(p.stream.queue) {
				f := m.frame(p, p.stream.sent, nil)
				f.Ack, f.Stamp, f.Echo = 0, 0, 0
				m.acknowledge(p, p.stream.base+uint64(len(p.stream.queue))) // the stream is reliable: no ack frames in the net
				s.net = append(s.net, packet{what: "frame", from: w, to: e.To, frame: f})
			}
			p.stream.owesAck = false
		case Free:
			if s.local > 0 && m.objects[e.ID] == nil {
				s.split = true
			}
			s.freed = s.freed || s.valued || m.epoch != 0 // PyTorch erases placeholders
		case Confirmed, Failed, CancelRun, Orphaned, Settled:
		}
	}
}

// step is one thing that can happen.
type step struct {
	label func() string // built only for the trace of a violation
	do    func(s *state)
}

func (s *state) without(i int) { s.net = slices.Delete(slices.Clone(s.net), i, i+1) }

// knownKey makes keys that are the same in every run, and that only who was given them puts into a message.
func knownKey(by Worker, id ID) Key {
	return Key{1, byte(by), byte(id.On), byte(id.N)}
}

// held reports whether the application of a worker has the reference of a role.
func (s *state) held(role string) *handle {
	fork, made := s.forks[role]
	if !made {
		return nil
	}
	w := map[string]Worker{"A": wA, "C": wC, "D": wD}[role]
	if s.crashed[w] {
		return nil
	}
	h := s.m[w].handles[fork]
	if h == nil || !h.held || h.offered {
		return nil
	}
	return h
}

var roleOf = map[string]Worker{"A": wA, "C": wC, "D": wD, "P": wO}

// violations names the properties that a state breaks.
func (s *state) violations() []string {
	var bad []string
	live := s.freed && s.local == 0
	for _, m := range s.m {
		if m == nil {
			continue
		}
		for _, h := range m.handles {
			if live && h.state == confirmed && (h.held && !h.offered || len(h.children) > 0) {
				bad = append(bad, "PREMATURE")
			}
			if live && h.state == pending && (h.held || len(h.children) > 0) {
				bad = append(bad, "PENDING")
			}
		}
	}
	if s.stolen() {
		bad = append(bad, "THEFT")
	}
	if s.split {
		bad = append(bad, "SPLIT")
	}
	return bad
}

// leaks tells what is left in a state where nothing can happen any more.
func (s *state) leaks() string {
	var left []string
	for w := wO; w <= wD; w++ {
		if m := s.m[w]; m != nil && (len(m.objects) > 0 || len(m.handles) > 0 || len(m.pins) > 0 || len(m.early) > 0) {
			left = append(left, fmt.Sprintf("worker %d: %+v", w, m.Counts()))
		}
	}
	return strings.Join(left, "; ")
}
