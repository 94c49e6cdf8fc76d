// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// failure is why the group ended. Except for failed, it belongs to the request that runs.
type failure struct {
	failed   atomic.Pointer[error] // the argument of Fail
	err      error
	reported bool // an operation has returned err
}

// note keeps the first reason.
func (f *failure) note(err error) {
	if f.err == nil {
		f.err = err
	}
}

// before is the error of an operation that begins after the group failed. The operation that found the failure may have
// ended well all the same: then this is the one that reports it.
func (f *failure) before(op string) error {
	if f.reported {
		return cohort.Newf(op, cohort.Aborted, "the group failed before: %w", f.err)
	}
	f.reported = true
	return f.err
}

// Fail ends the operation that runs, and every later one, with err, here and on the other ranks.
func (e *Engine) Fail(err error) {
	if err == nil || !e.failure.failed.CompareAndSwap(nil, &err) {
		return
	}
	failpoint.At("shm.fail")
	e.mesh.mu.Lock()
	e.mesh.fail(err)
	e.mesh.mu.Unlock()
	e.arena.whileMapped(func() { e.notifyAll(reasonOf(err)) })
}

// reasonOf is an error in the form in which the other ranks get it.
func reasonOf(err error) *cohort.Error {
	if e, ok := errors.AsType[*cohort.Error](err); ok {
		return e
	}
	return cohort.Wrap("shm: fail", cohort.Aborted, err)
}

// giveUp fails the engine and sends the other ranks the reason. It returns err.
func (e *Engine) giveUp(err *cohort.Error) error {
	e.failure.note(err)
	failpoint.At("shm.notify")
	e.notifyAll(err)
	return err
}

// notifyAll leaves the reason why the group ended for all ranks, unless there is one already, and wakes them.
func (e *Engine) notifyAll(err *cohort.Error) {
	a := &e.seg.header().abort
	if atomic.CompareAndSwapUint32(&a.state, 0, 1) {
		rank := int32(e.rank) //nolint:gosec // bounded by MaxRanks
		text := err.Error()
		if err.Code == cohort.PeerLost && err.Rank >= 0 || err.Code == cohort.Mismatch { // found out, not caused, by this rank
			rank, text = int32(err.Rank), cmp.Or(err.Detail, text) //nolint:gosec // bounded by MaxRanks
		}
		a.code, a.rank, a.size = uint32(err.Code), rank, uint32(copy(a.text[:], text)) //nolint:gosec // bounded by the room
		atomic.StoreUint32(&a.state, 2)
	}
	e.wakeAll()
}

// wakeAll wakes every sleeping rank, whether it waits for a step or for messages.
func (e *Engine) wakeAll() {
	e.steps.wakeSleepers()
	for r := range e.steps.lines {
		futexWake(&e.seg.bell(r).rings)
	}
}

// aborted returns the error of a group that another rank has abandoned.
func (e *Engine) aborted() error {
	if err := e.failure.failed.Load(); err != nil {
		e.notifyAll(reasonOf(*err)) // Fail may not have got that far; see fence
		e.failure.err = *err
		return *err
	}
	err := e.abortReason(e.op.name)
	if err == nil {
		return nil
	}
	e.failure.note(err)
	return err
}

// abortReason returns the error of a rank that has abandoned the group. It changes nothing, so messages may call it too.
func (e *Engine) abortReason(op string) error {
	a := &e.seg.header().abort
	if atomic.LoadUint32(&a.state) != 2 {
		return nil
	}
	text := string(a.text[:min(a.size, abortTextRoom)])
	//nolint:gosec // written from a code
	err := &cohort.Error{Op: op, Code: cohort.Code(a.code), Rank: cohort.Rank(a.rank), Detail: "it gave up: " + text}
	switch err.Code {
	case cohort.PeerLost, cohort.Mismatch:
		err.Detail = text
	case cohort.Closed:
		err.Code, err.Detail = cohort.PeerLost, "it closed the group during an operation"
	case cohort.DeadlineExceeded: // a rank that timed out has waited for another rank
		err.Rank, err.Detail = cohort.NoRank, fmt.Sprintf("rank %d gave up: %s", a.rank, text)
	case cohort.Unknown, cohort.Canceled: // no operation was cancelled here
		err.Code = cohort.Aborted
	default:
	}
	return err
}

// reasonToStop returns a reason to stop waiting for the current step: another rank gave up, a rank is lost or stalled, the
// caller's deadline has passed.
func (e *Engine) reasonToStop(ctx context.Context, now time.Time) error {
	if err := e.aborted(); err != nil {
		return err
	}
	if e.life.closing.Load() {
		return e.giveUp(cohort.New(e.op.name, cohort.Closed, "the engine was closed during the operation"))
	}
	if err := e.endIfLost(); err != nil {
		return err
	}
	if !e.op.deadline.IsZero() && !now.Before(e.op.deadline) {
		return e.giveUp(e.withMissing(cohort.New(e.op.name, cohort.DeadlineExceeded, "the operation's timeout passed")))
	}
	if ctx.Err() != nil {
		return &collective.Interrupted{Cause: e.withMissing(cohort.Ended(ctx, e.op.name))}
	}
	return nil
}

// endIfLost abandons the group because of a lost rank. A rank that gave up itself has sent its reason before it closed:
// then that is the reason.
func (e *Engine) endIfLost() error {
	lost := e.whoIsLost()
	if lost == nil {
		return nil
	}
	if err := e.aborted(); err != nil {
		return err
	}
	return e.giveUp(lost)
}

// withMissing adds which ranks the operation waits for.
func (e *Engine) withMissing(err *cohort.Error) *cohort.Error {
	var missing []int
	awaited := e.peers
	if r := e.op.request; e.op.waiting && r != nil && e.needs(r) == needRoot {
		awaited = []int{r.Root}
	}
	for _, p := range awaited {
		if !e.steps.took(p, e.steps.awaited) {
			missing = append(missing, p)
		}
	}
	if err.Detail == "" && err.Err != nil {
		err.Detail = err.Err.Error()
	}
	err.Detail += fmt.Sprintf(" (waiting for ranks %v)", missing)
	return err
}
