// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/util/background"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// promptWait is how soon after its submission an operation is waited for by a program that waits for each.
const promptWait = 50 * time.Microsecond

// wait is Work.Wait for an operation of this group.
func (g *Group) wait(ctx context.Context, w *Work) error {
	if w.op.p2p() {
		return g.waitMessage(ctx, w)
	}
	for first := true; !w.outcome.over.Load(); first = false {
		now := w.submitted.now()
		failpoint.At("group.wait")
		g.mu.Lock()
		if first && g.mu.sched.Eager() {
			g.mu.sched.Learn(now.Sub(w.submitted.at) < promptWait)
		}
		run, e := g.mu.sched.Wait(&w.item, g.canRunLocked(ctx))
		if run {
			next := g.startLocked(now)
			g.mu.Unlock()
			if !g.runNext(ctx, next) && !w.outcome.over.Load() {
				return w.unfinished(ctx) // the operation that was run can be one before it
			}
			continue
		}
		g.mu.Unlock()
		g.park(ctx, w, e)
		if !w.outcome.over.Load() {
			return w.unfinished(ctx)
		}
	}
	return w.outcome.err
}

// park sleeps while another goroutine runs collectives, until the operation is complete or ctx ends.
func (g *Group) park(ctx context.Context, w *Work, e opsched.Effect) {
	g.perform(e)
	failpoint.At("group.wait.parked")
	select {
	case <-w.Done():
	case <-ctx.Done():
	}
	failpoint.At("group.wait.over")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.sched.Leave(&w.item)
}

// canRunLocked reports whether a waiter with this context may run the next operation in its own goroutine: it must be able to
// leave when the context ends.
func (g *Group) canRunLocked(ctx context.Context) bool {
	if ctx.Done() == nil {
		return true
	}
	next := g.mu.sched.Current()
	return g.resumable && (next == nil || next.Owner.steps.list == nil)
}

// startLocked returns the collective that the runner has to run, if there is one, and notes that it runs from now on.
func (g *Group) startLocked(now time.Time) *opsched.Item[Work] {
	next := g.mu.sched.Start()
	if next != nil && next.Owner.outcome.begun.IsZero() { // else it was interrupted, and goes on
		next.Owner.outcome.begun = now
		g.mu.records.Start(next.Owner.submitted.record, now)
	}
	return next
}

// runNext runs the collective that the scheduler has started, if there is one, for a goroutine that is the runner, and
// gives the role back. It reports false when ctx ended before the operation was over.
func (g *Group) runNext(ctx context.Context, it *opsched.Item[Work]) (over bool) {
	if it == nil {
		g.release()
		return true
	}
	w := it.Owner
	failpoint.At("group.run")
	err := g.execute(ctx, w)
	if err != nil && g.leftEarly(ctx, err) {
		if g.pause() {
			return false
		}
		err = g.execute(context.WithoutCancel(ctx), w) // the engine is failing: that ends the operation
	}
	if err == nil && w.call.Finish != nil {
		err = w.call.Finish()
	}
	if err != nil {
		err = g.failed(w, err)
	}
	g.finish(w, err)
	return true
}

// finish ends the collective that has run, and gives the role of the runner back.
func (g *Group) finish(w *Work, err error) {
	if err != nil {
		err = g.explained(w, err)
	} else if !g.args.Peers.None() {
		g.proven.Store(true)
	}
	now := w.submitted.now()
	failpoint.At("group.finish")
	g.mu.Lock()
	e := g.mu.sched.Finish()
	about := g.endLocked(w, now, err) // before another operation can end
	if e |= g.mu.sched.Release(); e != 0 {
		g.performLocked(e)
	}
	g.mu.Unlock()
	if e != 0 {
		g.perform(e)
	}
	if about != nil {
		g.publish(about)
	}
}

// pause leaves the running collective to the next runner. It reports false where there may be none.
func (g *Group) pause() bool {
	failpoint.At("group.pause")
	g.mu.Lock()
	paused, e := g.mu.sched.Pause()
	g.performLocked(e)
	g.mu.Unlock()
	g.perform(e)
	return paused
}

// failed ends the group after an operation that has failed, unless all ranks have found the same reason against it: they are in
// step then.
func (g *Group) failed(w *Work, err error) error {
	if r, ok := errors.AsType[*collective.Refusal](err); ok {
		return r.Reason
	}
	err = g.explain(w, err)
	g.fail(err)
	return err
}

// leftEarly reports whether err only says that the context ended before the operation did. Such an operation goes on later;
// if it had really failed, it says so then.
func (g *Group) leftEarly(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		return false
	}
	var interrupted *collective.Interrupted
	return errors.As(err, &interrupted) || g.resumable && errors.Is(err, ctx.Err())
}

// execute runs the operation itself.
func (g *Group) execute(ctx context.Context, w *Work) error {
	switch {
	case w.steps.list != nil:
		return w.steps.run(g.life.working)
	case !g.resumable:
		ctx = g.life.working
	}
	return g.engine.Run(ctx, &w.call.Request)
}

// explain names the group's own reason where the engine only saw its consequence.
func (g *Group) explain(w *Work, err error) error {
	failpoint.At("group.explain")
	g.mu.Lock()
	failure := g.mu.failure
	g.mu.Unlock()
	if failure != nil {
		return failure
	}
	if asError(err) == nil {
		err = cohort.Wrap("group: "+w.op.String(), cohort.Internal, err)
	}
	return g.formed.Failure.Judge(err)
}

// release gives the role of the runner back.
func (g *Group) release() {
	failpoint.At("group.release")
	g.mu.Lock()
	e := g.mu.sched.Release()
	g.performLocked(e)
	g.mu.Unlock()
	g.perform(e)
}

// pump runs collectives that no goroutine waits for.
func (g *Group) pump() {
	for {
		failpoint.At("group.pump.wait")
		select {
		case <-g.pumpWake:
		case <-g.life.ctx.Done():
			return
		}
		for {
			failpoint.At("group.pump")
			g.mu.Lock()
			if !g.mu.sched.Pump() {
				g.mu.Unlock()
				break
			}
			next := g.startLocked(time.Now())
			g.mu.Unlock()
			g.runNext(g.life.ctx, next)
		}
	}
}

// tick is called by the clock while operations are not over: it runs those that no goroutine waits for.
func (g *Group) tick(now time.Time) background.State {
	failpoint.At("group.tick")
	g.mu.Lock()
	reaped := false
	if len(g.mu.sched.Messages()) > 0 {
		g.mu.Unlock()
		reaped = g.reapAll(false)
		g.mu.Lock()
	}
	next := g.mu.sched.Current()
	e := g.mu.sched.Tick(next != nil && now.Sub(next.Owner.submitted.at) > background.Fast/2)
	state := background.State{
		Pending:    g.mu.sched.Busy(),
		Posted:     uint64(g.mu.sched.Sequence()) + g.mu.sched.MessageSequence(),
		Unattended: reaped || g.mu.sched.Alone(),
	}
	g.mu.Unlock()
	g.perform(e)
	return state
}

// report is what hook and profiler learn of an operation that is over. The Work itself belongs to its owner again by then,
// who may be using it for the next operation.
type report struct {
	event observe.Event
	seen  *Work
}

// explained is the error of an operation with what can be said about it.
func (g *Group) explained(w *Work, err error) error {
	if err != nil {
		err = g.formed.Explain(w.call.Request.DType, w.op.p2p(), err)
	}
	return err
}

// endLocked completes an operation that the scheduler has let go of. Its place is free before another goroutine can see the completion,
// so that a loop that posts and waits never finds it taken.
func (g *Group) endLocked(w *Work, at time.Time, err error) (about *report) {
	g.mu.records.End(w.submitted.record, at, int(w.message.source), err) // a collective has no source
	if g.config.Hook != nil || g.config.profile != nil {
		about = &report{event: g.event(w, observe.End, err), seen: w.copy(at, err)}
		about.event.Time, about.event.Dur = at, w.outcome.took(at)
	}
	w.completeAt(at, err)
	return about
}

// ended is endLocked without the mutex.
func (g *Group) ended(w *Work, err error) *report {
	err = g.explained(w, err)
	now := w.submitted.now()
	failpoint.At("group.ended")
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.endLocked(w, now, err)
}

// publish passes a report on, if there is one. It is called without a lock and without a role: its receivers may close the group.
func (g *Group) publish(about *report) {
	if about == nil {
		return
	}
	g.config.Hook.Emit(about.event)
	if g.config.profile != nil {
		safecall.Call(g.config.Logger, func() { g.config.profile(about.seen) })
	}
}

func (g *Group) event(w *Work, phase observe.Phase, err error) observe.Event {
	e := observe.Event{
		Kind: observe.Kind("group." + opName(w)), Phase: phase, Rank: g.rank, Group: g.name, Seq: w.seq,
		Bytes: int64(max(len(w.call.Request.In), len(w.call.Request.Out), len(w.message.Buf))), Err: err,
	}
	e.SetTrace(w.submitted.trace)
	return e
}
