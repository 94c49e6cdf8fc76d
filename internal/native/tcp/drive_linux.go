// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
)

// Wait returns when op is complete. The caller drives the mesh meanwhile, or sleeps while another goroutine does.
func (m *Mesh) Wait(ctx context.Context, op *link.Op) error {
	for {
		if op.Completed() {
			return op.State.Err
		}
		m.mu.Lock()
		if op.Completed() {
			m.mu.Unlock()
			return op.State.Err
		}
		if !m.driving && !m.closed {
			if ctx.Err() != nil {
				m.mu.Unlock()
				return dist.FromContext("group: wait", ctx)
			}
			m.driving = true
			m.watch.relieve(m.ep)
			m.mu.Unlock()
			err := m.drive(ctx, op)
			m.release()
			if err != nil {
				return err
			}
			continue
		}
		m.sleepers = append(m.sleepers, op)
		m.mu.Unlock()
		select {
		case <-op.State.Done:
		case <-ctx.Done():
		}
		m.mu.Lock()
		for i, s := range m.sleepers {
			if s == op {
				m.sleepers = append(m.sleepers[:i], m.sleepers[i+1:]...)
				break
			}
		}
		if op.Completed() || ctx.Err() != nil {
			m.passOn() // this one may have been woken to drive
		}
		m.mu.Unlock()
		if !op.Completed() && ctx.Err() != nil {
			return dist.FromContext("group: wait", ctx)
		}
	}
}

// release ends the role of the driver.
func (m *Mesh) release() {
	m.mu.Lock()
	m.driving = false
	m.lastDrive = time.Now()
	m.passOn()
	m.mu.Unlock()
}

// passOn wakes a sleeper to drive when nobody does.
func (m *Mesh) passOn() {
	if !m.driving && len(m.sleepers) > 0 {
		m.sleepers[0].Nudge()
	}
}

// slice is how long a driver waits in the kernel before it looks at its context.
const slice = 20 // ms

// drive reads sockets until op is complete or ctx ends.
func (m *Mesh) drive(ctx context.Context, op *link.Op) error {
	if m.spin.on() && m.spinFor(op) {
		return nil
	}
	for {
		n, errno := epollWait(m.ep, m.events[:], slice)
		m.mu.Lock()
		if errno == 0 {
			m.handle(n)
		}
		if n == 0 {
			m.notice()
		}
		done, closed := op.Completed(), m.closed
		m.mu.Unlock()
		switch {
		case done || closed:
			return nil
		case ctx.Err() != nil:
			return dist.FromContext("group: wait", ctx)
		}
	}
}

// handle serves n events.
func (m *Mesh) handle(n int) {
	for _, e := range m.events[:max(n, 0)] {
		if e.Fd < 0 {
			var buf [8]byte
			_, _ = unix.Read(m.event, buf[:])
			continue
		}
		c := m.conns[e.Fd]
		if c.gone != nil {
			continue
		}
		if e.Events&^unix.EPOLLOUT != 0 {
			c.read()
		}
		c.flush() // read may have queued answers, and the socket may take more
	}
}

// spinFor polls the sockets for a short time, because a sleep in the kernel costs more than many quick answers take.
func (m *Mesh) spinFor(op *link.Op) bool {
	began := time.Now()
	budget := m.spin.budget
	for i := 0; ; i++ {
		m.mu.Lock()
		if op.Peer >= 0 && op.Peer < m.size && m.conns[op.Peer] != nil && i%8 != 7 {
			c := m.conns[op.Peer]
			if c.gone == nil && c.read() {
				c.flush()
			}
		} else if n, errno := epollWait(m.ep, m.events[:], 0); errno == 0 {
			m.handle(n)
		}
		done := op.Completed() || m.closed
		m.mu.Unlock()
		if done {
			m.spin.hit()
			return true
		}
		if time.Since(began) > budget {
			m.spin.miss()
			return false
		}
		if m.spin.crowded {
			yield()
		}
	}
}

// spinner decides how long it is worth to spin: as long as it helps, and seldom where it does not.
type spinner struct {
	crowded bool // more ranks than cores: give the core away between two looks
	limit   time.Duration
	budget  time.Duration
	skip    int // waits to go without spinning
	misses  int
}

func newSpinner(localRanks int) spinner {
	s := spinner{crowded: localRanks > runtime.NumCPU(), limit: 40 * time.Microsecond}
	s.budget = s.limit
	return s
}

func (s *spinner) on() bool {
	if s.skip > 0 {
		s.skip--
		return false
	}
	return true
}

func (s *spinner) hit() { s.misses, s.budget = 0, min(s.budget*2, s.limit) }

func (s *spinner) miss() {
	s.misses = min(s.misses+1, 6)
	s.budget = max(s.budget/2, 5*time.Microsecond)
	s.skip = 1<<s.misses - 1
}
