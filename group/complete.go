// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// report is what hook and profiler hear of an operation that is over. The Work itself belongs to its owner again by then,
// who may be using it for the next operation.
type report struct {
	event observe.Event
	seen  *Work
}

// end is when and how an operation has ended.
type end struct {
	at  time.Time
	err error
}

// endOf is the end of an operation, now, with what can be said about its error.
func (g *Group) endOf(w *Work, err error) end {
	if err != nil {
		err = g.formed.Explain(w.call.Request.DType, w.op.p2p(), err)
	} else if !w.op.p2p() && !g.args.Peers.None() {
		g.proven.Store(true)
	}
	return end{w.submitted.now(), err}
}

// endLocked completes an operation that the scheduler has let go of. Its place is free before anybody can see the completion,
// so that a loop that posts and waits never finds it taken.
func (g *Group) endLocked(w *Work, e end) (about *report) {
	g.mu.records.End(w.submitted.record, e.at, int(w.message.source), e.err) // a collective has no source
	if g.config.Hook != nil || g.config.profile != nil {
		about = &report{event: g.event(w, observe.End, e.err), seen: w.copy(e.at, e.err)}
		about.event.Time, about.event.Dur = e.at, w.outcome.took(e.at)
	}
	w.completeAt(e.at, e.err)
	return about
}

// ended is endLocked without the mutex.
func (g *Group) ended(w *Work, err error) *report {
	e := g.endOf(w, err)
	failpoint.At("group.ended")
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.endLocked(w, e)
}

// tell passes a report on. It is called without a lock and without a role: those who hear of it may close the group.
func (g *Group) tell(about *report) {
	if about == nil {
		return
	}
	g.config.Hook.Emit(about.event)
	if g.config.profile != nil {
		safecall.Call(g.config.Logger, func() { g.config.profile(about.seen) })
	}
}

// inTrace notes which trace an operation is part of, before it is posted: it may be over when its first event is made.
func (g *Group) inTrace(ctx context.Context, w *Work) {
	if g.config.Hook != nil {
		w.submitted.trace = observe.Trace(ctx)
	}
}

// emit tells the hook that an operation was posted.
func (g *Group) emit(w *Work) {
	if g.config.Hook != nil {
		g.config.Hook.Emit(g.event(w, observe.Begin, nil))
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
