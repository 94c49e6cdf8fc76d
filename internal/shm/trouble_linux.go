// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
)

// trouble looks for a reason to stop waiting for the current step: another rank gave up, a rank that has not taken the
// step is gone or stands still, the caller's time is over.
func (e *Engine) trouble(ctx context.Context, now time.Time) error {
	if err := e.aborted(); err != nil {
		return err
	}
	if e.closing.Load() {
		return e.giveUp(dist.New(e.opName, dist.Closed, "the engine was closed during the operation"))
	}
	for _, p := range e.peers {
		if reached(atomic.LoadUint32(&e.lines[p].step), e.step) {
			e.wait.pulses[p] = pulse{}
			continue
		}
		if err := e.lost(e.opName, p, now, &e.wait.pulses[p]); err != nil && !reached(atomic.LoadUint32(&e.lines[p].step), e.step) {
			return e.giveUp(err)
		}
	}
	if !e.deadline.IsZero() && !now.Before(e.deadline) {
		return e.giveUp(e.withMissing(dist.New(e.opName, dist.DeadlineExceeded, "the operation's timeout passed")))
	}
	if ctx.Err() != nil {
		return &coll.Interrupted{Cause: e.withMissing(dist.Ended(e.opName, ctx))}
	}
	return nil
}

// withMissing adds which ranks the operation waits for.
func (e *Engine) withMissing(err *dist.Error) *dist.Error {
	var missing []int
	for _, p := range e.peers {
		if !reached(atomic.LoadUint32(&e.lines[p].step), e.step) {
			missing = append(missing, p)
		}
	}
	if err.Detail == "" && err.Err != nil {
		err.Detail = err.Err.Error()
	}
	err.Detail += fmt.Sprintf(" (waiting for ranks %v)", missing)
	return err
}

// lost reports why rank p will not come, or nil.
func (e *Engine) lost(op string, p int, now time.Time, seen *pulse) *dist.Error {
	problem := func(text string) *dist.Error {
		return &dist.Error{
			Op: op, Code: dist.PeerLost, Rank: dist.Rank(p), Detail: text,
			Peer: fmt.Sprintf("pid %d", e.seg.life(p).pid),
		}
	}
	switch e.gone[p].Load() {
	case goneDied:
		return problem("its process ended")
	case goneLeft:
		return problem("it closed the group")
	}
	limit := e.config.HeartbeatLimit
	if limit < 0 {
		return nil
	}
	beats := atomic.LoadUint64(&e.seg.life(p).beats)
	if beats != seen.beats || seen.checked.IsZero() {
		seen.beats, seen.still = beats, 0
	} else {
		// If this process was stopped too, the time it slept proves nothing about the other.
		seen.still += min(now.Sub(seen.checked), 2*sleepSlice)
	}
	seen.checked = now
	if seen.still > limit {
		return problem(fmt.Sprintf("it has stood still for %v (stopped or starved): no heartbeat", limit))
	}
	return nil
}

// giveUp fails the engine and tells the other ranks why. It returns err.
func (e *Engine) giveUp(err *dist.Error) error {
	if e.failure == nil {
		e.failure = err
	}
	e.tellAll(err)
	return err
}

// tellAll leaves the reason why the group ended for all ranks, unless there is one already, and wakes them.
func (e *Engine) tellAll(err *dist.Error) {
	a := &e.seg.header().abort
	if atomic.CompareAndSwapUint32(&a.state, 0, 1) {
		rank := int32(e.rank) //nolint:gosec // bounded by MaxRanks
		text := err.Error()
		if err.Code == dist.PeerLost && err.Rank >= 0 {
			rank, text = int32(err.Rank), err.Detail //nolint:gosec // bounded by MaxRanks
		}
		a.code, a.rank, a.size = uint32(err.Code), rank, uint32(copy(a.text[:], text)) //nolint:gosec // bounded by the room
		atomic.StoreUint32(&a.state, 2)
	}
	e.wakeAll()
}

// wakeAll makes every sleeping rank look around, whether it waits for a step or for messages.
func (e *Engine) wakeAll() {
	for r, l := range e.lines {
		futexWake(&l.step)
		futexWake(&e.seg.bell(r).rings)
	}
}

// aborted returns the error of a group that another rank has given up.
func (e *Engine) aborted() error {
	if err := e.failed.Load(); err != nil {
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
	case dist.PeerLost:
		err.Detail = text
	case dist.Closed:
		err.Code, err.Detail = dist.PeerLost, "it closed the group during an operation"
	case dist.Unknown, dist.Canceled: // nobody here was cancelled
		err.Code = dist.Aborted
	default:
	}
	return err
}
