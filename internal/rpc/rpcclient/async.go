// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// asyncRequest is a request whose sender does not wait for the answer.
type asyncRequest struct {
	k        *Caller
	ctx      context.Context //nolint:containedctx // of the request
	c        *rpcsession.Conn
	o        *Outgoing
	id       uint64 // set before it is watched
	wires    []rrefcore.Wire
	started  time.Time
	deadline time.Time
	watch    watch
	done     func(rpcsession.Reply, error)
}

// Async sends a request on a session and calls done exactly once, normally in the goroutine that reads the answer. The
// caller has counted it as active.
func (k *Caller) Async(ctx context.Context, c *rpcsession.Conn, o *Outgoing, done func(rpcsession.Reply, error)) {
	p := &asyncRequest{k: k, ctx: ctx, c: c, o: o, started: k.Begin(ctx, o), deadline: k.Deadline(ctx), done: done}
	p.watch.k, p.watch.of = k, p
	m, wires, flags, err := o.Make(ctx, c.Cohort())
	if err != nil {
		p.finish(rpcsession.Reply{}, err)
		return
	}
	p.wires = wires
	k.cfg.Refs.FlushNow(o.Peer, wires)
	p.id, err = c.Begin(ctx, m, &rpcsession.Pending{RunsUserCode: o.RunsUserCode, Fn: p.answered}, rpcref.HeaderForks(wires),
		flags, p.deadline)
	if err != nil {
		k.unsent(c, o, wires, err)
		p.finish(rpcsession.Reply{}, k.Failed(o, err))
		return
	}
	p.watch.start()
}

func (p *asyncRequest) finish(x rpcsession.Reply, err error) {
	p.k.End(p.o, p.started, err)
	p.done(x, err)
}

func (p *asyncRequest) answered(x rpcsession.Reply) {
	p.watch.stop()
	x.Due = p.deadline
	p.finish(p.k.received(p.o, x, p.wires))
}

func (p *asyncRequest) bounds() (context.Context, time.Time, string) {
	return p.ctx, p.deadline, p.o.Op
}

func (p *asyncRequest) giveUp(err error) {
	if !p.c.Forget(p.id) {
		return
	}
	p.watch.stop()
	p.c.Cancel(p.id)
	p.k.cfg.Refs.Undelivered(p.o.Peer, p.wires)
	p.finish(rpcsession.Reply{}, p.k.Failed(p.o, err))
}

// When the link of two Go workers is cut, it is unknown whether the requests on it arrived. A call fails then: running it
// twice is for the caller to decide. But a fetch changes nothing, and a creating call is known to its owner by the id of
// its object, so these two are sent again on the next link, and a cut connection does not cost a reference.

// maxRetries is how often a request is sent again, in about five seconds. A request that breaks its link each time must not do so
// for ever.
const maxRetries = 8

// mayRetry reports whether a request whose session failed with err may be sent on another one.
func (o *Outgoing) mayRetry(c *rpcsession.Conn, err error) bool {
	if o.Repeat == nil || !c.Severed() {
		return false
	}
	switch cohort.CodeOf(err) { //nolint:exhaustive // all others are about the request itself
	case cohort.PeerLost, cohort.Closed, cohort.Unavailable:
		return o.Repeat()
	}
	return false
}

// pauseBeforeRetry pauses before a request is repeated, from the second time on. It reports false when no time is left.
func (k *Caller) pauseBeforeRetry(ctx context.Context, tries int) bool {
	if tries > 0 {
		failpoint.At("rpc.call.rest")
		select {
		case <-time.After(min(20*time.Millisecond<<tries, time.Second)):
		case <-ctx.Done():
		case <-k.cfg.Net.Context.Done():
		}
	}
	return ctx.Err() == nil && k.cfg.Net.Context.Err() == nil
}

// lasting is a request that outlives its link.
type retriedRequest struct {
	k        *Caller
	ctx      context.Context //nolint:containedctx // of the request
	o        *Outgoing
	m        *rpcwire.Message
	wires    []rrefcore.Wire
	flags    uint8
	deadline time.Time
	started  time.Time
	watch    watch
	done     func(rpcsession.Reply, error)

	mu struct {
		sync.Mutex
		over  bool
		conn  *rpcsession.Conn // where it waits for its answer, under id
		id    uint64
		tries int
	}
}

// AsyncRetried is [Caller.Async] for a request that may be repeated, and ends the count of it as active. Tensors among the
// arguments must stay as they are until it is answered. Where a PyTorch worker answers a request that was given up, or
// its session ends before, done is called a second time: such a worker cannot be notified, so that only its answer proves that it has done
// what was asked.
func (k *Caller) AsyncRetried(ctx context.Context, c *rpcsession.Conn, o *Outgoing, done func(rpcsession.Reply, error)) {
	l := &retriedRequest{k: k, ctx: ctx, o: o, started: k.Begin(ctx, o), deadline: k.Deadline(ctx), done: done}
	l.watch.k, l.watch.of = k, l
	var err error
	if l.m, l.wires, l.flags, err = o.Make(ctx, c.Cohort()); err != nil {
		l.finish(rpcsession.Reply{}, err)
		return
	}
	if err = l.send(c); err != nil {
		l.failed(c, err)
	}
	l.watch.start()
}

func (l *retriedRequest) bounds() (context.Context, time.Time, string) {
	return l.ctx, l.deadline, l.o.Op
}

// finish reports the outcome.
func (l *retriedRequest) finish(x rpcsession.Reply, err error) {
	l.k.End(l.o, l.started, err)
	l.done(x, err)
	l.k.Active.Leave()
}

// end reports the outcome, once. It returns false when it was reported before.
func (l *retriedRequest) end(outcome func() (rpcsession.Reply, error)) bool {
	failpoint.At("rpc.lasting.end")
	l.mu.Lock()
	first := !l.mu.over
	l.mu.over = true
	l.mu.Unlock()
	if first {
		l.watch.stop()
		l.finish(outcome())
	}
	return first
}

// send sends the request on a session.
func (l *retriedRequest) send(c *rpcsession.Conn) error {
	l.k.cfg.Refs.FlushNow(l.o.Peer, l.wires)
	p := &rpcsession.Pending{KeepAfterCancel: true, NotUrgent: true, Fn: func(x rpcsession.Reply) {
		if x.Err != nil {
			l.failed(c, x.Err)
			return
		}
		if !l.end(func() (rpcsession.Reply, error) { return l.k.received(l.o, x, l.wires) }) && !c.Cohort() {
			if late, err := unwrapLate(x); err == nil {
				l.done(late, nil)
			}
		}
	}}
	id, err := c.Begin(l.ctx, l.m, p, rpcref.HeaderForks(l.wires), l.flags, l.deadline)
	if id == rpcsession.Unsent && !c.Cohort() {
		return fmt.Errorf("%w: %w", tensorpipe.ErrUnsent, err)
	}
	if err != nil {
		return err
	}
	failpoint.At("rpc.lasting.sent")
	l.mu.Lock()
	l.mu.conn, l.mu.id = c, id
	over := l.mu.over
	l.mu.Unlock()
	if over {
		l.abandon(c, id)
	}
	return nil
}

// unwrapLate takes the wrapper off an answer that is not awaited any more; the extension knows that.
func unwrapLate(x rpcsession.Reply) (rpcsession.Reply, error) {
	if x.Msg.Type != rpcwire.ForwardAutogradResp {
		return x, nil
	}
	w, inner, err := rpcwire.UnwrapAutograd(x.Msg.Payload)
	if err == nil {
		x.Msg.Type, x.Msg.Payload = w.Inner, inner
	}
	return x, err
}

// abandon cancels the request at a Go worker. A PyTorch worker's answer is still awaited.
func (l *retriedRequest) abandon(c *rpcsession.Conn, id uint64) {
	if c.Cohort() && c.Forget(id) {
		c.Cancel(id)
	}
}

// failed ends the request, or has it sent again if only its session is to blame. It may run in a reading goroutine.
func (l *retriedRequest) failed(c *rpcsession.Conn, err error) {
	ends := func() {
		if !l.end(func() (rpcsession.Reply, error) {
			if c.Alive() || errors.Is(err, tensorpipe.ErrUnsent) {
				l.k.unsent(c, l.o, l.wires, err)
			} else {
				l.k.cfg.Refs.Undelivered(l.o.Peer, l.wires)
			}
			return rpcsession.Reply{}, l.k.Failed(l.o, err)
		}) && !c.Cohort() {
			if errors.Is(err, tensorpipe.ErrUnsent) {
				l.k.cfg.Refs.Undecoded(l.o.Peer, l.wires)
			}
			l.done(rpcsession.Reply{}, err) // it was given up, and its answer will not come either
		}
	}
	failpoint.At("rpc.lasting.failed")
	l.mu.Lock()
	tries, over := l.mu.tries, l.mu.over
	l.mu.tries++
	l.mu.Unlock()
	unsent := errors.Is(err, tensorpipe.ErrUnsent) && cohort.CodeOf(err) == cohort.PeerLost // the session had ended before
	if over || tries >= maxRetries || !unsent && !l.o.mayRetry(c, err) {
		ends()
		return
	}
	if !l.k.cfg.Net.Go(func() {
		if !l.k.pauseBeforeRetry(l.ctx, tries) {
			if over := cohort.FromContext(l.ctx, "rpc: "+l.o.Op); over != nil {
				l.giveUp(over)
			}
			ends()
			return
		}
		bounded, cancel := Until(l.ctx, l.deadline)
		next, nextErr := l.o.Peer.Connect(bounded)
		cancel()
		if nextErr == nil && next.Cohort() == c.Cohort() { // else it was made for another kind of worker
			if nextErr = l.send(next); nextErr != nil {
				l.failed(next, nextErr)
			}
			return
		}
		if code := cohort.CodeOf(nextErr); code == cohort.DeadlineExceeded || code == cohort.Canceled {
			l.giveUp(nextErr)
		} else if nextErr != nil && !unsent {
			err = nextErr
		}
		ends()
	}) {
		ends()
	}
}

// giveUp ends a request whose time is over.
func (l *retriedRequest) giveUp(err error) {
	l.end(func() (rpcsession.Reply, error) {
		failpoint.At("rpc.lasting.give_up")
		l.mu.Lock()
		c, id := l.mu.conn, l.mu.id
		l.mu.Unlock()
		if c != nil {
			l.abandon(c, id)
		}
		l.k.cfg.Refs.Undelivered(l.o.Peer, l.wires)
		return rpcsession.Reply{}, l.k.Failed(l.o, err)
	})
}
