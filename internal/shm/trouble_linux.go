// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/moment"
)

// trouble looks for a reason to stop waiting for the current step: another rank gave up, a rank is gone or stands still, the
// caller's time is over.
func (e *Engine) trouble(ctx context.Context, now time.Time) error {
	if err := e.aborted(); err != nil {
		return err
	}
	if e.closing.Load() {
		return e.giveUp(dist.New(e.opName, dist.Closed, "the engine was closed during the operation"))
	}
	if err := e.bereft(); err != nil {
		return err
	}
	if !e.deadline.IsZero() && !now.Before(e.deadline) {
		return e.giveUp(e.withMissing(dist.New(e.opName, dist.DeadlineExceeded, "the operation's timeout passed")))
	}
	if ctx.Err() != nil {
		return &coll.Interrupted{Cause: e.withMissing(dist.Ended(ctx, e.opName))}
	}
	return nil
}

// bereft gives the group up because of a rank that is gone. One that gave up itself has said why before it went: then that is the reason.
func (e *Engine) bereft() error {
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
func (e *Engine) withMissing(err *dist.Error) *dist.Error {
	var missing []int
	awaited := e.peers
	if r := e.op.request; e.op.waiting && r != nil && e.needs(r) == needRoot {
		awaited = []int{r.Root}
	}
	for _, p := range awaited {
		if !e.took(p, e.target) {
			missing = append(missing, p)
		}
	}
	if err.Detail == "" && err.Err != nil {
		err.Detail = err.Err.Error()
	}
	err.Detail += fmt.Sprintf(" (waiting for ranks %v)", missing)
	return err
}

// giveUp fails the engine and tells the other ranks why. It returns err.
func (e *Engine) giveUp(err *dist.Error) error {
	if e.failure == nil {
		e.failure = err
	}
	moment.At("shm.tell")
	e.tellAll(err)
	return err
}

// tellAll leaves the reason why the group ended for all ranks, unless there is one already, and wakes them.
func (e *Engine) tellAll(err *dist.Error) {
	a := &e.seg.header().abort
	if atomic.CompareAndSwapUint32(&a.state, 0, 1) {
		rank := int32(e.rank) //nolint:gosec // bounded by MaxRanks
		text := err.Error()
		if err.Code == dist.PeerLost && err.Rank >= 0 || err.Code == dist.Mismatch { // found out, not caused, by this rank
			rank, text = int32(err.Rank), cmp.Or(err.Detail, text) //nolint:gosec // bounded by MaxRanks
		}
		a.code, a.rank, a.size = uint32(err.Code), rank, uint32(copy(a.text[:], text)) //nolint:gosec // bounded by the room
		atomic.StoreUint32(&a.state, 2)
	}
	e.wakeAll()
}

// wakeAll makes every sleeping rank look around, whether it waits for a step or for messages.
func (e *Engine) wakeAll() {
	e.wakeSleepers()
	for r := range e.lines {
		futexWake(&e.seg.bell(r).rings)
	}
}

// wakeSleepers makes every rank look around that sleeps because it waits for a step.
func (e *Engine) wakeSleepers() {
	for _, steps := range e.lines {
		for i := range steps {
			if l := &steps[i]; atomic.LoadUint32(&l.sleepers) != 0 {
				futexWake(&l.step)
			}
		}
	}
}

// aborted returns the error of a group that another rank has given up.
func (e *Engine) aborted() error {
	if err := e.failed.Load(); err != nil {
		e.tellAll(reasonOf(*err)) // Fail may not have come to it; see fence
		e.failure = *err
		return *err
	}
	err := e.told(e.opName)
	if err == nil {
		return nil
	}
	if e.failure == nil {
		e.failure = err
	}
	return err
}

// told returns what another rank has said about why it gave the group up. It changes nothing, so messages may ask too.
func (e *Engine) told(op string) error {
	a := &e.seg.header().abort
	if atomic.LoadUint32(&a.state) != 2 {
		return nil
	}
	text := string(a.text[:min(a.size, abortTextRoom)])
	err := &dist.Error{Op: op, Code: dist.Code(a.code), Rank: dist.Rank(a.rank), Detail: "it gave up: " + text} //nolint:gosec // written from a code
	switch err.Code {
	case dist.PeerLost, dist.Mismatch:
		err.Detail = text
	case dist.Closed:
		err.Code, err.Detail = dist.PeerLost, "it closed the group during an operation"
	case dist.DeadlineExceeded: // whose time is over has waited for another rank
		err.Rank, err.Detail = dist.NoRank, fmt.Sprintf("rank %d gave up: %s", a.rank, text)
	case dist.Unknown, dist.Canceled: // nobody here was cancelled
		err.Code = dist.Aborted
	default:
	}
	return err
}
