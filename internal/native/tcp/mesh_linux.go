// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

// Supported tells whether this platform has the native wire.
const Supported = true

// Mesh is one rank's end of the connections of a group. It implements link.Mesh and native.Checker.
type Mesh struct {
	rank, size int
	cfg        Config
	ep, event  int      // epoll instance; eventfd that wakes the driver
	epFile     *os.File // the epoll instance in the runtime's poller, for the keeper
	stop       chan struct{}
	keeper     sync.WaitGroup
	spin       spinner

	mu        sync.Mutex
	conns     []*conn // by rank; nil for the own one
	anyRecvs  opList
	calls     [callHistory]callEntry
	live      []liveCall
	order     uint64     // arrivals counted
	spare     *arrival   // free arrivals, with room for an eager message
	err       error      // why the mesh failed
	lost      error      // why collectives have ended: a rank is gone
	closed    bool       // Close was called
	frozen    bool       // Freeze was called
	driving   bool       // somebody drives
	sleepers  []*link.Op // ops whose waiters sleep until the role is free
	lastDrive time.Time
	events    [64]unix.EpollEvent // the driver's
}

// Rank is the own rank.
func (m *Mesh) Rank() int { return m.rank }

// Size is the number of ranks.
func (m *Mesh) Size() int { return m.size }

// Send posts a message. It is written at once as far as the kernel takes it.
func (m *Mesh) Send(op *link.Op) {
	start(op)
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.peer(op)
	if err != nil {
		complete(op, err)
		return
	}
	c.post(op)
	c.flush()
}

// Recv posts room for a message.
func (m *Mesh) Recv(op *link.Op) {
	start(op)
	m.mu.Lock()
	defer m.mu.Unlock()
	if op.Peer == link.AnyPeer {
		m.recvAny(op)
		return
	}
	c, err := m.peer(op)
	if err != nil {
		// What came before the peer left may still be taken.
		if c == nil || !c.takeArrival(op) {
			complete(op, err)
		}
		return
	}
	op.Source = op.Peer
	c.want(op)
	c.flush()
}

// peer returns the connection of an op, and an error when it cannot be used any more.
func (m *Mesh) peer(op *link.Op) (*conn, error) {
	rank := op.Peer
	switch {
	case m.err != nil:
		return nil, m.err
	case m.lost != nil && wire.IsCollective(op.Slot):
		return nil, m.lost
	case m.closed:
		return nil, errClosed()
	case rank < 0 || rank >= m.size || rank == m.rank:
		return nil, dist.Newf("group: send", dist.InvalidArgument, "rank %d of %d has no connection to rank %d", m.rank, m.size, rank)
	}
	c := m.conns[rank]
	if c.gone != nil {
		return c, c.gone
	}
	return c, nil
}

func errClosed() error {
	return dist.New("group", dist.Closed, "the group was closed")
}

// recvAny takes the oldest message on the slot from one of op.From, or waits for one.
func (m *Mesh) recvAny(op *link.Op) {
	if m.err != nil || m.closed {
		err := m.err
		if err == nil {
			err = errClosed()
		}
		complete(op, err)
		return
	}
	var best *arrival
	var from *conn
	alive := false
	for _, rank := range op.From {
		if rank < 0 || rank >= m.size || rank == m.rank {
			continue
		}
		c := m.conns[rank]
		alive = alive || c.gone == nil
		if a := c.inbox.first(op.Slot); a != nil && (a.whole || a.request) && (best == nil || a.order < best.order) {
			best, from = a, c
		}
	}
	switch {
	case best != nil:
		op.Source = from.peer
		from.take(best, op)
		from.flush()
	case !alive:
		complete(op, m.noneLeft(op))
	default:
		m.anyRecvs.push(op)
	}
}

// noneLeft is the error of a receive from ranks that have all gone.
func (m *Mesh) noneLeft(op *link.Op) error {
	for _, rank := range op.From {
		if rank >= 0 && rank < m.size && rank != m.rank && m.conns[rank].gone != nil {
			return m.conns[rank].gone
		}
	}
	return dist.New("group: receive", dist.InvalidArgument, "no rank to receive from")
}

// Awaited returns the ranks that posted receives wait for.
func (m *Mesh) Awaited() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ranks []int
	for rank, c := range m.conns {
		if c != nil && (c.recvs.head != nil || c.granted.head != nil || c.waiting.head != nil) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Cancel withdraws an op that no peer has matched.
func (m *Mesh) Cancel(op *link.Op) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if isDone(op) {
		return false
	}
	removed := m.anyRecvs.remove(op)
	if !removed && op.Peer >= 0 && op.Peer < m.size && op.Peer != m.rank {
		c := m.conns[op.Peer]
		removed = c.recvs.remove(op)
		if !removed && c.out.remove(op) { // not written yet; a send that was announced must happen
			c.credit += cost(op)
			removed = true
		}
	}
	if removed {
		complete(op, dist.New("group", dist.Aborted, "the operation was withdrawn"))
		m.wake()
	}
	return removed
}

// Fail ends every op with err and tells all peers.
func (m *Mesh) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.fail(err, true)
}

// fail is Fail under the lock. It tells the peers unless they know already.
func (m *Mesh) fail(err error, tell bool) {
	if m.err != nil {
		return
	}
	m.err = err
	if m.cfg.OnFail != nil {
		m.keeper.Go(func() { m.cfg.OnFail(err) })
	}
	for _, c := range m.conns {
		if c == nil {
			continue
		}
		c.endAll(err)
		if c.gone == nil && tell {
			c.abort(err)
		}
	}
	for op := m.anyRecvs.pop(); op != nil; op = m.anyRecvs.pop() {
		complete(op, err)
	}
	m.wake()
}

// lose ends all collectives: each needs every rank, and one is gone. Messages between the other ranks go on.
func (m *Mesh) lose(err error) {
	if m.err != nil || m.lost != nil {
		return
	}
	m.lost = err
	for _, c := range m.conns {
		if c != nil && c.gone == nil {
			c.endSome(err, wire.IsCollective)
		}
	}
	m.wake()
}

// wake makes a driver that waits in the kernel look again.
func (m *Mesh) wake() {
	if !m.driving {
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(m.event, one[:]) // full means that it is awake already
}

// callHistory is how many calls back a late message of another rank is still compared.
const callHistory = 1024

type callEntry struct {
	slot uint64
	call wire.Call
}

// liveCall is a collective that runs on this rank.
type liveCall struct {
	slot    uint64
	began   time.Time // when the driver saw that it takes long
	noticed bool
}

func (m *Mesh) entry(slot uint64) *callEntry { return &m.calls[wire.TagOf(slot)%callHistory] }

// Begin takes note of what this rank calls under a slot, and compares what others have said about it already.
func (m *Mesh) Begin(slot uint64, call wire.Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*m.entry(slot) = callEntry{slot, call}
	m.live = append(m.live, liveCall{slot: slot})
	if m.err != nil {
		return
	}
	for _, c := range m.conns {
		if c == nil {
			continue
		}
		for a := c.inbox.head; a != nil; a = a.next {
			if a.called && wire.BaseSlot(a.slot) == slot && !call.Agrees(&a.call, m.rank, c.peer) {
				m.fail(m.mismatch(c.peer, slot, a.call, call), true)
				return
			}
		}
		for _, r := range c.readys {
			if wire.BaseSlot(r.slot) == slot && !call.Agrees(&r.call, m.rank, c.peer) {
				m.fail(m.mismatch(c.peer, slot, r.call, call), true)
				return
			}
		}
		kept := c.notices[:0]
		for _, n := range c.notices {
			if n.slot != slot {
				kept = append(kept, n)
			} else if !call.Agrees(&n.call, m.rank, c.peer) {
				m.fail(m.mismatch(c.peer, slot, n.call, call), true)
				return
			}
		}
		c.notices = kept
	}
}

// End takes note that the collective is over on this rank. What it called stays known for latecomers.
func (m *Mesh) End(slot uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.live {
		if m.live[i].slot == slot {
			m.live = append(m.live[:i], m.live[i+1:]...)
			return
		}
	}
}

// notice tells all peers about collectives that take long, once: they may wait for this rank in another operation.
func (m *Mesh) notice() {
	if m.err != nil {
		return
	}
	now := time.Now()
	for i := range m.live {
		l := &m.live[i]
		switch {
		case l.noticed:
		case l.began.IsZero():
			l.began = now
		case now.Sub(l.began) > slice*time.Millisecond/2:
			l.noticed = true
			for _, c := range m.conns {
				if c != nil && c.gone == nil {
					h := wire.Header{Type: wire.Notice, Slot: l.slot}
					c.describe(&h)
					c.tell(h)
					c.flush()
				}
			}
		}
	}
}

// compare checks what a peer says it called under a slot. A slot that this rank has not begun is compared in Begin.
func (m *Mesh) compare(peer int, h *wire.Header) bool {
	base := wire.BaseSlot(h.Slot)
	e := m.entry(base)
	if e.slot != base || e.call.Agrees(&h.Call, m.rank, peer) {
		return true
	}
	m.fail(m.mismatch(peer, base, h.Call, e.call), true)
	return false
}

func (m *Mesh) mismatch(peer int, slot uint64, theirs, ours wire.Call) error {
	return &dist.Error{
		Op: "group: " + ours.Kind.String(), Code: dist.Mismatch, Rank: dist.Rank(peer), Peer: m.conns[peer].addr,
		Detail: "operation " + itoa(int(wire.TagOf(slot))) + ": rank " + itoa(peer) + " called " + theirs.String() + ", rank " +
			itoa(m.rank) + " called " + ours.String() + "; all ranks must call the same operations in the same order",
	}
}

// sized reports whether slot is a collective whose message lengths all ranks agree on, so that room is announced unasked.
func (m *Mesh) sized(slot uint64) bool {
	if !wire.IsCollective(slot) {
		return false
	}
	e := m.entry(slot)
	return e.slot == wire.BaseSlot(slot) && e.call.Bytes != 0
}

var _ link.Mesh = (*Mesh)(nil)
