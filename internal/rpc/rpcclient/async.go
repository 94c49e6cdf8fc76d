// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
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
	p.id, err = c.Begin(ctx, m, &rpcsession.Pending{RunsUserCode: o.RunsUserCode, Fn: p.answered}, rpcref.HeaderForks(wires), flags, p.deadline)
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
