// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"time"

	"github.com/cohort-dist/cohort"
)

// opKind is the kind of an [Op].
type opKind uint8

// The operations, with what the answer has. Each may be answered with Err instead.
const (
	OpEnd    opKind = 1 + iota // the machine has ended: everything else is to be cancelled; no answer
	OpCancel                   // cancel operation N, which is answered all the same; no answer itself
	OpPause                    // let For pass

	// Operations of the store, on the store of Round, or on the store itself if Round is NoRound.
	OpCheck  // OK: all Keys are there
	OpRead   // Text: the value of Key, or "" without waiting for it
	OpGet    // Text: the value of Key, once it is there
	OpSet    // Key is Text
	OpAdd    // add N to the number under Key; N: the sum
	OpSwap   // if Key is Old, it becomes Text; Text: what it is now
	OpWait   // all Keys are there
	OpDelete // Key is not there

	// What others are asked.
	OpStates  // States: how this worker stands with the workers Names
	OpWorkers // Workers: all workers of the world, by id
	OpIsGo    // OK: Worker is a Go worker
	OpReach   // connect to Worker; Gone: its process has ended; Silent: its machine does not answer
	OpProbe   // connect to a worker at the address Text without naming this one; Gone: nothing listens there; Silent: no answer

	// The members of a world.
	OpEnter       // Round is the round of this worker
	OpListen      // Text: the address of this worker, whose id is N
	OpKnow        // Worker, whose id is N, has the address Text and the entry Key
	OpDrop        // forget Worker
	OpOthers      // Names: the workers that are known
	OpAskDevices  // ask Worker for its devices; Gone: its process has ended
	OpNotifyJoin  // tell Worker that this worker comes; Gone: its process has ended
	OpNotifyLeave // tell Worker that this worker goes; Gone: its process has ended

	// The calls of this worker.
	OpIdle   // wait until none is under way
	OpFreeze // N: how many are under way; none begins until OpThaw
	OpThaw

	// The all-gathers of this worker: see Gathers.
	OpGatherCount // OK: it is known which all-gather of Names is next
	OpGatherFirst // all-gather N of Names is the next one, unless it is known by now
	OpGatherEnter // Text: the id of the all-gather of Names that this worker enters
	OpReport      // give the own object to the leader Worker of all-gather Text; Gone: its process has ended
	OpAwait       // wait until all-gather Text is complete; Names: who is missing, if it is given up
	OpGatherSeen  // OK: all-gather Text is complete, or has failed with Err
	OpGatherLeave // leave all-gather Text
	OpGiveUp      // the all-gather Text of Names cannot be completed, because Worker has died
	OpGiveUpNext  // the next all-gather of Names cannot be told, because Worker has died; Reports: who waits for it
	OpShare       // give all objects of all-gather Text to the follower Worker; Gone: its process has ended
	OpNotifyLost  // tell Worker that all-gather Text fails, because Names[0] has died
	OpAskCount    // N: how many all-gathers called Text the PyTorch worker Worker has begun; Gone: its process has ended
	OpAskInside   // OK: the PyTorch worker Worker is in the all-gather with the id Text
	OpWatch       // look after Names in a wait of Among of the kind How; OK: a worker has died, and the wait is over
	OpUnwatch     // stop looking after them; Err: who has died meanwhile
)

// NoRound is the Round of operations on the store itself.
const NoRound = -1

// Op is something that a machine wants to have done. The driver does it, while it goes on with what it was told before,
// and reports the answer as an [Event] with the same ID.
type Op struct {
	ID    int
	Kind  opKind
	Round int
	Key   string
	Keys  []string
	Old   string
	Text  string
	// Worker and Names are workers.
	Worker string
	Names  []string
	Among  []string
	N      int
	How    Wait
	// For is how long it may take at most, if it is not zero.
	For time.Duration
	// Tidy says that it has to be done even if the time of the caller is over.
	Tidy bool
}

// Event is the answer to an [Op]. The first event of a machine has the ID 0.
type Event struct {
	ID           int
	Now          time.Duration // since the machine has begun
	OK           bool
	Text         string
	N            int
	Names        []string
	States       []State
	Workers      []Worker
	Reports      []Report
	Err          error
	Gone, Silent bool // with Err
}

// Worker is a worker by name and id.
type Worker struct {
	Name string
	ID   int
}

// Self is what a worker knows about itself.
type Self struct {
	Name  string
	Rank  int    // -1 if the world gives one
	Size  int    // of a static world, else 0
	Round int    // -1 if it is to be found
	Epoch uint64 // which start of this worker it is
	Entry string // what it publishes about itself, if it speaks the cohort transport
}

// Static reports whether the world has a fixed size.
func (s Self) Static() bool { return s.Size > 0 }

// course is what the machines have in common: which operations are under way, and in which state their answers are taken.
// A state is a function: do begins an operation and says which state takes the answer.
type course struct {
	now    time.Duration
	last   int
	states map[int]func(Event)
	failed func(error) // the state after an operation whose failure was not expected
	round  int
	tidy   time.Duration // when tidying up has to end; zero before it
	out    []Op
	over   bool
	err    error
}

// begin sets the first state.
func (c *course) begin(first func()) {
	c.states = map[int]func(Event){0: func(Event) { first() }}
	c.failed = c.end
}

// Step takes an event and returns what to do next.
func (c *course) Step(ev Event) []Op {
	then := c.states[ev.ID]
	if c.over || then == nil {
		return nil
	}
	delete(c.states, ev.ID)
	c.now = ev.Now
	then(ev)
	out := c.out
	c.out = nil
	return out
}

// Err is why the machine has ended, or nil if it has done what it should.
func (c *course) Err() error { return c.err }

// end is the last state.
func (c *course) end(err error) {
	if !c.over {
		c.over, c.err = true, err
		c.out = append(c.out, Op{Kind: OpEnd})
	}
}

// do begins an operation and returns its id. then is the state in which its answer is taken, also if it has failed.
func (c *course) do(op Op, then func(Event)) int {
	c.last++
	op.ID = c.last
	if c.tidy > 0 && op.For == 0 {
		op.Tidy, op.For = true, max(c.tidy-c.now, 1)
	}
	c.states[op.ID] = then
	c.out = append(c.out, op)
	return op.ID
}

// must is do for an operation that is expected to succeed.
func (c *course) must(op Op, then func(Event)) {
	c.do(op, func(ev Event) {
		if ev.Err != nil {
			c.failed(ev.Err)
			return
		}
		then(ev)
	})
}

// cancel ends an operation early. Its answer comes all the same.
func (c *course) cancel(id int) {
	if c.states[id] != nil {
		c.out = append(c.out, Op{Kind: OpCancel, N: id})
	}
}

func (c *course) pause(d time.Duration, then func()) {
	c.must(Op{Kind: OpPause, For: d}, func(Event) { then() })
}

func (c *course) check(then func(bool), keys ...string) {
	c.must(Op{Kind: OpCheck, Round: c.round, Keys: keys}, func(ev Event) { then(ev.OK) })
}

func (c *course) read(round int, key string, then func(string)) {
	c.must(Op{Kind: OpRead, Round: round, Key: key}, func(ev Event) { then(ev.Text) })
}

func (c *course) set(key, value string, then func()) {
	c.must(Op{Kind: OpSet, Round: c.round, Key: key, Text: value}, func(Event) { then() })
}

func (c *course) swap(key, old, value string, then func(string)) {
	c.must(Op{Kind: OpSwap, Round: c.round, Key: key, Old: old, Text: value}, func(ev Event) { then(ev.Text) })
}

func (c *course) remove(key string, then func()) {
	c.must(Op{Kind: OpDelete, Round: c.round, Key: key}, func(Event) { then() })
}

// inOrder visits the elements of a list one after the other.
func inOrder[T any](list []T, visit func(x T, next func()), then func()) {
	if len(list) == 0 {
		then()
		return
	}
	visit(list[0], func() { inOrder(list[1:], visit, then) })
}

// timeOver reports whether an operation has failed because the time of the caller, or its own, is over.
func timeOver(err error) bool {
	code := cohort.CodeOf(err)
	return code == cohort.DeadlineExceeded || code == cohort.Canceled
}

// deathOf is the error of a wait for a worker that died.
func deathOf(worker string, id int, how string, cause error) *cohort.Error {
	e := cohort.New("rpc: worker", cohort.PeerLost, how)
	e.Peer, e.Rank, e.Err = worker, cohort.Rank(id), cause
	return e
}

// Instant reports whether an operation is answered at once: the driver need not do anything else meanwhile.
func (k opKind) Instant() bool {
	switch k {
	case OpStates, OpWorkers, OpEnter, OpKnow, OpDrop, OpOthers, OpFreeze, OpThaw, OpGatherCount, OpGatherFirst, OpGatherEnter,
		OpGatherSeen, OpGatherLeave, OpGiveUp, OpGiveUpNext:
		return true
	default:
		return false
	}
}
