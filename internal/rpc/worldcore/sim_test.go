// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// sim is a simulated world: a store, processes and time. One thing happens at a time. The seed decides how long everything
// takes, and so in which order it happens.
type sim struct {
	rng     *rand.Rand
	now     time.Duration
	queue   []happening // in order
	seq     int
	store   map[string]string
	waits   []*waiter
	procs   map[string]*proc
	names   []string
	links   map[[2]string]*contact
	latest  time.Duration // how long an answer may take at most
	stalled time.Duration // until when the store does nothing
	gone    bool          // the store has ended with the process that hosted it
	changes func(key, was, value string)
	logging bool
	log     []string
	wrong   error // what went wrong while it ran
}

// proc is a process with a worker.
type proc struct {
	name string
	py   bool // a PyTorch worker
	dead bool
	died time.Duration
	left bool          // and the others know it
	asks time.Duration // when its last question arrives at the store
	set  string        // the key that it has asked to set last
}

// contact is how one worker stands with another.
type contact struct{ met, connected bool }

type waiter struct {
	keys []string
	then func()
	lost func()
}

type happening struct {
	at  time.Duration
	seq int
	do  func()
}

// add puts a happening in its place.
func (s *sim) add(x happening) {
	at, _ := slices.BinarySearchFunc(s.queue, x, func(a, b happening) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq))
	})
	s.queue = slices.Insert(s.queue, at, x)
}

func newSim(seed uint64) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 7)), store: map[string]string{}, procs: map[string]*proc{}, links: map[[2]string]*contact{}}
	s.latest = []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 400 * time.Millisecond}[s.rng.IntN(3)]
	return s
}

func (s *sim) process(name string, py bool) *proc {
	p := &proc{name: name, py: py}
	s.procs[name] = p
	s.names = append(s.names, name)
	return p
}

func (s *sim) note(format string, args ...any) {
	if !s.logging {
		return
	}
	s.log = append(s.log, fmt.Sprintf("%9.3f ", s.now.Seconds())+fmt.Sprintf(format, args...))
}

func (s *sim) story() string { return strings.Join(s.log[max(0, len(s.log)-120):], "\n") }

// fault notes what went wrong first.
func (s *sim) fault(format string, args ...any) {
	if s.wrong == nil {
		s.wrong = fmt.Errorf(format, args...)
		s.note("WRONG: %v", s.wrong)
	}
}

// after has something happen later.
func (s *sim) after(d time.Duration, do func()) {
	s.seq++
	s.add(happening{s.now + d, s.seq, do})
}

// within is a random time below d.
func (s *sim) within(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d) + 1)) }

// while is how long an answer takes: mostly little.
func (s *sim) while() time.Duration {
	if s.rng.IntN(4) > 0 {
		return s.within(s.latest / 20)
	}
	return s.within(s.latest)
}

// run lets everything happen until nothing does any more, or the time is over.
func (s *sim) run(until time.Duration) {
	for s.wrong == nil && len(s.queue) > 0 && s.queue[0].at <= until {
		x := s.queue[0]
		s.queue = s.queue[1:]
		s.now = x.at
		x.do()
	}
	s.now = max(s.now, until)
}

// kill ends a process. Its connections end a little later.
func (s *sim) kill(p *proc) {
	if p.dead {
		return
	}
	s.note("%s dies", p.name)
	p.dead, p.died = true, s.now
	for _, name := range s.names {
		s.after(s.within(20*time.Millisecond), func() { s.contact(name, p.name).connected = false })
	}
}

// cut ends a connection between processes that live.
func (s *sim) cut(a, b string) {
	s.note("%s and %s lose their connection", a, b)
	s.contact(a, b).connected, s.contact(b, a).connected = false, false
}

func (s *sim) contact(from, to string) *contact {
	c := s.links[[2]string{from, to}]
	if c == nil {
		c = &contact{}
		s.links[[2]string{from, to}] = c
	}
	return c
}

var (
	errRefused   = errors.New("nothing listens there")
	errDeadline  = cohort.New("sim", cohort.DeadlineExceeded, "the time is over")
	errCancelled = errors.New("cancelled")
	errCutOff    = cohort.New("sim", cohort.PeerLost, "the connection has ended")
	errNoStore   = cohort.New("sim", cohort.Unavailable, "the store has ended")
)

// call calls a worker: handle runs there, perhaps twice if twice is set, and its answer comes back.
func (s *sim) call(from, to *proc, twice bool, handle func() error, answer func(Event)) {
	s.after(s.while(), func() {
		if from.dead {
			return
		}
		if to.dead {
			answer(Event{Err: errRefused, Gone: true})
			return
		}
		for _, pair := range [][2]string{{from.name, to.name}, {to.name, from.name}} {
			c := s.contact(pair[0], pair[1])
			c.met, c.connected = true, true
		}
		if twice && s.rng.IntN(4) == 0 { // the answer is lost with the connection, and the call made again
			s.after(s.within(2*s.latest), func() {
				if !to.dead {
					_ = handle()
				}
			})
		}
		err := handle()
		s.after(s.while(), func() {
			if to.dead && s.rng.IntN(2) == 0 {
				answer(Event{Err: errRefused, Gone: true})
				return
			}
			answer(Event{Err: err})
		})
	})
}

// put changes a key, and wakes those who wait for it.
func (s *sim) put(key, value string) {
	if s.changes != nil {
		s.changes(key, s.store[key], value)
	}
	s.store[key] = value
	for _, w := range slices.Clone(s.waits) {
		if s.there(w.keys) {
			s.waits = slices.DeleteFunc(s.waits, func(x *waiter) bool { return x == w })
			w.then()
		}
	}
}

func (s *sim) there(keys []string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { _, there := s.store[k]; return !there })
}

// loseStore ends the store.
func (s *sim) loseStore() {
	s.note("the store ends")
	s.gone = true
	for _, w := range s.waits {
		w.lost()
	}
	s.waits = nil
}

// at is the key of a round as the store knows it.
func at(round int, key string) string {
	if round == NoRound {
		return key
	}
	return fmt.Sprintf("%d/%s", round, key)
}

// ask does an operation of the store for a process. The question takes its time, and so does the answer. Questions of one
// process arrive in the order in which they were asked, as on one connection.
func (s *sim) ask(p *proc, op Op, answer func(Event)) {
	key := at(op.Round, op.Key)
	keys := make([]string, len(op.Keys))
	for i, k := range op.Keys {
		keys[i] = at(op.Round, k)
	}
	back := func(ev Event) { s.after(s.while(), func() { answer(ev) }) }
	lost := func() { back(Event{Err: errNoStore}) }
	var arrive func()
	arrive = func() {
		if s.gone {
			lost()
			return
		}
		if s.stalled > s.now {
			s.after(s.stalled-s.now, arrive)
			return
		}
		switch op.Kind {
		case OpCheck:
			back(Event{OK: s.there(keys)})
		case OpRead:
			back(Event{Text: s.store[key]})
		case OpGet:
			keys = []string{key}
			fallthrough
		case OpWait:
			then := func() { back(Event{Text: s.store[key]}) }
			if s.there(keys) {
				then()
				return
			}
			s.waits = append(s.waits, &waiter{keys, then, lost})
		case OpSet:
			s.put(key, op.Text)
			back(Event{})
		case OpAdd:
			sum, _ := strconv.Atoi(s.store[key])
			sum += op.N
			s.put(key, strconv.Itoa(sum))
			back(Event{N: sum})
		case OpSwap:
			switch was, there := s.store[key]; {
			case was == op.Old:
				s.put(key, op.Text)
				back(Event{Text: op.Text})
			case !there: // as PyTorch's stores answer
				back(Event{Text: op.Old})
			default:
				back(Event{Text: was})
			}
		case OpDelete:
			delete(s.store, key)
			back(Event{})
		default:
			panic(op.Kind)
		}
	}
	if op.Kind == OpSet {
		p.set = key
	}
	p.asks = max(p.asks, s.now+s.while())
	s.after(p.asks-s.now, arrive)
}

// guard looks after other workers while a machine waits, as its operations OpWatch and OpUnwatch ask for.
type guard struct {
	watch *Watch
	t     *task
}

func (g *guard) begin(s *sim, p *proc, me Self, round int, op Op, answer func(Event)) {
	watch := NewWatch(me, round, op.Names, op.Among, op.How)
	g.watch, g.t = watch, &task{p: p, what: "watch", m: watch, then: func() { answer(Event{OK: watch.Err() != nil}) }}
	s.start(g.t)
}

func (g *guard) end() (ev Event) {
	if g.watch == nil { // the time of the caller was over before
		return ev
	}
	g.t.stop()
	if dead := g.watch.Dead(); dead != nil {
		ev.Err = dead
	}
	return ev
}

// task is a machine that is driven in a process.
type task struct {
	s        *sim
	p        *proc
	what     string
	m        interface{ Step(Event) []Op }
	do       func(op Op, answer func(Event))
	then     func() // when it has ended, unless the process has died
	begun    time.Duration
	deadline time.Duration // of the caller; zero for none
	under    map[int]func(Event)
	ended    bool
}

// start drives a machine.
func (s *sim) start(t *task) *task {
	t.s, t.begun, t.under = s, s.now, map[int]func(Event){}
	if t.deadline > 0 {
		s.after(max(t.deadline-s.now, 0), t.expire)
	}
	t.step(Event{})
	return t
}

// stop ends a machine from outside.
func (t *task) stop() { t.ended = true }

// expire fails what is under way for the caller, whose time is over.
func (t *task) expire() {
	if t.ended {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(t.under)) {
		t.under[id](Event{Err: errDeadline, N: -1})
	}
}

func (t *task) step(ev Event) {
	if t.ended || t.p.dead {
		return
	}
	ev.Now = t.s.now - t.begun
	for _, op := range t.m.Step(ev) {
		if t.ended || t.p.dead {
			return
		}
		switch op.Kind {
		case OpEnd:
			t.ended = true
			t.s.note("%s: %s has ended", t.p.name, t.what)
			if t.then != nil {
				t.then()
			}
			return
		case OpCancel:
			if answer := t.under[op.N]; answer != nil {
				answer(Event{Err: errCancelled})
			}
		default:
			t.perform(op)
		}
	}
}

// perform begins an operation. Its answer is taken later, one at a time.
func (t *task) perform(op Op) {
	answered := false
	answer := func(ev Event) {
		if answered || ev.N == -1 && op.Tidy {
			return
		}
		answered = true
		delete(t.under, op.ID)
		ev.ID = op.ID
		if t.s.logging && op.Kind != OpPause && op.Kind != OpStates && op.Kind != OpRead && op.Kind != OpAskCount &&
			op.Kind != OpAskInside {
			t.s.note("%s: %s: %s -> %q %v %v", t.p.name, t.what, show(op), ev.Text, ev.OK, ev.Err)
		}
		t.s.after(0, func() { t.step(ev) })
	}
	if t.deadline > 0 && t.s.now >= t.deadline && !op.Tidy && !op.Kind.Instant() && op.Kind != OpUnwatch {
		answer(Event{Err: errDeadline})
		return
	}
	t.under[op.ID] = answer
	if op.For > 0 && op.Kind != OpPause {
		t.s.after(op.For, func() { answer(Event{Err: errDeadline}) })
	}
	switch op.Kind {
	case OpPause:
		t.s.after(op.For, func() { answer(Event{}) })
	case OpCheck, OpRead, OpGet, OpSet, OpAdd, OpSwap, OpWait, OpDelete:
		t.s.ask(t.p, op, answer)
	case OpStates:
		ev := Event{States: make([]State, len(op.Names))}
		for i, name := range op.Names {
			c := t.s.contact(t.p.name, name)
			ev.States[i] = State{Known: !t.s.procs[name].left, ID: slices.Index(t.s.names, name), Met: c.met, Connected: c.connected}
		}
		answer(ev)
	case OpWorkers:
		ev := Event{}
		for i, name := range t.s.names {
			ev.Workers = append(ev.Workers, Worker{name, i})
		}
		answer(ev)
	case OpIsGo:
		t.s.after(t.s.while(), func() { answer(Event{OK: !t.s.procs[op.Worker].py}) })
	case OpReach:
		t.s.call(t.p, t.s.procs[op.Worker], false, func() error { return nil }, answer)
	default:
		t.do(op, answer)
	}
}

func show(op Op) string {
	return fmt.Sprintf("%d %s%v %s", op.Kind, op.Key, op.Keys, strings.Join(append([]string{op.Old, op.Text, op.Worker}, op.Names...), " "))
}

// world is something that is simulated.
type world interface {
	simulate() error
	story() string
	tell()
}

// tell lets a simulation note what happens.
func (s *sim) tell() { s.logging = true }

// holds simulates a world, and simulates it again to tell what happened if something went wrong.
func holds[W world](t *testing.T, what string, begin func() W) W {
	t.Helper()
	w := begin()
	if err := w.simulate(); err != nil {
		again := begin()
		again.tell()
		_ = again.simulate()
		t.Fatalf("%s: %v\n%s", what, err, again.story())
	}
	return w
}
