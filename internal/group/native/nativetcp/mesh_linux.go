// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Supported reports whether this platform has the native wire.
const Supported = true

// Mesh is one rank's end of the connections of a group. It implements transport.Mesh and native.Checker.
type Mesh struct {
	rank, size int
	lanes      int // that all ranks wish for
	cfg        Config
	ep, event  int   // epoll instance; eventfd that wakes the driver
	watch      watch // the keeper's
	stop       chan struct{}
	keeper     sync.WaitGroup
	closeOnce  sync.Once
	released   chan struct{}   // closed when Close is done
	wait       spinwait.Waiter // the driver's
	placer     spinwait.Placer // the driver's
	asleep     atomic.Bool     // the goroutine that attends is in the kernel

	events [64]unix.EpollEvent // the driver's

	// mu guards the connections too.
	mu struct {
		sync.Mutex
		conns    []*conn // by rank; nil for the own one
		anyRecvs transport.List
		calls    calls
		early    transport.EarlyPool[note]
		err      error // why the mesh failed
		lost     error // why collectives have ended: a rank is gone
		leaving  bool  // Close was called
		closed   bool  // Close has ended the connections
		lastBeat time.Time
		driver   driver
		pulse    pulse
		cores    []uint16 // where the ranks of this host ran lately, plus one
		copied   int      // bytes of messages that did not come straight from the kernel to where they belong
	}
}

// Rank is the own rank.
func (m *Mesh) Rank() int { return m.rank }

// Size is the number of ranks.
func (m *Mesh) Size() int { return m.size }

// Send posts a message. It is written at once as far as the kernel takes it.
func (m *Mesh) Send(op *transport.Op) {
	failpoint.At("tcp.send")
	op.Begin()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.pulse.posts++
	c, err := m.peer(op)
	if err != nil {
		op.Complete(err)
		return
	}
	c.post(op)
	c.flush()
}

// Recv posts room for a message.
func (m *Mesh) Recv(op *transport.Op) {
	failpoint.At("tcp.recv")
	op.Begin()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.pulse.posts++
	if op.Peer == transport.AnyPeer {
		m.recvAny(op)
		return
	}
	c, err := m.peer(op)
	if err != nil {
		// What came before the peer left may still be taken.
		if c == nil || !c.takeWhole(op) {
			op.Complete(err)
		}
		return
	}
	op.Source = op.Peer
	c.want(op)
	c.flush()
}

// peer returns the connection of an op, and an error when it cannot be used any more.
func (m *Mesh) peer(op *transport.Op) (*conn, error) {
	rank := op.Peer
	switch {
	case m.mu.err != nil:
		return nil, m.mu.err
	case m.mu.lost != nil && nativewire.IsCollective(op.Slot):
		return nil, m.mu.lost
	case m.mu.closed:
		return nil, errClosed()
	case rank < 0 || rank >= m.size || rank == m.rank:
		return nil, cohort.Newf("group: send", cohort.InvalidArgument, "rank %d of %d has no connection to rank %d", m.rank, m.size, rank)
	}
	c := m.mu.conns[rank]
	if c.gone != nil {
		return c, c.gone
	}
	return c, nil
}

func errClosed() error {
	return cohort.New("group", cohort.Closed, "the group was closed")
}

// recvAny takes the oldest message on the slot from a rank that it accepts, or waits for one.
func (m *Mesh) recvAny(op *transport.Op) {
	if m.mu.err != nil || m.mu.closed {
		err := m.mu.err
		if err == nil {
			err = errClosed()
		}
		op.Complete(err)
		return
	}
	var best *early
	var from *conn
	alive := false
	for rank, c := range m.mu.conns {
		if c == nil || !op.Accepts(rank) {
			continue
		}
		alive = alive || c.gone == nil
		if a := c.recvs.inbox.First(op.Slot); a != nil && (a.Note.whole || a.Announced && c.gone == nil) &&
			(best == nil || a.Before(best)) {
			best, from = a, c
		}
	}
	switch {
	case best != nil:
		op.Source = from.peer
		from.take(best, op)
		from.flush()
	case !alive:
		op.Complete(m.noneLeft(op))
	default:
		m.mu.anyRecvs.Push(op)
	}
}

// noneLeft is the error of a receive from ranks that have all gone.
func (m *Mesh) noneLeft(op *transport.Op) error {
	for rank, c := range m.mu.conns {
		if c != nil && c.gone != nil && op.Accepts(rank) {
			return c.gone
		}
	}
	return cohort.New("group: receive", cohort.InvalidArgument, "no rank to receive from")
}

// Awaited returns the ranks that receives and sends wait for. Heartbeats find silent ranks, so those awaited are alive;
// any of them may itself wait for another.
func (m *Mesh) Awaited() (ranks []int) {
	failpoint.At("tcp.awaited")
	m.mu.Lock()
	defer m.mu.Unlock()
	for rank, c := range m.mu.conns {
		if c != nil && (c.recvs.posted.Head != nil || c.recvs.granted.Head != nil || c.sends.waiting.Head != nil) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Cancel withdraws an op that no peer has matched.
func (m *Mesh) Cancel(op *transport.Op) bool {
	failpoint.At("tcp.cancel")
	m.mu.Lock()
	defer m.mu.Unlock()
	if op.Completed() {
		return false
	}
	removed := m.mu.anyRecvs.Remove(op)
	if !removed && op.Peer >= 0 && op.Peer < m.size && op.Peer != m.rank {
		c := m.mu.conns[op.Peer]
		removed = c.recvs.posted.Remove(op)
		if !removed && c.out.fresh.Remove(op) { // a send that the peer has learned of must happen
			c.unspend(op)
			removed = true
		}
	}
	if removed {
		op.Complete(cohort.New("group", cohort.Aborted, "the operation was withdrawn"))
		m.wake()
	}
	return removed
}

// Fail ends every op with err and notifies all peers.
func (m *Mesh) Fail(err error) {
	failpoint.At("tcp.fail")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return
	}
	m.fail(err, true)
}

// fail is Fail under the lock. It notifies the peers unless they know already.
func (m *Mesh) fail(err error, notify bool) {
	if m.mu.err != nil {
		return
	}
	m.mu.err = err
	if m.cfg.OnFail != nil {
		m.keeper.Go(func() { m.cfg.OnFail(err) })
	}
	for _, c := range m.mu.conns {
		if c == nil {
			continue
		}
		c.endAll(err)
		if c.gone == nil && notify {
			c.abort(err)
		}
	}
	for op := m.mu.anyRecvs.Pop(); op != nil; op = m.mu.anyRecvs.Pop() {
		op.Complete(err)
	}
	m.wake()
}

// lose ends all collectives: each needs every rank, and one is gone. Messages between the other ranks go on.
func (m *Mesh) lose(err error) {
	if m.mu.err != nil || m.mu.lost != nil {
		return
	}
	m.mu.lost = err
	for _, c := range m.mu.conns {
		if c != nil && c.gone == nil {
			c.endSome(err, nativewire.IsCollective)
		}
	}
	m.wake()
}

// report notifies the group of a rank that is gone.
func (m *Mesh) report(loss transport.Loss) {
	if m.cfg.OnLost != nil && !m.mu.leaving && m.mu.err == nil {
		m.keeper.Go(func() {
			failpoint.At("tcp.lost.report")
			m.cfg.OnLost(loss)
		})
	}
}

// wake makes a driver that waits in the kernel look again.
func (m *Mesh) wake() {
	if !m.mu.driver.taken {
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(m.event, one[:]) // full means that it is awake already
}

var _ transport.Mesh = (*Mesh)(nil)
