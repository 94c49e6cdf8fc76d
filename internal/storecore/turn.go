// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "slices"

// The machine counts its work: one unit for each request, each key that it looks up, each wait that it visits, and each
// 64 bytes that it copies. In a turn, which begins with Tick, a connection gets sliceWork of it before others have their
// turn, and requests that cost more than that share heavyWork among all connections. Those whose wait is over are answered
// within the same bounds, however many they are. What is left over goes on in the next turn. So the time between two turns, which is what a ping or a signal has to wait, does not depend on what clients
// ask for.
const (
	sliceWork = 1 << 12
	heavyWork = 1 << 16
	// unitBytes is how many bytes are copied for one unit of work.
	unitBytes = 64
	// answerWork is the work of an answer to one that waited: the driver writes to its socket for that alone.
	answerWork = 32
)

// laterError says that a request has to wait for the next turn.
type laterError struct{}

func (laterError) Error() string { return "in the next turn" }

// Work returns the units of work that were done so far.
func (m *Machine) Work() uint64 { return m.work }

// copied counts the work of copying n bytes.
func (m *Machine) copied(n int) { m.work += uint64(n) / unitBytes } //nolint:gosec // not negative

// mayCopy returns an error when copying n bytes has to wait for the next turn.
func (m *Machine) mayCopy(n int) error {
	units := uint64(n) / unitBytes //nolint:gosec // not negative
	if units <= sliceWork {
		return nil
	}
	if m.heavy != 0 && m.heavy+units > heavyWork {
		return laterError{}
	}
	m.heavy += units
	return nil
}

// yield leaves the rest of what c has sent to the next turn.
func (m *Machine) yield(c *Conn) {
	if !c.yielded {
		c.yielded = true
		m.later = append(m.later, c)
	}
}

// Busy reports whether connections wait for their next turn: the driver must not sleep but call Resume.
func (m *Machine) Busy() bool {
	return len(m.later) > 0 || len(m.ready) > 0 || len(m.listings) > 0 || len(m.news) > 0
}

// Resume lets connections go on whose last turn ended too early for them, in their order, as far as this turn allows.
func (m *Machine) Resume() {
	if len(m.news) > 0 {
		m.spread(m.work + heavyWork)
	}
	m.wakeUntil(m.work + heavyWork)
	if len(m.listings) > 0 {
		m.resumeListings()
	}
	end, done := m.work+heavyWork, 0
	for n := len(m.later); done < n && (done == 0 || m.work < end); done++ {
		c := m.later[done]
		m.later[done] = nil
		if c.closed {
			continue
		}
		c.yielded = false
		m.touch(c) // it may be read from again
		m.Receive(c, nil)
	}
	m.later = slices.Delete(m.later, 0, done)
}
