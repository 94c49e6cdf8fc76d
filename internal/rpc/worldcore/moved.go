// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import "time"

const (
	// pollMoved is how often a rank that waits for PyTorch ranks looks whether they have gone on; with many ranks each of them
	// looks less often, so that there is one look in moveShare.
	pollMoved, moveShare = time.Second, 10 * time.Millisecond
)

// Moved looks whether a PyTorch rank has begun to start in a later round, while a Go rank waits for it in this one. What it had left here
// may be of a start that has failed: it counts its starts, and never comes back. Nothing in the store tells that before it tries again,
// and it may still be waiting; so the Go rank waits, and looks. The machine ends with [ErrRestart] when the PyTorch rank has gone on.
type Moved struct {
	course
	me    Self
	torch int
}

// NewMoved returns the machine for a PyTorch rank that has begun to start in a round.
func NewMoved(me Self, round, torch int) *Moved {
	m := &Moved{me: me, torch: torch}
	m.round = round
	m.begin(func() {
		if me.Round >= 0 {
			m.end(nil)
			return
		}
		m.look()
	})
	return m
}

func (m *Moved) look() {
	m.pause(max(pollMoved, time.Duration(m.me.Size)*moveShare), func() {
		m.hint(func(latest int) {
			later(m.must, m.me, max(m.round+1, latest), nextRounds, m.torch, func(next int) {
				if next >= 0 {
					m.end(ErrRestart)
					return
				}
				m.look()
			})
		})
	})
}
