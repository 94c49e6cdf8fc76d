// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
)

// In a small operation with a root, data flows one way, and a rank does not wait for what it does not need: it may be up to
// window-1 steps ahead of others. What they were asked to do is compared later, when it has to wait for them anyway, and before
// anything of the operation is overwritten.

// needs is for whom a rank waits in step 1.
type needs int

const (
	needAll needs = iota
	needRoot
	needNone
)

// oneWay reports whether an operation is one in which data flows one way, to its root or from it.
func (e *Engine) oneWay(r *collective.Request) (toRoot, small bool) {
	switch r.Kind {
	case collective.Broadcast:
		small = len(r.Out) <= e.seg.slot
	case collective.Scatter:
		small = !r.Uneven && len(r.Out) <= e.seg.slot/e.size
	case collective.Gather:
		toRoot, small = true, !r.Uneven && len(r.In) <= e.seg.slot
	case collective.Reduce:
		toRoot, small = true, len(r.Out) <= e.oneShot
	default:
	}
	return toRoot, small
}

// needs follows from what all ranks know, so that all of them take the same number of steps.
func (e *Engine) needs(r *collective.Request) needs {
	toRoot, small := e.oneWay(r)
	switch root := r.Root == e.rank; {
	case !small || toRoot && root:
		return needAll
	case toRoot || root:
		return needNone
	default:
		return needRoot
	}
}

// room returns when what this rank has shown with a step may be overwritten: all ranks have taken the one after it. If they have
// not, it waits until they have caught up altogether, once for many steps.
func (e *Engine) room(ctx context.Context, step uint32) error {
	if reached(e.steps.all, step+1) {
		return nil
	}
	if err := e.awaitAll(ctx, e.steps.last); err != nil {
		return err
	}
	return e.compare(e.steps.last)
}

// useSet returns the number of a slot and a table for the operation that is about to begin, once they may be written.
func (e *Engine) useSet(ctx context.Context) (uint32, error) {
	if err := e.room(ctx, e.cases.used[e.cases.next]); err != nil {
		return 0, err
	}
	e.op.shown = true
	return e.cases.next, nil
}

// checkLost checks whether a lost rank ends the group, in an operation that waits for no rank.
func (e *Engine) checkLost() error {
	if !e.others.loss.Load() {
		return nil
	}
	e.steps.awaited = e.steps.last
	return e.endIfLost()
}

// didItsPart reports whether a rank has done all that the operation that runs asks of it: in one that flows one way, it has
// taken the step. In others it is still needed, as long as this rank waits.
func (e *Engine) didItsPart(p int) bool {
	if !e.op.waiting || e.op.request == nil || !e.steps.took(p, e.op.first) {
		return false
	}
	_, small := e.oneWay(e.op.request)
	return small
}

// compare checks that all ranks were asked to do the same in all steps up to last, which all have taken.
func (e *Engine) compare(last uint32) error {
	if a, b, step, found := e.steps.differ(last); found {
		return e.mismatch(a, b, step)
	}
	return nil
}

// pair checks that this rank and the root were asked to do the same.
func (e *Engine) pair(root int, step uint32) error {
	own, other := &e.steps.line(e.rank, step).desc, &e.steps.line(root, step).desc
	if !other.agrees(own) || !other.sameShape(own) {
		return e.mismatch(min(root, e.rank), max(root, e.rank), step)
	}
	return nil
}

// mismatch names what two ranks were asked to do, here and to the others, which may not have compared yet.
func (e *Engine) mismatch(a, b int, step uint32) error {
	first, second := e.steps.line(a, step), e.steps.line(b, step)
	return e.giveUp(cohort.Newf(e.op.name, cohort.Mismatch, "rank %d called %s, rank %d called %s: all ranks must call the same operations in the same order",
		a, first.desc.words(first.shape), b, second.desc.words(second.shape)))
}
