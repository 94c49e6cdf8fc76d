// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package opsched

import "github.com/cohort-dist/cohort/internal/util/invariants"

// promptWaits is how many operations in a row must be waited for at once before submissions stop to wake the pump.
const promptWaits = 8

// phase is the state of an operation.
type phase uint8

// The phases; see the package documentation.
const (
	fresh phase = iota
	queued
	running
	posted
	held
	ended
)

// State is the state of the group.
type State uint8

// The states.
const (
	Open State = iota
	failed
	Closed
)

// Effect is what the driver has to do after an event; several may be set.
type Effect uint8

// The effects.
const (
	// WakePump wakes the pump.
	WakePump Effect = 1 << iota
	// Watch has the clock look at the group: the operation has no runner yet.
	Watch
	// Room wakes everybody whose submission was refused because the queue was full.
	Room
	// Gone notifies the closer that no goroutine runs collectives any more.
	Gone
)

// Refusal is why a submission was not taken.
type Refusal uint8

// The refusals.
const (
	Accepted Refusal = iota
	// Full means that as many operations are submitted and not over as the limit allows.
	Full
	// Over means that the group has failed or was closed.
	Over
)

// Item is an operation as the machine sees it. It is part of its owner, and may be used again once it has ended.
type Item[T any] struct {
	Owner *T

	phase   phase
	waiters int
	at      int // among the messages
	next    *Item[T]
}

// Next is the operation behind this one in a list that Fail or Close returned.
func (it *Item[T]) Next() *Item[T] { return it.next }

// Reset makes an operation that has ended ready to be submitted again.
func (it *Item[T]) Reset() { *it = Item[T]{} }

// Machine is the scheduler of one group. The zero value is not usable; see [New].
type Machine[T any] struct {
	limit      int
	state      State
	held       bool // a goroutine is the runner
	eager      bool
	prompt     int // operations in a row that were waited for at once
	head, tail *Item[T]
	running    *Item[T]
	messages   []*Item[T]
	pending    int // submitted and not over

	collectives uint32 // sequence numbers that were taken
	posted      uint64
}

// New returns a machine that takes up to limit operations.
func New[T any](limit int) Machine[T] { return Machine[T]{limit: limit} }

// State returns the state of the group.
func (m *Machine[T]) State() State { return m.state }

// Sequence returns how many numbers of collectives were taken.
func (m *Machine[T]) Sequence() uint32 { return m.collectives }

// MessageSequence returns how many messages were submitted.
func (m *Machine[T]) MessageSequence() uint64 { return m.posted }

// Eager reports whether submissions wake the pump.
func (m *Machine[T]) Eager() bool { return m.eager }

// Messages returns the messages that are not over. The caller does not keep the list.
func (m *Machine[T]) Messages() []*Item[T] { return m.messages }

// Busy reports whether anything is not over, as long as the group is not closed.
func (m *Machine[T]) Busy() bool { return m.pending > 0 && m.state != Closed }

// Current is the collective that a runner would go on with: the paused one or the first in the queue.
func (m *Machine[T]) Current() *Item[T] {
	if m.running != nil {
		return m.running
	}
	return m.head
}

// EachCollective calls f for the running and all queued collectives.
func (m *Machine[T]) EachCollective(f func(*T)) {
	if m.running != nil {
		f(m.running.Owner)
	}
	for it := m.head; it != nil; it = it.next {
		f(it.Owner)
	}
}

// admit takes a place for an operation.
func (m *Machine[T]) admit(it *Item[T]) Refusal {
	switch {
	case m.state != Open:
		return Over
	case m.pending >= m.limit:
		return Full
	}
	if invariants.Enabled {
		invariants.Check(it.phase == fresh, "opsched: an operation is submitted twice")
	}
	m.pending++
	return Accepted
}

// Submit queues a collective, which takes so many sequence numbers, and returns the first of them.
func (m *Machine[T]) Submit(it *Item[T], numbers uint32) (uint32, Effect, Refusal) {
	if no := m.admit(it); no != Accepted {
		return 0, 0, no
	}
	first := m.collectives
	m.collectives += numbers
	it.phase, it.next = queued, nil
	if m.tail == nil {
		m.head = it
	} else {
		m.tail.next = it
	}
	m.tail = it
	if m.head != it { // another one waits already, so the program does not wait for each
		m.eager, m.prompt = true, 0
	}
	if invariants.Enabled {
		m.check()
	}
	if m.eager {
		return first, WakePump, Accepted
	}
	return first, Watch, Accepted
}

// Skip takes sequence numbers for a collective that does not run.
func (m *Machine[T]) Skip(numbers uint32) { m.collectives += numbers }

// Post takes a message, which the mesh gets now, and returns its sequence number.
func (m *Machine[T]) Post(it *Item[T]) (uint64, Refusal) {
	if no := m.admit(it); no != Accepted {
		return 0, no
	}
	first := m.posted
	m.posted++
	it.phase, it.at = posted, len(m.messages)
	m.messages = append(m.messages, it)
	if invariants.Enabled {
		m.check()
	}
	return first, Accepted
}

// Wait is called by a goroutine that waits for an operation. If it returns true the goroutine is the runner now. Else it
// waits for the completion and calls Leave afterwards. able reports whether it may run operations at all.
func (m *Machine[T]) Wait(it *Item[T], able bool) (run bool, e Effect) {
	if it.phase == ended { // another goroutine is about to complete it
		it.waiters++
		return false, 0
	}
	if !m.held && able {
		m.held = true
		return true, 0
	}
	it.waiters++
	if !m.held {
		e = WakePump
	}
	return false, e
}

// Leave ends the wait of a goroutine that was not the runner.
func (m *Machine[T]) Leave(it *Item[T]) {
	it.waiters--
	invariants.Check(it.waiters >= 0, "opsched: more goroutines stop to wait than began")
}

// Learn is told how soon after its submission an operation is waited for, while the machine is eager.
func (m *Machine[T]) Learn(prompt bool) {
	if !prompt {
		m.prompt = 0
		return
	}
	if m.prompt++; m.prompt >= promptWaits {
		m.eager, m.prompt = false, 0
	}
}

// Pump makes the pump the runner if the role is free and there is something to run.
func (m *Machine[T]) Pump() bool {
	if m.held || m.Current() == nil {
		return false
	}
	m.held = true
	return true
}

// Start returns the collective that the runner has to run or to go on with, nil if there is none.
func (m *Machine[T]) Start() *Item[T] {
	if invariants.Enabled {
		invariants.Check(m.held, "opsched: an operation is started by a goroutine that is not the runner")
	}
	if m.running != nil {
		return m.running
	}
	it := m.head
	if it == nil {
		return nil
	}
	m.head, it.next = it.next, nil
	if m.head == nil {
		m.tail = nil
	}
	it.phase, m.running = running, it
	if invariants.Enabled {
		m.check()
	}
	return it
}

// Pause leaves the running operation to the next runner and gives the role back. Both are one step: who closed the group
// between them would wait for a runner that does not end the operation any more. It returns false where there may be no next
// runner, because the group has failed or was closed: then the runner must end it, which does not take long any more.
func (m *Machine[T]) Pause() (bool, Effect) {
	if m.state != Open {
		return false, 0
	}
	return true, m.Release()
}

// Finish ends the running operation. The runner completes it afterwards.
func (m *Machine[T]) Finish() Effect {
	it := m.running
	if invariants.Enabled {
		invariants.Check(m.held && it != nil, "opsched: an operation ends that does not run")
	}
	it.phase, m.running = ended, nil
	return m.over(1)
}

// over gives places back.
func (m *Machine[T]) over(n int) (e Effect) {
	if n > 0 && m.pending >= m.limit {
		e = Room
	}
	m.pending -= n
	if invariants.Enabled {
		m.check()
	}
	return e
}

// Release gives the role of the runner back.
func (m *Machine[T]) Release() Effect {
	if invariants.Enabled {
		invariants.Check(m.held, "opsched: the role of the runner is given back by a goroutine that does not have it")
	}
	m.held = false
	switch next := m.Current(); {
	case m.state == Closed:
		return Gone
	case next != nil && (m.eager || next.waiters > 0 || next == m.running):
		return WakePump
	}
	return 0
}

// Settle ends a message and reports whether this call did.
func (m *Machine[T]) Settle(it *Item[T]) (bool, Effect) {
	if it.phase != posted {
		return false, 0
	}
	last := len(m.messages) - 1
	m.messages[it.at] = m.messages[last]
	m.messages[it.at].at = it.at
	m.messages[last] = nil
	m.messages = m.messages[:last]
	it.phase = ended
	return true, m.over(1)
}

// Hold keeps others from ending a message, so that its owner does not use it for another one, and reports whether it does: for
// exactly one caller, who calls LetGo later.
func (it *Item[T]) Hold() bool {
	if it.phase != posted {
		return false
	}
	it.phase = held
	return true
}

// LetGo ends Hold.
func (it *Item[T]) LetGo() { it.phase = posted }

// Alone reports whether a collective waits for a runner.
func (m *Machine[T]) Alone() bool { return m.head != nil && !m.held }

// Tick is called by the clock. stale says that the first queued collective was submitted a while ago.
func (m *Machine[T]) Tick(stale bool) Effect {
	if !m.Alone() || !stale {
		return 0
	}
	m.eager, m.prompt = true, 0
	return WakePump
}

// Fail ends the group: the queued collectives, which it returns as a list, end without having run. It changes nothing in a
// group that is not Open. A running operation is ended by its runner, a paused one by the pump, which was woken when it was
// paused.
func (m *Machine[T]) Fail() (*Item[T], Effect) {
	if m.state != Open {
		return nil, 0
	}
	m.state = failed
	return m.drop()
}

// Close ends the group for good and returns the queued collectives. If mine is true the closer is the runner now: there is a
// paused operation, which it ends with Finish and Release. Else, if held is true, it waits for Gone.
func (m *Machine[T]) Close() (list *Item[T], mine, held bool, e Effect) {
	m.state = Closed
	list, e = m.drop()
	held = m.held
	if m.running != nil && !m.held {
		m.held, mine = true, true
	}
	return list, mine, held, e
}

// drop ends all queued collectives.
func (m *Machine[T]) drop() (*Item[T], Effect) {
	list := m.head
	m.head, m.tail = nil, nil
	n := 0
	for it := list; it != nil; it = it.next {
		it.phase = ended
		n++
	}
	return list, m.over(n) | Room
}

// check states what is always true. It is for builds with invariants.
func (m *Machine[T]) check() {
	n := len(m.messages)
	for it := m.head; it != nil; it = it.next {
		n++
		invariants.Check(it.phase == queued, "opsched: what is in the queue is queued")
	}
	if m.running != nil {
		n++
		invariants.Check(m.running.phase == running, "opsched: the running operation runs")
	}
	invariants.Check(n == m.pending, "opsched: every operation that is not over has a place")
	invariants.Check(m.state == Open || m.head == nil, "opsched: a group that has ended has no queue")
}
