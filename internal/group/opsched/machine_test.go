// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package opsched

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// op is an operation of the simulation.
type op struct {
	item      Item[op]
	id        int
	first     uint32 // its sequence number
	started   bool
	completed int // how often
}

// sim drives a machine as package group does, with goroutines that are steps of its own.
type sim struct {
	t       *testing.T
	random  *rand.Rand
	m       Machine[op]
	threads []*thread
	ops     []*op
	log     strings.Builder

	pumpWoken bool
	roomWoken bool
	gone      bool
	holders   int
	lastStart int
	numbers   uint32
	waitsRoom int
}

// thread is a goroutine of the driver: what it does next.
type thread struct {
	name  string
	on    *op
	next  func(*thread)
	ready func() bool // nil: always
	ctx   bool        // its context has ended
	run   *op         // what it runs as the runner
}

func (s *sim) say(format string, args ...any) { fmt.Fprintf(&s.log, format+"\n", args...) }

func (s *sim) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\nhistory:\n%s", fmt.Sprintf(format, args...), s.log.String())
}

func (s *sim) perform(e Effect) {
	s.pumpWoken = s.pumpWoken || e&WakePump != 0
	s.roomWoken = s.roomWoken || e&Room != 0
	s.gone = s.gone || e&Gone != 0
}

func (s *sim) complete(o *op) {
	if o.completed++; o.completed > 1 {
		s.fail("operation %d is completed twice", o.id)
	}
	if o.item.phase != ended {
		s.fail("operation %d is completed in phase %d", o.id, o.item.phase)
	}
}

func (s *sim) spawn(name string, o *op, next func(*thread)) *thread {
	t := &thread{name: name, on: o, next: next}
	s.threads = append(s.threads, t)
	return t
}

func (s *sim) end(t *thread) { t.next = nil }

// submit is a user who posts a collective and, mostly, waits for it.
func (s *sim) submit() {
	o := &op{id: len(s.ops)}
	o.item.Owner = o
	numbers := uint32(1 + s.random.IntN(2))
	full := s.m.pending >= s.m.limit
	first, e, no := s.m.Submit(&o.item, numbers)
	s.say("submit %d: %d %d %d", o.id, first, e, no)
	switch {
	case s.m.State() != Open:
		if no != Over {
			s.fail("a group that has ended takes an operation")
		}
		return
	case full:
		if no != Full {
			s.fail("an operation over the limit is taken")
		}
		s.waitsRoom++
		return
	case no != Accepted || first != s.numbers:
		s.fail("refused (%d), or number %d where %d comes next", no, first, s.numbers)
	case e&(WakePump|Watch) == 0:
		s.fail("operation %d has neither runner nor timer", o.id)
	}
	s.numbers += numbers
	o.first = first
	s.ops = append(s.ops, o)
	s.perform(e)
	if s.random.IntN(4) > 0 {
		s.spawn("waiter", o, s.wait)
	}
}

func (s *sim) post() {
	o := &op{id: len(s.ops)}
	o.item.Owner = o
	if _, no := s.m.Post(&o.item); no == Accepted {
		s.say("post %d", o.id)
		s.ops = append(s.ops, o)
		for range 1 + s.random.IntN(2) { // any goroutine sees that the mesh has finished it
			s.spawn("settler", o, s.settle)
		}
	}
}

func (s *sim) settle(t *thread) {
	if ok, e := s.m.Settle(&t.on.item); ok {
		s.perform(e)
		s.complete(t.on)
	}
	s.end(t)
}

func (s *sim) wait(t *thread) {
	if t.on.completed > 0 {
		s.end(t)
		return
	}
	if s.m.Eager() {
		s.m.Learn(s.random.IntN(8) > 0)
	}
	run, e := s.m.Wait(&t.on.item, s.random.IntN(5) > 0)
	s.say("wait %d: run %v, effects %d", t.on.id, run, e)
	s.perform(e)
	if run {
		s.hold(t)
		t.next = s.start
		return
	}
	t.ready = func() bool { return t.on.completed > 0 || t.ctx }
	t.next = func(t *thread) {
		t.ready = nil
		s.m.Leave(&t.on.item)
		s.end(t)
	}
}

func (s *sim) hold(t *thread) {
	if s.holders++; s.holders > 1 {
		s.fail("%s takes a role that is taken", t.name)
	}
}

func (s *sim) release(t *thread) {
	s.holders--
	s.perform(s.m.Release())
	t.run = nil
}

func (s *sim) start(t *thread) {
	it := s.m.Start()
	if it == nil {
		s.release(t)
		s.again(t)
		return
	}
	o := it.Owner
	s.say("%s starts %d", t.name, o.id)
	if !o.started {
		if s.m.State() != Open {
			s.fail("operation %d starts after the end", o.id)
		}
		if o.id < s.lastStart {
			s.fail("operation %d starts after %d", o.id, s.lastStart)
		}
		o.started, s.lastStart = true, o.id
	}
	t.run, t.next = o, s.engine
}

// engine is the engine of the group: it ends the operation, fails, or is interrupted.
func (s *sim) engine(t *thread) {
	if t.ctx && t.name == "waiter" && s.random.IntN(2) == 0 {
		if paused, e := s.m.Pause(); paused {
			s.say("%s pauses %d", t.name, t.run.id)
			s.holders--
			s.perform(e)
			t.run = nil
			s.end(t)
			return
		}
		s.say("%s may not pause %d", t.name, t.run.id)
	}
	o := t.run
	if s.random.IntN(12) == 0 {
		s.doFail()
	}
	s.say("%s finishes %d", t.name, o.id)
	s.perform(s.m.Finish())
	s.complete(o)
	s.release(t)
	s.again(t)
}

func (s *sim) again(t *thread) {
	switch t.name {
	case "waiter":
		t.next = s.wait
	case "closer":
		s.end(t)
	default:
		t.next = s.pumpLoop
	}
}

func (s *sim) pump(t *thread) {
	s.pumpWoken = false
	t.ready = nil
	s.pumpLoop(t)
}

func (s *sim) pumpLoop(t *thread) {
	if s.m.State() == Closed { // it ends with the group
		s.end(t)
		return
	}
	if s.m.Pump() {
		s.say("pump runs")
		s.hold(t)
		t.next = s.start
		return
	}
	t.ready = func() bool { return s.pumpWoken }
	t.next = s.pump
}

func (s *sim) doFail() {
	list, e := s.m.Fail()
	s.say("fail: %d", e)
	s.perform(e)
	s.drop(list)
}

func (s *sim) drop(list *Item[op]) {
	for it := list; it != nil; it = it.Next() {
		s.complete(it.Owner)
	}
}

func (s *sim) doClose() {
	if s.m.State() == Closed {
		return
	}
	list, mine, held, e := s.m.Close()
	s.say("close: mine %v, held %v", mine, held)
	s.perform(e)
	s.drop(list)
	t := s.spawn("closer", nil, nil)
	switch {
	case mine:
		s.hold(t)
		t.next = s.start
	case held:
		t.ready = func() bool { return s.gone }
		t.next = func(t *thread) {
			if s.holders > 0 {
				s.fail("the closer goes on while a goroutine runs an operation")
			}
			s.end(t)
		}
	}
}

// step lets one thread that can go on do its next step.
func (s *sim) step() bool {
	var able []*thread
	kept := s.threads[:0]
	for _, t := range s.threads {
		if t.next == nil {
			continue
		}
		kept = append(kept, t)
		if t.ready == nil || t.ready() {
			able = append(able, t)
		}
	}
	s.threads = kept
	if len(able) == 0 {
		return false
	}
	t := able[s.random.IntN(len(able))]
	t.next(t)
	return true
}

func TestSimulation(t *testing.T) {
	count := 3000
	if testing.Short() {
		count = 300
	}
	for seed := range seeds.Range(count) {
		s := &sim{t: t, random: rand.New(rand.NewPCG(seed, 7)), m: New[op](1 + int(seed%6)), lastStart: -1}
		s.say("seed %d", seed)
		s.spawn("pump", nil, s.pumpLoop)
		ends := s.random.IntN(3) // 0: at the end of the program, in order
		for range 20 + s.random.IntN(150) {
			switch k := s.random.IntN(40); {
			case k < 8:
				s.submit()
			case k < 10:
				s.post()
			case k < 11:
				s.m.Skip(2)
				s.numbers += 2
			case k < 13 && len(s.threads) > 0:
				s.threads[s.random.IntN(len(s.threads))].ctx = true
			case k < 15:
				s.perform(s.m.Tick(s.random.IntN(2) == 0))
			case k == 15 && ends == 1 && s.random.IntN(5) == 0:
				s.doFail()
			case k == 16 && ends == 2 && s.random.IntN(5) == 0:
				s.doClose()
			default:
				s.step()
			}
		}
		s.finish(ends)
	}
}

// finish lets everything run out. Nothing may be left then.
func (s *sim) finish(ends int) {
	for {
		for s.step() {
		}
		for _, t := range s.threads {
			if t.next != nil && t.name == "waiter" && t.on.completed == 0 {
				s.fail("a goroutine waits for operation %d, which has no runner", t.on.id)
			}
		}
		e := s.m.Tick(true)
		if e == 0 {
			break
		}
		s.perform(e)
	}
	if ends > 0 {
		s.doClose()
		for s.step() {
		}
	}
	for _, o := range s.ops {
		if o.completed != 1 {
			s.fail("operation %d was completed %d times", o.id, o.completed)
		}
	}
	for _, t := range s.threads {
		if t.next != nil && t.name != "pump" {
			s.fail("%s waits for ever", t.name)
		}
	}
	if s.m.pending != 0 || s.holders != 0 {
		s.fail("%d operations are left, %d runners", s.m.pending, s.holders)
	}
	if s.waitsRoom > 0 && !s.roomWoken {
		s.fail("a submission that found the queue full was never woken")
	}
	if s.m.Sequence() != s.numbers {
		s.fail("%d numbers were taken, %d counted", s.numbers, s.m.Sequence())
	}
}

// TestEager: the pump is left alone as long as the program waits for each operation.
func TestEager(t *testing.T) {
	m := New[op](10)
	var a, b op
	if _, e, _ := m.Submit(&a.item, 1); e != Watch {
		t.Errorf("the first operation: effects %d", e)
	}
	if _, e, _ := m.Submit(&b.item, 1); e != WakePump {
		t.Errorf("a second one behind it: effects %d", e)
	}
	for i := range promptWaits {
		if !m.Eager() {
			t.Fatalf("not eager after %d prompt waits", i)
		}
		m.Learn(true)
	}
	if m.Eager() {
		t.Error("still eager")
	}
	if e := m.Tick(false); e != 0 || m.Eager() {
		t.Errorf("a young operation: effects %d", e)
	}
	if e := m.Tick(true); e != WakePump || !m.Eager() {
		t.Errorf("an operation without a runner: effects %d", e)
	}
}

// TestPausedBelongsToTheCloser: once a runner has paused an operation it does not end it, whatever it does next.
func TestPausedBelongsToTheCloser(t *testing.T) {
	m := New[int](4)
	it := &Item[int]{}
	if _, _, why := m.Submit(it, 1); why != 0 {
		t.Fatal(why)
	}
	run, _ := m.Wait(it, true)
	if !run || m.Start() != it {
		t.Fatal("the waiter does not run its operation")
	}
	if paused, _ := m.Pause(); !paused {
		t.Fatal("not paused")
	}
	if _, mine, held, _ := m.Close(); !mine || held {
		t.Errorf("the closer has the paused operation: %v; another has the role: %v", mine, held)
	}
}

// TestHold: a message that is held is not settled, and it is held by one.
func TestHold(t *testing.T) {
	m := New[int](4)
	var it Item[int]
	if it.Hold() {
		t.Error("held before it was posted")
	}
	if _, no := m.Post(&it); no != Accepted {
		t.Fatal(no)
	}
	if !it.Hold() || it.Hold() {
		t.Error("it is held by none or by two")
	}
	if mine, _ := m.Settle(&it); mine || len(m.Messages()) != 1 {
		t.Error("settled while it was held")
	}
	it.LetGo()
	if mine, _ := m.Settle(&it); !mine || it.Hold() {
		t.Error("not settled, or held afterwards")
	}
}
