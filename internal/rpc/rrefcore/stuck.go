// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "time"

// A worker that leaves waits until its children are accepted. Some of them will never be: a PyTorch worker opens one pipe to us in its
// life, so nothing comes from it once that has ended; and a message to it that was lost cannot be withdrawn. Such children are
// stuck, and are not waited for.

// stuckAfter is how long a child whose message was lost may take to be accepted all the same.
const stuckAfter = 5 * time.Second

// doubt notes that a message with a reference may not have arrived at a PyTorch worker.
func (m *Machine) doubt(w Wire) {
	if h := m.pins[w.Fork]; h != nil {
		if h.doubtful == nil {
			h.doubtful = map[ID]Time{}
		}
		h.doubtful[w.Fork] = m.now
	}
}

// stuck calls fn with the children that nothing will come for. deaf tells from which workers nothing comes any more; only PyTorch
// workers are asked about.
func (m *Machine) stuck(deaf func(Worker) bool, fn func(h *handle, child ID)) {
	silent := map[Worker]bool{}
	for id, p := range m.peers {
		silent[id] = p.kind == PyTorch && deaf(id)
	}
	for _, fork := range sortedKeys(m.handles) {
		h := m.handles[fork]
		if h == nil {
			continue // it has ended with another one
		}
		for child, to := range h.children {
			if since, doubtful := h.doubtful[child]; silent[to.worker] || doubtful && m.now-since >= stuckAfter {
				fn(h, child)
			}
		}
	}
}

// Stuck counts them.
func (m *Machine) Stuck(deaf func(Worker) bool) (n int) {
	m.stuck(deaf, func(*handle, ID) { n++ })
	return n
}

// UnpinStuck unpins their parents. The children may be unknown to their owners, so it is for a worker that leaves.
func (m *Machine) UnpinStuck(deaf func(Worker) bool) {
	m.stuck(deaf, func(h *handle, child ID) {
		m.unpin(h, child)
		m.settle(h)
	})
}
