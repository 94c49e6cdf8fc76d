// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort/internal/invariants"
	"github.com/cohort-dist/cohort/internal/moment"
)

// limiter bounds how many handlers run at once. A handler gives its place up while it waits for a call of its own and
// takes it back without waiting, even over the bound: a completion never waits, so nested calls cannot block each other.
//
// Callers share the places: the last quarter is for those who have less than a quarter, and whoever waits gets the next one
// in turn, caller by caller. So one of them cannot keep the others out, however many requests it sends and however long
// its handlers run.
type limiter struct {
	limit   int
	maximum int            // of requests that wait
	start   func(*request) // starts one that waited

	mu struct {
		sync.Mutex
		running   int
		waiting   int
		abandoned int           // handlers that run on without a place, because their callers have gone
		of        map[*peer]int // running, by caller
		queues    []*callerQueue
	}
}

// callerQueue are the requests of one caller that wait.
type callerQueue struct {
	who      *peer
	requests []*request
}

func newLimiter(limit, queue int, start func(*request)) *limiter {
	l := &limiter{limit: limit, maximum: queue, start: start}
	l.mu.of = map[*peer]int{}
	return l
}

// caller is who shares places: a worker, or all guests together.
func (r *request) caller() *peer {
	if r.peer == nil || r.peer.worker < 0 {
		return nil
	}
	return r.peer
}

// admits reports whether a caller can have one more place. Called with the lock.
func (l *limiter) admits(who *peer) bool {
	share := l.limit / 4
	return l.mu.running < l.limit && (l.mu.running < l.limit-share || l.mu.of[who] < share)
}

// take gives a caller a place. Called with the lock.
func (l *limiter) take(who *peer) {
	l.mu.running++
	l.mu.of[who]++
}

// give takes a place back. Called with the lock.
func (l *limiter) give(who *peer) {
	l.mu.running--
	if l.mu.of[who]--; l.mu.of[who] == 0 {
		delete(l.mu.of, who)
	}
	if invariants.Enabled {
		invariants.Check(l.mu.running >= 0 && l.mu.of[who] >= 0, "a place was given back twice")
	}
}

func (l *limiter) queueOf(who *peer) int {
	return slices.IndexFunc(l.mu.queues, func(q *callerQueue) bool { return q.who == who })
}

// enter takes a place for a request: now, or it is started when one is free. ok is false when too many wait, of this
// caller or of all.
func (l *limiter) enter(r *request) (now, ok bool) {
	moment.At("rpc.limiter.enter")
	who := r.caller()
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
	if l.mu.waiting >= l.maximum || len(q.requests) > 0 && len(q.requests) >= l.maximum*3/4 {
		if len(q.requests) == 0 {
			l.mu.queues = slices.Delete(l.mu.queues, at, at+1)
		}
		return false, false
	}
	q.requests = append(q.requests, r)
	l.mu.waiting++
	return false, true
}

// leave frees a place and starts the next ones with what is free.
func (l *limiter) leave(who *peer) {
	moment.At("rpc.limiter.leave")
	l.mu.Lock()
	l.give(who)
	var next []*request
	for r := l.next(); r != nil; r = l.next() {
		next = append(next, r)
	}
	l.mu.Unlock()
	for _, r := range next {
		l.start(r)
	}
}

// next takes a place for a request that waits, of the first caller in turn that can have one. Called with the lock.
func (l *limiter) next() *request {
	for at, q := range l.mu.queues {
		if !l.admits(q.who) {
			continue
		}
		r := q.requests[0]
		q.requests[0] = nil
		q.requests = q.requests[1:]
		l.mu.queues = slices.Delete(l.mu.queues, at, at+1)
		if len(q.requests) > 0 {
			l.mu.queues = append(l.mu.queues, q) // its turn comes again after the others
		}
		l.mu.waiting--
		l.take(q.who)
		return r
	}
	return nil
}

// resume takes a place without asking.
func (l *limiter) resume(who *peer) {
	l.mu.Lock()
	l.take(who)
	l.mu.Unlock()
}

// abandon counts a handler that runs on although nobody waits for it. It reports false when there are too many of them: then
// they keep their places, or their goroutines would grow without bound.
func (l *limiter) abandon() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.abandoned >= l.limit {
		return false
	}
	l.mu.abandoned++
	return true
}

// abandonedEnds is called when such a handler has returned after all.
func (l *limiter) abandonedEnds() {
	l.mu.Lock()
	l.mu.abandoned--
	l.mu.Unlock()
}

func (l *limiter) counts() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.running, l.mu.waiting
}

// place is a handler's place. It travels in the handler's context, so that calls made with it can give it up meanwhile.
type place struct {
	l   *limiter
	who *peer

	mu        sync.Mutex
	waiting   int // calls of this handler that wait at the same time
	gone      bool
	abandoned bool
	reader    reader // set when the handler runs in the goroutine that reads
	turn      uint64 // of the reader
}

type placeKey struct{}

func placeOf(ctx context.Context) *place {
	p, _ := ctx.Value(placeKey{}).(*place)
	return p
}

// pause is called before the handler waits.
func (p *place) pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.waiting++
	first := p.waiting == 1 && !p.gone
	p.mu.Unlock()
	if p.reader != nil {
		p.reader.Handover(p.turn)
	}
	if first {
		p.l.leave(p.who)
	}
}

// resume is called when the wait is over.
func (p *place) resume() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.waiting--
	last := p.waiting == 0 && !p.gone
	if last {
		p.l.resume(p.who)
	}
	p.mu.Unlock()
}

// end gives the place back for good.
func (p *place) end() {
	p.mu.Lock()
	held := p.waiting == 0 && !p.gone
	p.gone = true
	abandoned := p.abandoned
	p.abandoned = false
	p.mu.Unlock()
	if held {
		p.l.leave(p.who)
	}
	if abandoned {
		p.l.abandonedEnds()
	}
}

// abandon gives the place of a handler to others that does not return although its caller has gone. It reports whether it
// did.
func (p *place) abandon() bool {
	p.mu.Lock()
	held := p.waiting == 0 && !p.gone && p.l != nil && p.l.abandon()
	if held {
		p.gone, p.abandoned = true, true
	}
	p.mu.Unlock()
	if held {
		p.l.leave(p.who)
	}
	return held
}
