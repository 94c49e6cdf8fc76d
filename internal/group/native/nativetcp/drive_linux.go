// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// driver is the role of the goroutine that reads the sockets for all that wait.
type driver struct {
	taken    bool            // a goroutine has it
	last     time.Time       // when a goroutine had it last
	sleepers []*transport.Op // ops whose waiters sleep until it is free
}

// driveGoal is what a driver drives for.
type driveGoal struct {
	op    *transport.Op // until it is complete
	more  func() bool   // or until this says that nothing is left to do; it may post ops. No lock is held.
	bytes int           // of what is waited for
}

// awake forgets a waiter that does not sleep any more.
func (d *driver) awake(op *transport.Op) {
	if i := slices.Index(d.sleepers, op); i >= 0 {
		d.sleepers = slices.Delete(d.sleepers, i, i+1)
	}
}

// passOn wakes a sleeping waiter to drive when no goroutine drives.
func (d *driver) passOn() {
	if !d.taken && len(d.sleepers) > 0 {
		d.sleepers[0].Nudge()
	}
}

// Wait returns when op is complete. The caller drives the mesh meanwhile, or sleeps while another goroutine does.
func (m *Mesh) Wait(ctx context.Context, op *transport.Op) error {
	for {
		if op.Completed() {
			return op.State.Err
		}
		failpoint.At("tcp.wait")
		m.mu.Lock()
		if op.Completed() {
			m.mu.Unlock()
			return op.State.Err
		}
		if !m.mu.driver.taken && !m.mu.closed {
			if ctx.Err() != nil {
				m.mu.Unlock()
				return cohort.FromContext(ctx, "group: wait")
			}
			m.mu.driver.taken = true
			m.watch.relieve(m.ep)
			m.mu.Unlock()
			err := m.drive(ctx, driveGoal{op: op, bytes: len(op.Buf)})
			m.release()
			if err != nil {
				return err
			}
			continue
		}
		m.mu.driver.sleepers = append(m.mu.driver.sleepers, op)
		m.mu.Unlock()
		m.park(ctx, op)
		if !op.Completed() && ctx.Err() != nil {
			return cohort.FromContext(ctx, "group: wait")
		}
	}
}

// park sleeps beside a driver, as one of the sleepers, until op is complete, this goroutine is to drive, or ctx ends.
func (m *Mesh) park(ctx context.Context, op *transport.Op) {
	failpoint.At("tcp.wait.parked")
	select {
	case <-op.State.Done:
	case <-ctx.Done():
	}
	failpoint.At("tcp.wait.woken")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.driver.awake(op)
	if op.Completed() || ctx.Err() != nil {
		m.mu.driver.passOn() // this one may have been woken to drive
	}
}

// release ends the role of the driver.
func (m *Mesh) release() {
	failpoint.At("tcp.release")
	m.mu.Lock()
	m.mu.driver.taken, m.mu.driver.last = false, time.Now()
	m.notice(m.mu.driver.last) // if the messages of this one never let it sleep
	if len(m.mu.driver.sleepers) > 0 {
		m.mu.driver.passOn()
	}
	m.mu.Unlock()
}

// slice is how long a driver waits in the kernel before it looks at its context.
const slice = 20 // ms

// drive reads sockets until its goal is reached or ctx ends. After a slice in which nothing came it goes on sleeping: a
// rank that waits for long uses its core only once.
func (m *Mesh) drive(ctx context.Context, e driveGoal) error {
	for quiet, again := false, false; ; again = true {
		if !quiet && m.linger(e, again) {
			return nil
		}
		m.asleep.Store(true) // who posts something from here on wakes this goroutine
		if e.more != nil && !e.more() {
			m.asleep.Store(false)
			return nil
		}
		failpoint.At("tcp.wait.sleep")
		n, errno := epollSleep(m.ep, m.events[:], !quiet && !m.cfg.Shared)
		m.asleep.Store(false)
		failpoint.At("tcp.wait.awake")
		m.mu.Lock()
		if errno == 0 {
			m.handle(n)
		}
		quiet = n == 0
		m.notice(time.Now())
		over := e.op != nil && e.op.Completed() || m.mu.closed
		m.mu.Unlock()
		switch {
		case over:
			return nil
		case ctx.Err() != nil:
			return cohort.FromContext(ctx, "group: wait")
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
		c := m.mu.conns[e.Fd]
		if c.gone != nil {
			continue
		}
		if e.Events&^unix.EPOLLOUT != 0 {
			c.read()
		}
		c.flush() // read may have queued answers, and the socket may take more
	}
}

// linger polls the sockets without sleeping, as long as that is allowed, and reports whether the goal is reached or the mesh closed.
// again says that the driver has slept since it began.
func (m *Mesh) linger(e driveGoal, again bool) bool {
	m.wait.SetSize(e.bytes)
	now := spinwait.Now()
	if again {
		m.wait.Resume(now)
	} else {
		m.wait.Begin(now)
	}
	for i := 0; ; i++ {
		if e.more != nil && !e.more() || m.receive(e.op, i%8 == 7) {
			return true
		}
		switch m.wait.Next(now) {
		case spinwait.Spin:
			now = spinwait.Now()
		case spinwait.Yield:
			if m.cfg.Shared { // only the Go scheduler can let another rank of this process run
				runtime.Gosched()
			} else {
				spinwait.YieldCore()
			}
			now = spinwait.Now()
			m.wait.Yielded(now)
			if m.cfg.Local != nil {
				m.place(now)
			}
		case spinwait.Sleep:
			if m.cfg.Local == nil {
				return false
			}
			m.place(now)
			return m.over(e.op) // place may have read the message, and then nothing would end the sleep
		}
	}
}

// over reports whether op is complete or the mesh closed.
func (m *Mesh) over(op *transport.Op) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return op != nil && op.Completed() || m.mu.closed
}

// receive reads what has come: from the rank that op waits for, or from all.
func (m *Mesh) receive(op *transport.Op, all bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if op != nil && op.Peer >= 0 && op.Peer < m.size && m.mu.conns[op.Peer] != nil && !all {
		if c := m.mu.conns[op.Peer]; c.gone == nil && c.read() {
			c.flush()
		}
	} else if n, errno := epollLook(m.ep, m.events[:]); errno == 0 {
		m.handle(n)
	}
	return op != nil && op.Completed() || m.mu.closed
}

// place takes note now and then on which core this rank runs, and goes to another one where ranks of the group crowd this one. When
// that has changed it tells all ranks of its host: an operation has messages with a few of them only, and who knows where some
// are leaves a core that is not crowded.
func (m *Mesh) place(now time.Duration) {
	if !m.placer.Due(now) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n, errno := epollLook(m.ep, m.events[:]); errno == 0 { // some may have said where they are
		m.handle(n)
	}
	core := m.placer.Place(now, m.rank, m.size, func(rank int) int { return int(m.mu.cores[rank]) - 1 })
	m.wait.SetSharing(m.placer.Others())
	m.moved(uint16(core + 1)) //nolint:gosec // a core's number; one that does not fit only crowds another
}

// moved tells the ranks of this host where this one is, if that is new.
func (m *Mesh) moved(core uint16) {
	if core == m.mu.cores[m.rank] {
		return
	}
	m.mu.cores[m.rank] = core
	for _, c := range m.mu.conns {
		if c != nil && c.outdated() {
			c.flush()
		}
	}
}

// outdated reports whether the peer is of this host and does not know where this rank is.
func (c *conn) outdated() bool { return c.m.cfg.Local[c.peer] && c.sentCore != c.m.mu.cores[c.m.rank] }
