// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/background"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// keepPeriod is how often the keeper drives operations without a waiter, keepSoon after a turn that has moved something, because
// the reply may be on its way, and keepSeldom after a long time in which a waiter drove.
const (
	keepPeriod = 2 * time.Millisecond
	keepSoon   = keepPeriod / 20
	keepSeldom = 8 * keepPeriod
)

// progress reads and writes all rings as far as it goes. It runs under the lock.
func (m *Mesh) progress() {
	if m.mu.closed || m.mu.err != nil {
		return
	}
	for _, p := range m.mu.peers {
		if p == nil || p.gone != nil {
			continue
		}
		ended := m.engine.others.state(p.rank) != present // then what is in the ring is all that will arrive
		m.drain(p)
		if m.mu.err != nil {
			return
		}
		m.flush(p)
		if ended { // what it had sent before has been read now
			p.gone = m.engine.lost("shm: message", p.rank)
			m.endPeer(p, p.gone)
		}
	}
}

// arrive gives a new message to its receive or keeps it.
func (m *Mesh) arrive(p *meshPeer, f shmring.Frame, payload []byte) {
	offer := f.Kind == shmring.Offer
	op := transport.TakeFor(&p.recvs, &m.mu.any, f.Slot, p.rank)
	switch {
	case op != nil && offer:
		m.answer(p, op, f.ID, f.Total)
	case op != nil:
		m.deliver(p, op, payload)
	case offer && p.inbox.Announced >= maxOffers:
		m.violated(p, fmt.Sprintf("it offers more than %d messages", maxOffers))
	default:
		a := m.mu.early.New(f.Slot, len(payload))
		copy(a.Data, payload)
		a.Total, a.Announced, a.Note = f.Total, offer, offerID(f.ID)
		p.inbox.Add(a)
	}
}

// endPeer ends all operations with a rank.
func (m *Mesh) endPeer(p *meshPeer, err error) {
	m.mu.pending -= len(p.refusals)
	p.refusals = nil
	for _, l := range []*transport.List{&p.sends, &p.offered, &p.streams, &p.recvs, &p.grants, &p.incoming} {
		for op := l.Pop(); op != nil; op = l.Pop() {
			m.complete(op, err)
		}
	}
	alive := func(rank int) bool { return m.mu.peers[rank] != nil && m.mu.peers[rank].gone == nil }
	transport.EndOrphans(&m.mu.any, alive, m.Size(), func(op *transport.Op) { m.complete(op, err) })
}

// Wait returns when op is complete, or when another op of its set has failed. The caller does the mesh's work meanwhile,
// or sleeps while another goroutine does.
func (m *Mesh) Wait(ctx context.Context, op *transport.Op) error {
	var failed <-chan struct{}
	if op.Set != nil {
		failed = op.Set.Failed()
	}
	for !op.Completed() {
		failpoint.At("shm.message.wait")
		select {
		case <-op.State.Done: // a late signal of an earlier use wakes too: look again
			continue
		case <-failed:
			if !op.Completed() {
				return op.Set.Err()
			}
			continue
		case <-m.role:
		case <-ctx.Done():
			if !op.Completed() {
				return cohort.FromContext(ctx, "shm: wait")
			}
			continue
		}
		err := m.drive(ctx, op)
		m.role <- struct{}{}
		if err != nil {
			return err
		}
	}
	return op.State.Err
}

// drive moves messages until op is complete, its set has failed or ctx ends. After a slice in which the bell did not ring it continues
// sleeping: a rank that waits for long uses its core only once.
func (m *Mesh) drive(ctx context.Context, op *transport.Op) error {
	bell := m.engine.seg.bell(m.Rank())
	w := &m.wait
	w.SetSize(len(op.Buf))
	for quiet := false; ; {
		rings := atomic.LoadUint32(&bell.rings)
		failpoint.At("shm.message.progress")
		m.mu.Lock()
		m.progress()
		m.mu.Unlock()
		switch {
		case op.Completed():
			return nil
		case op.Set != nil && op.Set.Err() != nil:
			return op.Set.Err()
		case ctx.Err() != nil: // looked at in every turn: other messages may keep the bell ringing
			return cohort.FromContext(ctx, "shm: wait")
		}
		if !quiet && (w.spinBriefly(&bell.rings, rings+1) || w.spinOrYield(&bell.rings, rings+1)) {
			continue
		}
		if m.over() {
			continue
		}
		quiet = m.sleep(ctx, bell, rings, quiet)
	}
}

// sleep sleeps until the bell has rung again, at most for a slice, and reports whether that was over. If it was so before, the end of
// ctx rings too; a short wait does without, because that allocates.
func (m *Mesh) sleep(ctx context.Context, bell *bellLine, rings uint32, long bool) (over bool) {
	failpoint.At("shm.message.sleep")
	slice := sleepSlice
	if long {
		slice = m.slice
		defer context.AfterFunc(ctx, m.wake)()
	}
	if d, ok := ctx.Deadline(); ok {
		slice = min(slice, time.Until(d))
	}
	return sleepBelow(&bell.rings, &bell.sleepers, rings+1, slice, !long && !m.wait.shared)
}

// wake wakes the driver, if one sleeps.
func (m *Mesh) wake() {
	failpoint.At("shm.message.wake")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.closed { // the memory may be gone; and Close has rung
		m.ring(m.Rank())
	}
}

// over reports whether the mesh has ended, also because another rank has abandoned the group.
func (m *Mesh) over() bool {
	failpoint.At("shm.message.over")
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.engine.abortReason("shm: message"); err != nil {
		m.fail(err)
		return true
	}
	m.compareBarrier()
	return m.mu.closed || m.mu.err != nil
}

// keep drives pending operations while no goroutine waits for one.
func (m *Mesh) keep() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		failpoint.At("shm.keep.idle")
		select {
		case <-m.engine.life.stop:
			return
		case <-m.wanted:
		}
		look := background.NewInterval(keepPeriod)
		for busy, pause := true, keepPeriod; busy; {
			t.Reset(pause)
			failpoint.At("shm.keep.wait")
			select {
			case <-m.engine.life.stop:
				return
			case <-t.C:
			}
			select {
			case <-m.role:
				failpoint.At("shm.keep.progress")
				m.mu.Lock()
				before := m.mu.moves
				m.progress()
				busy, pause = m.mu.pending > 0, keepPeriod
				if m.mu.moves != before {
					pause = keepSoon
				}
				m.mu.Unlock()
				m.role <- struct{}{}
				look.Reset()
			default: // a waiter drives
				look.Grow(keepSeldom)
				pause = look.Now()
			}
		}
	}
}

// Cancel withdraws an op that no peer has matched yet.
func (m *Mesh) Cancel(op *transport.Op) bool {
	failpoint.At("shm.message.cancel")
	m.mu.Lock()
	defer m.mu.Unlock()
	if op.Completed() {
		return false
	}
	removed := m.mu.any.Remove(op)
	if !removed && op.Peer >= 0 && op.Peer < m.Size() && op.Peer != m.Rank() {
		p := m.mu.peers[op.Peer]
		removed = p.recvs.Remove(op) || p.sends.Remove(op)
	}
	if removed {
		m.complete(op, cohort.New("shm: message", cohort.Aborted, "the operation was withdrawn"))
		m.ring(m.Rank()) // the driver may wait for it
	}
	return removed
}

// Fail ends every pending and later op with err, and the engine's collectives too: they are one group.
func (m *Mesh) Fail(err error) { m.engine.Fail(err) }

// fail ends the operations of the mesh. It runs under the lock.
func (m *Mesh) fail(err error) {
	if m.mu.err != nil || m.mu.closed {
		return
	}
	m.mu.err = err
	m.endAll(err)
	m.ring(m.Rank()) // a driver that sleeps
}

// violated ends the group, here and on the other ranks, because of what a rank has put into its ring. It runs under the lock.
func (m *Mesh) violated(p *meshPeer, detail string) {
	why := &cohort.Error{Op: "shm: message", Code: cohort.Protocol, Rank: cohort.Rank(p.rank), Detail: detail}
	m.end(why)
}

// end ends the group, here and on the other ranks. It runs under the lock.
func (m *Mesh) end(why *cohort.Error) {
	err := error(why)
	m.engine.failure.failed.CompareAndSwap(nil, &err)
	m.fail(err)
	m.engine.notifyAll(why)
}

func (m *Mesh) endAll(err error) {
	for _, p := range m.mu.peers {
		if p != nil {
			m.endPeer(p, err)
		}
	}
	for op := m.mu.any.Pop(); op != nil; op = m.mu.any.Pop() {
		m.complete(op, err)
	}
}

// Close ends pending operations with [cohort.Closed]. The rings go with the engine.
func (m *Mesh) Close() error {
	failpoint.At("shm.message.close")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.closed {
		m.mu.closed = true
		m.endAll(cohort.New("shm: message", cohort.Closed, "the group was closed"))
		m.engine.arena.whileMapped(func() { m.ring(m.Rank()) })
	}
	return nil
}

// shut closes the mesh and waits until no goroutine drives it, before the memory is unmapped.
func (m *Mesh) shut() {
	_ = m.Close()
	failpoint.At("shm.message.shut")
	<-m.role
}
