// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A monitored barrier takes no step: its ranks send each other messages. A rank that calls a collective in its place takes one, and waits
// there for the others. So a rank that waits in a monitored barrier looks at the next step of the others.

// barrier is the monitored barrier that this rank is in.
type barrier struct {
	in   bool
	tag  uint32
	step uint32 // the one that a collective in its place takes
}

// EnterBarrier takes note that this rank is in a monitored barrier. It is called in the place of a collective: none runs.
func (m *Mesh) EnterBarrier(tag uint32) {
	failpoint.At("shm.barrier.enter")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.barrier = barrier{true, tag, m.engine.steps.last + 1}
}

// LeaveBarrier takes note that it is over.
func (m *Mesh) LeaveBarrier(uint32) {
	failpoint.At("shm.barrier.leave")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.barrier.in = false
}

// compareBarrier ends the group, here and on the other ranks, if another rank has called a collective in the place of the monitored barrier
// that this rank is in. It runs under the lock.
func (m *Mesh) compareBarrier() {
	b := &m.mu.barrier
	if !b.in || m.mu.err != nil || m.mu.closed {
		return
	}
	for _, p := range m.engine.peers {
		if !m.engine.steps.took(p, b.step) {
			continue
		}
		line := m.engine.steps.line(p, b.step)
		if uint32(line.desc.head>>32) == b.tag { // else it has left the barrier already
			m.differs(p, line)
			return
		}
	}
}

func (m *Mesh) differs(p int, line *stepLine) {
	why := cohort.Newf("group: monitored_barrier", cohort.Mismatch,
		"rank %d called %s, rank %d called monitored_barrier(tag %d): all ranks must call the same operations in the same order",
		p, line.desc.words(line.shape), m.Rank(), m.mu.barrier.tag)
	why.Rank = cohort.Rank(p)
	m.end(why)
}
