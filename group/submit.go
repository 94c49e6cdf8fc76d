// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// The files submit.go and drive.go are the driver of the group's scheduler: package opsched decides, they act.

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
	g.perform(opsched.WakePump) // a goroutine must run what is submitted
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
	if g.checks != nil && !w.submitted.checked && (w.steps.list == nil || w.call.Parts > 0) {
		return g.checked(ctx, w, numbers, nil)
	}
	if ctx.Err() != nil {
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	failpoint.At("group.submit")
	if g.config.Hook != nil { // its first event is made when it may be over
		w.submitted.trace = observe.Trace(ctx)
	}
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
	if g.checks != nil {
		g.mu.torchSeq += g.args.TorchSteps(&w.call, w.steps.list != nil)
	}
	entry, r := g.recordLocked(w), &w.call.Request
	r.Timeout = w.submitted.timeout
	entry.Reduce, entry.DType, entry.Peer = r.Describe()
	entry.In, entry.Out = int64(len(r.In)), int64(len(r.Out))
	g.mu.Unlock()
	if g.config.Hook != nil {
		g.config.Hook.Emit(g.event(w, observe.Begin, nil))
	}
	if w.submitted.awaited && g.checks == nil {
		e &^= opsched.Watch // the caller runs it at once, if no other goroutine does
	}
	if e != 0 {
		g.perform(e)
	}
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

// recordLocked enters an operation with its time limit into the flight recorder, and has the timer watch the limit.
func (g *Group) recordLocked(w *Work) *flightrec.Entry {
	if w.submitted.timeout <= 0 {
		w.submitted.timeout = g.mu.timeout
	}
	if at := w.submitted.at.Add(w.submitted.timeout); g.mu.timerAt.IsZero() || at.Before(g.mu.timerAt) {
		g.watchLocked(at)
	}
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
	if g.config.Hook != nil {
		w.submitted.trace = observe.Trace(ctx)
	}
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
	entry := g.recordLocked(w)
	//nolint:gosec // at most MaxTag
	entry.DType, entry.Peer, entry.Tag = w.call.Request.DType.String(), w.message.Peer, uint32(w.message.Slot)
	if size := int64(len(w.message.Buf)); w.op == OpSend {
		entry.In = size
	} else {
		entry.Out = size
	}
	g.mu.records.Start(w.submitted.record, now)
	w.outcome.begun = now
	g.mu.Unlock()
	if g.config.Hook != nil {
		g.config.Hook.Emit(g.event(w, observe.Begin, nil))
	}
	failpoint.At("group.post.mesh")
	w.message.hand(g.mesh, w.op)
	if w.message.Completed() {
		g.reap(w) // a goroutine that waits for Done or a callback, and not in Wait, must be notified
	} else {
		g.lineage.family.clock.Watch(&g.watched)
	}
	return w
}

// checked compares an operation with what the other ranks are going to run, and posts it, unless this rank refuses it. A difference takes
// no sequence number and leaves the group as it was, on all ranks; any other failure of the check fails the group.
func (g *Group) checked(ctx context.Context, w *Work, tags uint32, refused *collective.Refusal) *Work {
	if err := ctx.Err(); err != nil {
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	failpoint.At("group.check.turn")
	select {
	case g.checks.turn <- struct{}{}:
	case <-ctx.Done():
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	defer func() { <-g.checks.turn }()
	failpoint.At("group.check")
	g.mu.Lock()
	err := g.failedLocked(w.op)
	limit := w.submitted.timeout
	if limit <= 0 {
		limit = g.mu.timeout
	}
	fingerprint := gloo.Fingerprint{Op: uint8(w.op), Sequence: g.mu.torchSeq}
	g.mu.Unlock()
	if err != nil {
		return w.complete(err)
	}
	pairs := g.args.Peers.PairsComplex(torchcaps.Op(w.op))
	for _, t := range w.call.Subject {
		if t != nil {
			fingerprint.Add(t.DType(), t.Shape(), pairs)
		}
	}
	if s := w.call.Sparse; s != nil {
		fingerprint.Add(s.Values.DType(), s.Shape, pairs)
	}
	if err := g.checks.wrapper.Check(ctx, &fingerprint, limit); err != nil {
		if !errors.Is(err, cohort.Mismatch) {
			g.fail(err)
			failpoint.At("group.check.failed")
			g.mu.Lock()
			err = g.mu.failure
			g.mu.Unlock()
		}
		return w.complete(err)
	}
	if refused != nil {
		g.skip(tags)
		return w.complete(refused.Reason)
	}
	w.submitted.checked = true
	w = g.post(ctx, w, tags)
	if w.outcome.over.Load() && w.outcome.err != nil {
		g.fail(w.outcome.err) // it was announced and is not there: the ranks are out of step
	}
	return w
}

// refuse ends a collective that is not run. Where PyTorch's ranks refuse it too, this rank takes the sequence
// number that they take for it, and takes part in the check that they make before: all stay in step. Where they perform it,
// the group ends at once, with the reason, instead of having them wait for their timeout.
func (g *Group) refuse(ctx context.Context, w *Work, err error) *Work {
	r, ok := errors.AsType[*collective.Refusal](err)
	if !ok {
		return w.complete(err)
	}
	w.call.Subject, w.call.Sparse = r.Subject, r.Sparse
	switch r.Where {
	case torchcaps.Nowhere:
		end := *r.Reason
		end.Rank = g.rank
		end.Detail = "rank " + g.rank.String() + " cannot take part in what the PyTorch ranks perform, so the group ends: " + end.Detail
		g.fail(&end)
		w.complete(&end)
	case torchcaps.AtTheWait, torchcaps.AtTheCall, torchcaps.BeforeValues, torchcaps.BeforeSum:
		if g.checks != nil {
			return g.checked(ctx, w, r.Numbers(), r)
		}
		g.skip(r.Numbers())
		w.complete(r.Reason)
	case torchcaps.InPython:
		w.complete(r.Reason)
	}
	return w
}

// checks is the part of a group with PyTorch ranks that run with TORCH_DISTRIBUTED_DEBUG=DETAIL.
type checks struct {
	wrapper *gloo.Wrapper
	turn    chan struct{} // held by the operation that is being checked and posted
}
