// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"sync/atomic"

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
