// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// The checker explores every schedule of a small configuration: one object of owner O, created by A, shared with C, by C
// with D, and by A with the owner itself. It drives the production machine; only the network and the applications are
// modelled: messages arrive in any order (on a stream: in the stream's order), may be repeated or lost as often as the
// configuration says, creations may time out, carriers may be undecodable, workers may crash. Each worker is a PyTorch worker
// or a Go worker; two Go workers use the extended protocol, every other pair PyTorch's. Go workers are driven as the agent
// drives them: Claim for what a link brings, Receive for what a pipe brings, Discard for a frame that cannot be decoded.

const allTorch = "OACD"

const (
	wO Worker = iota
	wA
	wC
	wD
)

// config is one row of the table of configurations.
type config struct {
	torch                      string  // the PyTorch workers, of "O", "A", "C", "D"; the others are Go workers
	opt                        Options // of the Go workers: nothing for production
	torchOpt                   *Options
	dup, timeout, lose, refuse int
	crash                      []Worker
	detect                     bool   // Go workers notice a death
	shares                     string // of "C" (A to C), "D" (C to D), "P" (A to the owner)
	forge                      int    // how many messages D makes up, about a reference that nobody gave it
}

// isTorch reports whether a worker is a PyTorch worker.
func (c config) isTorch(w Worker) bool { return strings.Contains(c.torch, "OACD"[w:w+1]) }

// wire is the protocol between two workers: PyTorch's, unless both are Go workers.
func (c config) wire(a, b Worker) PeerKind {
	if c.isTorch(a) || c.isTorch(b) {
		return PyTorch
	}
	return Cohort
}

// options are what a worker runs with: PyTorch's protocol, or what production uses.
func (c config) options(w Worker) Options {
	switch {
	case !c.isTorch(w):
		return c.opt
	case c.torchOpt != nil:
		return *c.torchOpt
	}
	return pytorch
}

// pytorch turns everything off that PyTorch does not have.
var pytorch = Options{NoRoot: true, NoCancel: true, NoWithdraw: true, NoLease: true, NoGrace: true, NoRefusal: true, NoTombs: true}

// packet is something on its way.
type packet struct {
	what   string // frame, request, reply, call, return, carry
	from   Worker
	to     Worker
	frame  Frame
	msg    Message
	wire   Wire
	target string // of a carry: which share it is
	digest digest // of the rest, once somebody has asked; a packet does not change
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
		oc.forks, oc.offers, oc.forkedAt, oc.open = maps.Clone(o.forks), maps.Clone(o.offers), maps.Clone(o.forkedAt), maps.Clone(o.open)
		c.objects[id] = &oc
	}
	c.handles, c.pins = make(map[ID]*handle, len(m.handles)), map[ID]*handle{}
	for id, h := range m.handles {
		hc := *h
		hc.children = maps.Clone(h.children)
		c.handles[id] = &hc
		for child := range hc.children {
			c.pins[child] = &hc
		}
	}
	c.peers = make(map[Worker]*peer, len(m.peers))
	for id, p := range m.peers {
		pc := *p
		pc.stream.queue = slices.Clone(p.stream.queue)
		pc.buried = maps.Clone(p.buried)
		pc.requests = nil
		for _, r := range p.requests {
			rc := *r
			pc.requests = append(pc.requests, &rc)
		}
		c.peers[id] = &pc
	}
	c.ghosts = slices.Clone(m.ghosts)
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
		opt := c.options(w)
		opt.NewKey = knownKey
		s.m[w], s.own[w] = &cell{Machine: New(w, epoch, opt)}, true
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
				f := m.frame(p, p.stream.sent)
				f.Ack, f.Stamp, f.Echo = 0, 0, 0
				m.acknowledge(p, p.stream.base+uint64(len(p.stream.queue))) // the stream is reliable: no ack frames in the net
				s.net = append(s.net, packet{what: "frame", from: w, to: e.To, frame: f})
			}
			p.stream.owesAck = false
		case Free:
			if s.local > 0 && m.objects[e.ID] == nil {
				s.split = true
			}
			s.freed = s.freed || s.valued || !m.opt.NoRoot
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

// held tells whether the application of a worker has the reference of a role.
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
		if s.refuse > 0 && p.what == "carry" && !s.crashed[p.to] && (c.wire(p.from, p.to) != Cohort || !s.handoffOnItsWay(p) && !s.unsettled(p)) {
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
				if !c.options(wA).NoCancel {
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
			if !c.opt.NoGrace && (s.handoffsUnderWay(w) || s.proofUnderWay(w)) {
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
		return p.what == "frame" && p.to == carry.to && slices.ContainsFunc(p.frame.Msgs, func(m Message) bool { return m.Kind == Handoff && m.Fork == carry.wire.Fork })
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

// undelivered tells the sender of a carrier that it did not arrive.
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

// The states of the explorations come and go by the million, and few are alive at a time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// explore visits every reachable state and returns the properties that are broken, each with a trace, and the number of
// states.
func (c config) explore(t *testing.T) (broken map[string][]string, states int) {
	t.Helper()
	type node struct{ from, choice int32 } // how a state was reached: enough to live it again
	type open struct {
		at int32
		s  *state
	}
	first := c.start()
	nodes := []node{{-1, 0}}
	stack := []open{{0, first}}
	var scratch encoder
	seen := map[digest]struct{}{first.key(&scratch): {}}
	broken = map[string][]string{}
	trace := func(at int32) []string {
		var path []int32
		for ; at > 0; at = nodes[at].from {
			path = append(path, nodes[at].choice)
		}
		var labels []string
		for s := c.start(); len(path) > 0; path = path[:len(path)-1] {
			st := c.steps(s)[path[len(path)-1]]
			labels = append(labels, st.label())
			s = s.clone()
			st.do(s)
		}
		return labels
	}
	for len(stack) > 0 {
		at, s := stack[len(stack)-1].at, stack[len(stack)-1].s
		stack = stack[:len(stack)-1]
		for _, v := range s.violations() {
			if broken[v] == nil {
				broken[v] = trace(at)
			}
		}
		steps := c.steps(s)
		if len(steps) == 0 {
			if left := s.leaks(); left != "" && broken["LEAK"] == nil {
				broken["LEAK"] = append(trace(at), left)
			}
		}
		for i, st := range steps {
			next := s.clone()
			st.do(next)
			key := next.key(&scratch)
			if _, known := seen[key]; !known {
				seen[key] = struct{}{}
				stack = append(stack, open{int32(len(nodes)), next})
				nodes = append(nodes, node{at, int32(i)})
			}
		}
		if len(nodes) > 3_000_000 {
			t.Fatal("more states than expected")
		}
	}
	return broken, len(nodes)
}

func TestCheckerFindsThePyTorchBugs(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	noPins := pytorch
	noPins.NoPins = true
	for _, c := range []struct {
		name string
		cfg  config
		want string
	}{
		{"V0 reliable network: the split object", config{torch: allTorch, shares: "CDP"}, "SPLIT"},
		{"V0b without pins", config{torch: allTorch, torchOpt: &noPins, shares: "CDP"}, "LEAK PENDING PREMATURE SPLIT"},
		{"V1 a repeated control message: the resurrected fork", config{torch: allTorch, shares: "CDP", dup: 1}, "LEAK SPLIT"},
		{"V2 remote() times out", config{torch: allTorch, shares: "CDP", timeout: 1}, "LEAK SPLIT"},
		{"V3 a carrier is lost", config{torch: allTorch, shares: "CDP", lose: 1}, "LEAK SPLIT"},
		{"V4 C crashes", config{torch: allTorch, shares: "CDP", crash: []Worker{wC}}, "LEAK SPLIT"},
		{"V4b A crashes", config{torch: allTorch, shares: "CDP", crash: []Worker{wA}}, "LEAK SPLIT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broken, states := c.cfg.explore(t)
			t.Logf("%d states", states)
			found := slices.Sorted(maps.Keys(broken))
			if strings.Join(found, " ") != c.want {
				t.Errorf("found %v, want %s\n%v", found, c.want, broken)
			}
		})
	}
}

// large skips a world that takes long to explore, unless it was asked for.
func large(t *testing.T) {
	t.Helper()
	if !*checkAll {
		t.Skip("it takes long: make model runs it")
	}
}

func TestCheckerFindsNothingInTheExtendedProtocol(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	for _, c := range []struct {
		name  string
		cfg   config
		large bool
	}{
		{"X0 reliable network", config{shares: "CDP"}, false},
		{"X1 a repeated frame", config{shares: "CDP", dup: 1}, true},
		{"X2 the creation times out", config{shares: "CDP", timeout: 1}, false},
		{"X3 a carrier is lost", config{shares: "CDP", lose: 1}, false},
		{"X4 C crashes", config{shares: "CDP", crash: []Worker{wC}, detect: true}, true},
		{"X4b A crashes", config{shares: "CDP", crash: []Worker{wA}, detect: true}, true},
		{"X6 everything, chain A to C to D", config{shares: "CD", dup: 1, timeout: 1, lose: 1, crash: []Worker{wA, wC}, detect: true}, true},
		{"X6 everything, A to C and A to the owner", config{shares: "CP", dup: 1, timeout: 1, lose: 1, crash: []Worker{wA, wC}, detect: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.large {
				large(t)
			}
			broken, states := c.cfg.explore(t)
			t.Logf("count: reference checker: %s: %d states", c.name, states)
			for v, trace := range broken {
				t.Errorf("%s:\n  %s", v, strings.Join(trace, "\n  "))
			}
		})
	}
}
