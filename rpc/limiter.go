// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"
)

// limiter bounds how many handlers run at once. A handler gives its place up while it waits for a call of its own and
// takes it back without waiting, even over the bound: a completion never waits, so nested calls cannot block each other.
type limiter struct {
	mu      sync.Mutex
	limit   int
	running int
	queue   []*request
	start   func(*request) // starts one that waited
	maximum int            // of the queue
}

func newLimiter(limit, queue int, start func(*request)) *limiter {
	return &limiter{limit: limit, maximum: queue, start: start}
}

// enter takes a place for a request: now, or it is started when one is free. ok is false when too many wait.
func (l *limiter) enter(r *request) (now, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running < l.limit {
		l.running++
		return true, true
	}
	if len(l.queue) >= l.maximum {
		return false, false
	}
	l.queue = append(l.queue, r)
	return false, true
}

// leave frees a place and starts the next in the queue with it.
func (l *limiter) leave() {
	l.mu.Lock()
	l.running--
	var next *request
	if l.running < l.limit && len(l.queue) > 0 {
		next = l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if len(l.queue) == 0 {
			l.queue = nil
		}
		l.running++
	}
	l.mu.Unlock()
	if next != nil {
		l.start(next)
	}
}

// resume takes a place without asking.
func (l *limiter) resume() {
	l.mu.Lock()
	l.running++
	l.mu.Unlock()
}

func (l *limiter) counts() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running, len(l.queue)
}

// place is a handler's place. It travels in the handler's context, so that calls made with it can give it up meanwhile.
type place struct {
	l *limiter

	mu      sync.Mutex
	waiting int // calls of this handler that wait at the same time
	gone    bool
	reader  reader // set when the handler runs in the goroutine that reads
	turn    uint64 // of the reader
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
		p.l.leave()
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
		p.l.resume()
	}
	p.mu.Unlock()
}

// end gives the place back for good.
func (p *place) end() {
	p.mu.Lock()
	held := p.waiting == 0 && !p.gone
	p.gone = true
	p.mu.Unlock()
	if held {
		p.l.leave()
	}
}
