// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"time"
)

// The machine counts its work: one unit for each request, each key that it looks up, each wait that it visits, and each
// 64 bytes that it copies. In a turn, which begins with Tick, a connection gets sliceWork of it before others have
// their turn, and requests that cost more than that share heavyWork among all connections. Those whose wait is over are
// answered within the same bounds, however many they are. What is left over goes on in the next turn. So the time
// between two turns, which is what a ping or a signal has to wait, does not depend on what clients ask for, but for one
// thing: a request is one step. It may be as large as a request, and takes the whole turn. Those who watch the keys
// that it changes are notified of that in as many turns as it takes.
const (
	sliceWork = 1 << 12
	heavyWork = 1 << 16
	// unitBytes is how many bytes are copied for one unit of work.
	unitBytes = 64
	// answerWork is the work of an answer to one that waited: the driver writes to its socket for that alone.
	answerWork = 32
)

// turn is the work that is done, and who has to go on in the next turn.
type turn struct {
	work      uint64  // units ever done
	heavy     uint64  // those of large requests in this turn
	stats     []byte  // what was answered to STATS in this turn
	later     []*Conn // those whose turn was over before their requests were
	admit     bool    // some of those who wait for room were left to the next turn
	passed    bool    // a request that was put off before was done in this turn
	passes    bool    // the present request was put off before and is the first such one of this turn
	notifyEnd uint64  // how much work may be done when the present request notifies no more watchers
}

// laterError says that a request has to wait for the next turn.
type laterError struct{}

func (laterError) Error() string { return "in the next turn" }

// Work returns the units of work that were done so far.
func (m *Machine) Work() uint64 { return m.turn.work }

// copied counts the work of copying n bytes.
func (t *turn) copied(n int) { t.work += uint64(n) / unitBytes } //nolint:gosec // not negative

// mayCopy returns an error when copying n bytes has to wait for the next turn. In each turn one request that had to wait is done whatever
// was done before it: other clients may have their large requests done at the beginning of every turn.
func (t *turn) mayCopy(n int) error {
	units := uint64(n) / unitBytes //nolint:gosec // not negative
	if units <= sliceWork {
		return nil
	}
	if t.heavy != 0 && t.heavy+units > heavyWork && !t.passes {
		return laterError{}
	}
	t.heavy += units
	return nil
}

// yield leaves the rest of what c has sent to the next turn.
func (t *turn) yield(c *Conn) {
	if !c.yielded {
		c.yielded = true
		t.later = append(t.later, c)
	}
}

// Busy reports whether connections wait for their next turn: the driver must not sleep but call Resume.
func (m *Machine) Busy() bool {
	return len(m.turn.later) > 0 || m.turn.admit || len(m.waits.ready) > 0 || len(m.listings) > 0 || len(m.waits.pending) > 0 ||
		len(m.keyChanges) > 0 || m.log != nil && m.mayGoOn()
}

// Resume lets connections go on whose last turn ended too early for them, in their order, as far as this turn allows.
func (m *Machine) Resume() {
	m.turn.admit = false // Admit follows
	m.notifyUntil(m.turn.work + heavyWork)
	if m.log != nil {
		m.applyUntil(m.turn.work + heavyWork)
	}
	if len(m.waits.pending) > 0 {
		m.notifyWaits(m.turn.work + heavyWork)
	}
	m.wakeUntil(m.turn.work + heavyWork)
	if len(m.listings) > 0 {
		m.resumeListings()
	}
	end, done := m.turn.work+heavyWork, 0
	for n := len(m.turn.later); done < n && (done == 0 || m.turn.work < end); done++ {
		c := m.turn.later[done]
		m.turn.later[done] = nil
		if c.closed {
			continue
		}
		c.yielded = false
		m.conns.touch(c) // it may be read from again
		m.Receive(c, nil)
		if !c.yielded {
			c.logged.cleared = false
		}
	}
	m.turn.later = slices.Delete(m.turn.later, 0, done)
}

// maxTick is how often a driver looks at the machine, at least, while clients wait for room.
const maxTick = int64(100 * time.Millisecond)

// clock is the time, in nanoseconds.
type clock struct {
	now     int64 // as given to Tick
	counted int64 // time as far as it counts for clients that are slow
}
