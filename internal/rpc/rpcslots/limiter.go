// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcslots

import (
	"context"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// Limiter bounds how many handlers run at once. A handler gives its slot up while it waits for a call of its own and
// takes it back without waiting, even over the bound: a completion never waits, so nested calls cannot block each other.
//
// Callers share the slots: the last quarter is for callers that have less than a quarter, and waiting callers get the next one
// in turn, caller by caller. So one of them cannot keep the others out, however many requests it sends and however long
// its handlers run.
type Limiter struct {
	limit   int
	maximum int        // of requests that wait
	start   func(Task) // starts one that waited

	mu struct {
		sync.Mutex
		running   int
		waiting   int
		abandoned int         // handlers that run on without a slot, because their callers have given up
		of        map[any]int // running, by caller
		queues    []*callerQueue
	}
}

// Task is a request that needs a slot.
type Task interface {
	// Caller identifies the caller, whose requests share slots. All nil callers are one.
	Caller() any
}

// callerQueue are the requests of one caller that wait.
type callerQueue struct {
	who   any
	tasks []Task
}

// New returns a limiter of that many slots. start starts a request that has waited for its slot, of which at most queue wait.
func New(limit, queue int, start func(Task)) *Limiter {
	l := &Limiter{limit: limit, maximum: queue, start: start}
	l.mu.of = map[any]int{}
	return l
}

// admits reports whether a caller can have one more slot. Called with the lock.
func (l *Limiter) admits(who any) bool {
	share := l.limit / 4
	return l.mu.running < l.limit && (l.mu.running < l.limit-share || l.mu.of[who] < share)
}

// take gives a caller a slot. Called with the lock.
func (l *Limiter) take(who any) {
	l.mu.running++
	l.mu.of[who]++
}

// give takes a slot back. Called with the lock.
func (l *Limiter) give(who any) {
	l.mu.running--
	if l.mu.of[who]--; l.mu.of[who] == 0 {
		delete(l.mu.of, who)
	}
	if invariants.Enabled {
		invariants.Check(l.mu.running >= 0 && l.mu.of[who] >= 0, "a slot was given back twice")
	}
}

func (l *Limiter) queueOf(who any) int {
	return slices.IndexFunc(l.mu.queues, func(q *callerQueue) bool { return q.who == who })
}

// Enter takes a slot for a request: now, or it is started when one is free. ok is false when too many wait, of this
// caller or of all.
func (l *Limiter) Enter(t Task) (now, ok bool) {
	failpoint.At("rpc.limiter.enter")
	who := t.Caller()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.queueOf(who)
	if at < 0 && l.admits(who) {
		l.take(who)
		return true, true
	}
	if at < 0 {
		at = len(l.mu.queues)
		l.mu.queues = append(l.mu.queues, &callerQueue{who: who})
	}
	q := l.mu.queues[at]
	if l.mu.waiting >= l.maximum || len(q.tasks) > 0 && len(q.tasks) >= l.maximum*3/4 {
		if len(q.tasks) == 0 {
			l.mu.queues = slices.Delete(l.mu.queues, at, at+1)
		}
		return false, false
	}
	q.tasks = append(q.tasks, t)
	l.mu.waiting++
	return false, true
}

// Leave frees a slot and starts the next requests that can have one.
func (l *Limiter) Leave(who any) {
	failpoint.At("rpc.limiter.leave")
	l.mu.Lock()
	l.give(who)
	var next []Task
	for r := l.next(); r != nil; r = l.next() {
		next = append(next, r)
	}
	l.mu.Unlock()
	for _, r := range next {
		l.start(r)
	}
}

// next takes a slot for a request that waits, of the first caller in turn that can have one. Called with the lock.
func (l *Limiter) next() Task {
	for at, q := range l.mu.queues {
		if !l.admits(q.who) {
			continue
		}
		r := q.tasks[0]
		q.tasks[0] = nil
		q.tasks = q.tasks[1:]
		l.mu.queues = slices.Delete(l.mu.queues, at, at+1)
		if len(q.tasks) > 0 {
			l.mu.queues = append(l.mu.queues, q) // next turn after the others
		}
		l.mu.waiting--
		l.take(q.who)
		return r
	}
	return nil
}

// resume takes a slot even over the limit.
func (l *Limiter) resume(who any) {
	l.mu.Lock()
	l.take(who)
	l.mu.Unlock()
}

// abandon counts a handler that runs on although its caller has given up. It reports false when there are too many of them: then
// they keep their slots, or their goroutines would grow without bound.
func (l *Limiter) abandon() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.abandoned >= l.limit {
		return false
	}
	l.mu.abandoned++
	return true
}

// abandonedEnds is called when such a handler has returned after all.
func (l *Limiter) abandonedEnds() {
	failpoint.At("rpc.limiter.abandoned")
	l.mu.Lock()
	l.mu.abandoned--
	l.mu.Unlock()
}

// Queued returns the requests that wait, in no particular order.
func (l *Limiter) Queued() []Task {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Task
	for _, q := range l.mu.queues {
		all = append(all, q.tasks...)
	}
	return all
}

// Counts returns how many handlers run and how many requests wait.
func (l *Limiter) Counts() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.running, l.mu.waiting
}

// Slot is a handler's slot. It travels in the handler's context, so that calls made with it can give it up meanwhile.
type Slot struct {
	l      *Limiter // set once, under mu
	who    any
	reader Reader // set when the handler runs in the goroutine that reads
	turn   uint64 // of the reader

	mu struct {
		sync.Mutex
		waiting   int // calls of this handler that wait at the same time
		ended     bool
		abandoned bool
	}
}

// Take sets the owner of the slot. The caller may give up at this moment.
func (p *Slot) Take(l *Limiter, who any) {
	failpoint.At("rpc.slot.take")
	p.mu.Lock()
	p.l, p.who = l, who
	p.mu.Unlock()
}

// In notes that the handler runs in the goroutine that reads, in this turn of it.
func (p *Slot) In(r Reader) { p.reader, p.turn = r, r.Turn() }

type slotKey struct{}

// Of returns the slot of the handler whose context ctx is or is derived from, or nil.
func Of(ctx context.Context) *Slot {
	p, _ := ctx.Value(slotKey{}).(*Slot)
	return p
}

// Pause is called before the handler waits.
func (p *Slot) Pause() {
	if p == nil {
		return
	}
	if p.reader != nil {
		p.reader.Handover(p.turn)
	}
	p.Return()
}

// Return is called when the handler is about to return without an answer, which comes later: others have the slot meanwhile.
func (p *Slot) Return() {
	failpoint.At("rpc.slot.return")
	p.mu.Lock()
	p.mu.waiting++
	first := p.mu.waiting == 1 && !p.mu.ended
	p.mu.Unlock()
	if first {
		p.l.Leave(p.who)
	}
}

// Resume is called when the wait is over.
func (p *Slot) Resume() {
	if p == nil {
		return
	}
	failpoint.At("rpc.slot.resume")
	p.mu.Lock()
	p.mu.waiting--
	last := p.mu.waiting == 0 && !p.mu.ended
	if last {
		p.l.resume(p.who)
	}
	p.mu.Unlock()
}

// End gives the slot back for good.
func (p *Slot) End() {
	failpoint.At("rpc.slot.end")
	p.mu.Lock()
	held := p.mu.waiting == 0 && !p.mu.ended
	p.mu.ended = true
	abandoned := p.mu.abandoned
	p.mu.abandoned = false
	p.mu.Unlock()
	if held {
		p.l.Leave(p.who)
	}
	if abandoned {
		p.l.abandonedEnds()
	}
}

// abandon gives the slot of a handler that does not return although its caller has given up to others. It reports whether it
// did.
func (p *Slot) abandon() bool {
	failpoint.At("rpc.slot.abandon")
	p.mu.Lock()
	held := p.mu.waiting == 0 && !p.mu.ended && p.l != nil && p.l.abandon()
	if held {
		p.mu.ended, p.mu.abandoned = true, true
	}
	p.mu.Unlock()
	if held {
		p.l.Leave(p.who)
	}
	return held
}
