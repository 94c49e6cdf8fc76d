// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// The files submit.go, drive.go and complete.go are the driver of the group's scheduler: package opsched decides, they act.

func asError(err error) *cohort.Error {
	e, _ := errors.AsType[*cohort.Error](err)
	return e
}

// performLocked does what can be done with the mutex held; perform does the rest, without it.
func (g *Group) performLocked(e opsched.Effect) {
	if e&opsched.Room != 0 && g.mu.room != nil {
		close(g.mu.room)
		g.mu.room = nil
	}
	if e&opsched.Gone != 0 && g.mu.gone != nil {
		close(g.mu.gone)
		g.mu.gone = nil
	}
}

func (g *Group) perform(e opsched.Effect) {
	if e&opsched.WakePump != 0 {
		failpoint.At("group.pump.wake")
		select {
		case g.pumpWake <- struct{}{}:
		default:
		}
	}
	if e&opsched.Watch != 0 {
		g.lineage.family.clock.Watch(&g.watched)
	}
}

// refusedLocked deals with a submission that was not taken: it returns the reason, or nil when it is worth another try. It is
// called with the mutex held and returns so.
func (g *Group) refusedLocked(ctx context.Context, op OpType, no opsched.Refusal) error {
	if no == opsched.Over {
		return g.failedLocked(op)
	}
	if g.mu.room == nil {
		g.mu.room = make(chan struct{})
	}
	room := g.mu.room
	g.mu.Unlock()
	defer g.mu.Lock()
	if g.reapAll(false) {
		return nil
	}
	g.perform(opsched.WakePump) // somebody must run what is submitted
	failpoint.At("group.submit.full")
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		e := cohort.Ended(ctx, "group: "+op.String())
		e.Detail = "the context ended while the operation waited for room: the queue of the group is full"
		return e
	}
}

// post submits a collective, after a check where the PyTorch ranks make one. It takes so many sequence numbers.
func (g *Group) post(ctx context.Context, w *Work, numbers uint32) *Work {
	if g.checks != nil && (!w.steps.given() || w.call.Parts > 0) {
		return g.checked(ctx, w, numbers, nil)
	}
	return g.enqueue(ctx, w, numbers)
}

func (g *Group) enqueue(ctx context.Context, w *Work, numbers uint32) *Work {
	if ctx.Err() != nil {
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	failpoint.At("group.submit")
	g.inTrace(ctx, w)
	w.item.Owner = w
	g.mu.Lock()
	w.submitted.at = g.mu.records.Now()
	number, e, no := g.mu.sched.Submit(&w.item, numbers)
	for no != opsched.Accepted {
		if err := g.refusedLocked(ctx, w.op, no); err != nil {
			g.mu.Unlock()
			return w.complete(err)
		}
		number, e, no = g.mu.sched.Submit(&w.item, numbers)
	}
	w.group, w.seq, w.call.Request.Tag = g, uint64(number), number
	g.mu.torchSeq += g.args.TorchSteps(&w.call, w.steps.given())
	g.limitLocked(w)
	w.call.Request.Timeout = w.submitted.timeout
	r := &w.call.Request
	entry := g.recordLocked(w)
	entry.Reduce, entry.DType, entry.In, entry.Out, entry.Peer = r.Operator(), r.Elements(), int64(len(r.In)), int64(len(r.Out)), r.RootRank()
	g.mu.Unlock()
	g.emit(w)
	g.perform(e)
	return w
}

// skip takes the sequence numbers of an operation that is not run, on a group that works.
func (g *Group) skip(numbers uint32) {
	failpoint.At("group.skip")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.sched.State() == opsched.Open {
		g.mu.sched.Skip(numbers)
		g.mu.torchSeq += uint64(numbers)
	}
}

// limitLocked sets the time limit of an operation, and has somebody look after it.
func (g *Group) limitLocked(w *Work) {
	if w.submitted.timeout <= 0 {
		w.submitted.timeout = g.mu.timeout
	}
	g.watchLocked(w.submitted.deadline())
}

// recordLocked enters an operation into the flight recorder.
func (g *Group) recordLocked(w *Work) *flightrec.Entry {
	e := g.mu.records.Post(w.seq, w.op.p2p())
	e.Op, e.Posted, e.Timeout = opName(w), w.submitted.at, w.submitted.timeout
	w.submitted.record = e.ID
	return e
}

// postMessage hands a point-to-point operation to the mesh.
func (g *Group) postMessage(ctx context.Context, w *Work) *Work {
	if ctx.Err() != nil {
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	failpoint.At("group.post")
	g.inTrace(ctx, w)
	now := time.Now()
	w.item.Owner, w.submitted.at = w, now
	g.mu.Lock()
	number, no := g.mu.sched.Post(&w.item)
	for no != opsched.Accepted {
		if err := g.refusedLocked(ctx, w.op, no); err != nil {
			g.mu.Unlock()
			return w.complete(err)
		}
		number, no = g.mu.sched.Post(&w.item)
	}
	w.group, w.seq = g, number
	g.mu.torchSeq++
	g.limitLocked(w)
	entry := g.recordLocked(w)
	entry.DType, entry.Peer, entry.Tag = w.call.Request.DType.String(), w.message.Peer, uint32(w.message.Slot) //nolint:gosec // at most MaxTag
	if size := int64(len(w.message.Buf)); w.op == OpSend {
		entry.In = size
	} else {
		entry.Out = size
	}
	g.mu.records.Start(w.submitted.record, now)
	w.outcome.begin(now)
	g.mu.Unlock()
	g.emit(w)
	failpoint.At("group.post.mesh")
	w.message.hand(g.mesh, w.op)
	if w.message.Completed() {
		g.reap(w) // a goroutine that waits for Done or a callback, and not in Wait, must be notified
	} else {
		g.lineage.family.clock.Watch(&g.watched)
	}
	return w
}
