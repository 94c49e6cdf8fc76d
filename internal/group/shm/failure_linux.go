// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// failure is why the group ended. Except for told, it belongs to the request that runs.
type failure struct {
	told     atomic.Pointer[error] // what Fail was told
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
	if err == nil || !e.failure.told.CompareAndSwap(nil, &err) {
		return
	}
	failpoint.At("shm.fail")
	e.mesh.mu.Lock()
	e.mesh.fail(err)
	e.mesh.mu.Unlock()
	e.arena.whileMapped(func() { e.tellAll(reasonOf(err)) })
}

// reasonOf is an error as the other ranks are told of it.
func reasonOf(err error) *cohort.Error {
	if e, ok := errors.AsType[*cohort.Error](err); ok {
		return e
	}
	return cohort.Wrap("shm: fail", cohort.Aborted, err)
}

// giveUp fails the engine and tells the other ranks why. It returns err.
func (e *Engine) giveUp(err *cohort.Error) error {
	e.failure.note(err)
	failpoint.At("shm.tell")
	e.tellAll(err)
	return err
}

// tellAll leaves the reason why the group ended for all ranks, unless there is one already, and wakes them.
func (e *Engine) tellAll(err *cohort.Error) {
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

// wakeAll makes every sleeping rank look around, whether it waits for a step or for messages.
func (e *Engine) wakeAll() {
	e.steps.wakeSleepers()
	for r := range e.steps.lines {
		futexWake(&e.seg.bell(r).rings)
	}
}

// aborted returns the error of a group that another rank has given up.
func (e *Engine) aborted() error {
	if err := e.failure.told.Load(); err != nil {
		e.tellAll(reasonOf(*err)) // Fail may not have come to it; see fence
		e.failure.err = *err
		return *err
	}
	err := e.told(e.op.name)
	if err == nil {
		return nil
	}
	e.failure.note(err)
	return err
}

// told returns what another rank has said about why it gave the group up. It changes nothing, so messages may ask too.
func (e *Engine) told(op string) error {
	a := &e.seg.header().abort
	if atomic.LoadUint32(&a.state) != 2 {
		return nil
	}
	text := string(a.text[:min(a.size, abortTextRoom)])
	err := &cohort.Error{Op: op, Code: cohort.Code(a.code), Rank: cohort.Rank(a.rank), Detail: "it gave up: " + text} //nolint:gosec // written from a code
	switch err.Code {
	case cohort.PeerLost, cohort.Mismatch:
		err.Detail = text
	case cohort.Closed:
		err.Code, err.Detail = cohort.PeerLost, "it closed the group during an operation"
	case cohort.DeadlineExceeded: // whose time is over has waited for another rank
		err.Rank, err.Detail = cohort.NoRank, fmt.Sprintf("rank %d gave up: %s", a.rank, text)
	case cohort.Unknown, cohort.Canceled: // nobody here was cancelled
		err.Code = cohort.Aborted
	default:
	}
	return err
}
