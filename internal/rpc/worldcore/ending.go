// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"cmp"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
)

const (
	// barriersAhead is how many barriers are looked for beyond those that the round explains, at first and more each time, and
	// barriersMost how many at most.
	barriersAhead, barriersMost = 64, 4096
	// barrierFirst and barrierEvery are the pauses between two looks for the first barrier, from the first to the longest.
	barrierFirst, barrierEvery = time.Millisecond, 50 * time.Millisecond
	// lastGrace is how long the last barrier waits for the others once a worker has died in it and the store answers: none of them has
	// anything to do before it. lastEvery is how often it is looked at.
	lastGrace, lastEvery = 2 * time.Second, 50 * time.Millisecond
)

// ending is a worker that leaves a static world in order. Its states are:
//
//	finding the first barrier → idle → met → counted → (again, if there were calls) → arrived → waiting for the last ones → left
//
// All workers meet when they are idle, then count the calls that have begun since, by handlers of others' calls. If there is
// none, there will be none: only calls bring about calls. Otherwise they do it again. In the last barrier they only wait for
// each other's way out.
//
// Before the last barrier no worker leaves before this one, so one that is gone has died. In the last one it may have left.
type ending struct {
	waiting
	me     Self
	others []string
	mixed  bool
	n      int // the barrier
	frozen bool
}

// NewEnding returns the machine of a worker among others. mixed says that there are PyTorch workers.
func NewEnding(me Self, round int, others []string, mixed bool) *ending {
	e := &ending{me: me, others: slices.Sorted(slices.Values(others)), mixed: mixed}
	e.round = round
	e.begin(func() {
		e.guard(e.others, e.others, ClosedWait)
		e.find(barriersAhead, barrierFirst)
	})
	return e
}

// step does an operation before the last barrier, while the others are looked after.
func (e *ending) step(op Op, then func(Event)) {
	e.current = e.do(op, func(ev Event) {
		if ev.Err == nil && !e.lost {
			then(ev)
			return
		}
		e.stopWatch(func(dead *cohort.Error) {
			err := ev.Err
			if dead != nil {
				err = dead
			}
			e.thaw(func() { e.end(err) })
		})
	})
}

// find is the state in which the first barrier of this end is not known. PyTorch counts the barriers of all worlds of a process,
// so in a later world one has to look which of them a PyTorch worker has entered. It does not wait for others to do so.
func (e *ending) find(ahead int, again time.Duration) {
	likely := 3*e.round + 1
	if e.round == 0 || !e.mixed {
		likely = 1
	}
	if e.round == 0 || !e.mixed {
		e.n = likely
		e.idle()
		return
	}
	all := make([]int, 0, 3*e.round+1+ahead)
	for n := range cap(all) {
		all = append(all, (3*e.round+n)%cap(all)+1)
	}
	inOrder(all, func(n int, next func()) {
		e.step(Op{Kind: OpCheck, Round: e.round, Keys: []string{activeKey(n)}}, func(ev Event) {
			if ev.OK {
				e.n = n
				e.idle()
				return
			}
			next()
		})
	}, func() {
		e.step(Op{Kind: OpPause, For: again}, func(Event) {
			e.find(min(ahead+barriersAhead, barriersMost), min(2*again, barrierEvery))
		})
	})
}

// idle is the state in which calls of this worker may be under way.
func (e *ending) idle() {
	e.step(Op{Kind: OpIdle}, func(Event) {
		e.barrier(0, func(int) { e.count() })
	})
}

// count is the state in which everybody was idle since the last count. No call begins until all have counted.
func (e *ending) count() {
	e.must(Op{Kind: OpFreeze}, func(ev Event) {
		e.frozen = true
		e.barrier(ev.N, func(sum int) {
			e.thaw(func() {
				if sum != 0 {
					e.idle()
					return
				}
				e.stopWatch(func(*cohort.Error) { e.arrive() })
			})
		})
	})
}

// thaw lets calls begin again.
func (e *ending) thaw(then func()) {
	if !e.frozen {
		then()
		return
	}
	e.frozen = false
	e.do(Op{Kind: OpThaw}, func(Event) { then() })
}

// barrier enters the next barrier with a number to add up, and waits for all.
func (e *ending) barrier(add int, then func(sum int)) {
	n := e.n
	e.n++
	sum := func(Event) {
		e.step(Op{Kind: OpAdd, Round: e.round, Key: activeKey(n)}, func(ev Event) { then(ev.N) })
	}
	e.enter(e.step, n, add, func() { sum(Event{}) }, func() {
		e.step(Op{Kind: OpWait, Round: e.round, Keys: []string{readyKey(n)}}, sum)
	})
}

// enter enters a barrier. last is the state if everybody else has entered it before, wait otherwise.
func (e *ending) enter(ask asker, n, add int, last, wait func()) {
	ask(Op{Kind: OpAdd, Round: e.round, Key: activeKey(n), N: add}, func(Event) {
		ask(Op{Kind: OpAdd, Round: e.round, Key: countKey(n), N: 1}, func(ev Event) {
			if ev.N != e.me.Size {
				wait()
				return
			}
			ask(Op{Kind: OpSet, Round: e.round, Key: readyKey(n)}, func(Event) { last() })
		})
	})
}

// arrive is the state before the last barrier. It tells worlds that come later that this one is over.
func (e *ending) arrive() {
	e.do(Op{Kind: OpSet, Round: e.round, Key: KeyOver}, func(Event) {
		e.enter(e.must, e.n, 0, func() { e.end(nil) }, e.waitLast)
	})
}

// waitLast is the state in which this worker has come to its end, and others may be on their way.
func (e *ending) waitLast() {
	e.guard(e.others, e.others, LastWait)
	e.current = e.do(Op{Kind: OpWait, Round: e.round, Keys: []string{readyKey(e.n)}}, func(ev Event) {
		e.stopWatch(func(dead *cohort.Error) {
			switch {
			case ev.Err == nil:
				e.end(nil)
			case dead != nil: // the last ones go without waiting for those behind them
				e.look(dead, 0)
			case cutOff(ev.Err): // its host has left, which it does last
				e.end(nil)
			default:
				e.end(ev.Err)
			}
		})
	})
}

// look is the state in which a worker is gone: it has died if the last barrier does not end, although the store is
// there to tell. until is when it should have ended, zero while the store has told nothing: it may be slow for others
// too, so they are given their time from then on.
func (e *ending) look(dead *cohort.Error, until time.Duration) {
	limit := until
	if until == 0 {
		limit = e.now + silentFor
	}
	e.do(Op{Kind: OpCheck, Round: e.round, Keys: []string{readyKey(e.n)}, For: max(limit-e.now, 1)}, func(ev Event) {
		switch {
		case timeOver(ev.Err) && e.now < limit: // that of the caller is, and the store has not told
			e.end(ev.Err)
		case ev.OK, ev.Err != nil && !timeOver(ev.Err): // or it has gone with its host, which goes last
			e.end(nil)
		case ev.Err != nil || until > 0 && e.now >= until:
			e.died(dead)
		default:
			until = cmp.Or(until, e.now+lastGrace)
			e.do(Op{Kind: OpPause, For: lastEvery}, func(ev Event) {
				if ev.Err != nil {
					e.died(dead)
					return
				}
				e.look(dead, until)
			})
		}
	})
}

// died is the state in which a worker has died before its end.
func (e *ending) died(dead *cohort.Error) {
	e.recordDeath(e.me, dead, e.others, func(first *cohort.Error) { e.end(first) })
}

// cutOff reports whether an operation has failed because the connection has ended, perhaps with the process that was asked.
func cutOff(err error) bool {
	switch cohort.CodeOf(err) {
	case cohort.PeerLost, cohort.Unavailable, cohort.Closed:
		return true
	default:
		return false
	}
}
