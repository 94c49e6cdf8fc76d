// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// steps is how far the ranks are. All of them take the same steps. Except for lines and rank, it belongs to the request that runs.
type steps struct {
	rank  int
	lines []*rankSteps // of all ranks, in the segment

	last     uint32 // the one that this rank took last
	awaited  uint32 // the one that it waits for others to take
	all      uint32 // one that all have taken
	compared uint32 // up to here, all were asked to do the same
}

func newSteps(seg *segment, rank, size int) steps {
	s := steps{rank: rank, lines: make([]*rankSteps, size)}
	for r := range s.lines {
		s.lines[r] = seg.steps(r)
	}
	return s
}

// reached reports whether a step is the target or comes after it.
func reached(step, target uint32) bool { return int32(step-target) >= 0 } //nolint:gosec // wrap-around order is the point

// line is what a rank shows at a step.
func (s *steps) line(rank int, step uint32) *stepLine { return s.lines[rank].at(step) }

// take shows everything written so far as this rank's next step.
func (s *steps) take() {
	s.last++
	line := s.line(s.rank, s.last)
	atomic.StoreUint32(&line.step, s.last)
	failpoint.At("shm.steps.wake")
	if atomic.LoadUint32(&line.sleepers) != 0 {
		futexWake(&line.step)
	}
}

// took reports whether a rank has taken a step.
func (s *steps) took(rank int, step uint32) bool {
	return reached(atomic.LoadUint32(&s.line(rank, step).step), step)
}

// differ looks for two ranks that were asked to do different things, in the steps up to last, which all have taken, as far as they were
// not compared before. Every rank is compared with rank 0.
func (s *steps) differ(last uint32) (a, b int, step uint32, found bool) {
	for ; s.compared != last; s.compared++ {
		step = s.compared + 1
		first := &s.line(0, step).desc
		for rank := 1; rank < len(s.lines); rank++ {
			if !first.agrees(&s.line(rank, step).desc) {
				return 0, rank, step, true
			}
		}
		if !first.rooted() {
			continue
		}
		root := int(first.extra & maskRoot)
		for rank := range s.lines {
			if root < len(s.lines) && !s.line(root, step).desc.sameShape(&s.line(rank, step).desc) {
				return root, rank, step, true
			}
		}
	}
	return 0, 0, 0, false
}

// wakeSleepers makes every rank look around that sleeps because it waits for a step.
func (s *steps) wakeSleepers() {
	for _, of := range s.lines {
		for i := range of {
			if l := &of[i]; atomic.LoadUint32(&l.sleepers) != 0 {
				futexWake(&l.step)
			}
		}
	}
}

// Two areas take turns, step by step: what a rank shows with a step is read by the others before they take the next one, and its
// place is free for the one after that. This holds across operations, because all ranks take the same steps.

// nextArea is the area of what is shown with the next step.
func (s *steps) nextArea() int { return int(s.last+1) & 1 }

// lastArea is the area of what was shown with the last step.
func (s *steps) lastArea() int { return int(s.last) & 1 }

// cases are this rank's slots and tables, which it shows in turn.
type cases struct {
	next uint32       // the one of the next operation that needs one
	used [sets]uint32 // with which step each was shown
}

// show notes that the next one is shown with a step.
func (c *cases) show(step uint32) {
	c.used[c.next] = step
	c.next = (c.next + 1) % sets
}

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
	return e.giveUp(cohort.Newf(e.op.name, cohort.Mismatch,
		"rank %d called %s, rank %d called %s: all ranks must call the same operations in the same order",
		a, first.desc.words(first.shape), b, second.desc.words(second.shape)))
}
