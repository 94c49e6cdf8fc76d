// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// callHistory is how many calls back a late message of another rank is still compared.
const callHistory = 1024

type callEntry struct {
	slot uint64
	call nativewire.Call
}

// liveCall is a collective that runs on this rank.
type liveCall struct {
	slot    uint64
	seen    bool // when notice looked last
	noticed bool
}

// calls is what this rank has called.
type calls struct {
	known  [callHistory]callEntry // the last ones, by their tags
	live   []liveCall
	looked time.Time // when notice looked for those that take long
}

// called returns what this rank called under a slot, nil if it did not or the slot is that of a message between two ranks.
func (m *Mesh) called(slot uint64) *nativewire.Call {
	e := &m.mu.calls.known[nativewire.TagOf(slot)%callHistory]
	if e.slot == 0 || e.slot != nativewire.BaseSlot(slot) {
		return nil
	}
	return &e.call
}

// describe adds what this rank called to a header of a collective.
func (m *Mesh) describe(h *nativewire.Header) {
	if call := m.called(h.Slot); call != nil {
		h.Flags |= nativewire.Called
		h.Call = *call
	}
}

// Begin takes note of what this rank calls under a slot, and compares what others have said about it already.
func (m *Mesh) Begin(slot uint64, call nativewire.Call) {
	failpoint.At("tcp.begin")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.calls.live = append(m.mu.calls.live, liveCall{slot: slot})
	m.know(slot, call)
}

// know takes note of a call, and compares what others have said about it already.
func (m *Mesh) know(slot uint64, call nativewire.Call) {
	m.mu.calls.known[nativewire.TagOf(slot)%callHistory] = callEntry{slot, call}
	if m.mu.err != nil {
		return
	}
	for _, c := range m.mu.conns {
		if c == nil {
			continue
		}
		for a := c.recvs.inbox.Head; a != nil; a = a.Next {
			if a.Note.called && nativewire.BaseSlot(a.Slot) == slot && !call.Agrees(&a.Note.call, m.rank, c.peer) {
				m.fail(m.mismatch(c.peer, slot, a.Note.call, call), true)
				return
			}
		}
		for _, r := range c.sends.rooms {
			if nativewire.BaseSlot(r.slot) == slot && !call.Agrees(&r.call, m.rank, c.peer) {
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
	failpoint.At("tcp.end")
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.mu.calls.live {
		if m.mu.calls.live[i].slot == slot {
			m.mu.calls.live = append(m.mu.calls.live[:i], m.mu.calls.live[i+1:]...)
			return
		}
	}
}

// EnterBarrier takes note that this rank is in a monitored barrier, as Begin does of a collective.
func (m *Mesh) EnterBarrier(tag uint32) {
	m.Begin(nativewire.CollectiveSlot(tag), nativewire.MonitoredBarrier())
}

// LeaveBarrier takes note that it is over.
func (m *Mesh) LeaveBarrier(tag uint32) { m.End(nativewire.CollectiveSlot(tag)) }

// notice looks every slice for collectives that take long, and notifies all peers about each, once: they may wait for this rank in another
// operation.
func (m *Mesh) notice(now time.Time) {
	if m.mu.err != nil || now.Sub(m.mu.calls.looked) < slice*time.Millisecond {
		return
	}
	m.mu.calls.looked = now
	for i := range m.mu.calls.live {
		l := &m.mu.calls.live[i]
		switch {
		case l.noticed:
		case !l.seen:
			l.seen = true
		default:
			l.noticed = true
			for _, c := range m.mu.conns {
				if c != nil && c.gone == nil {
					h := nativewire.Header{Type: nativewire.Notice, Slot: l.slot}
					m.describe(&h)
					c.queueFrame(h)
					c.flush()
				}
			}
		}
	}
}

// compare checks what a peer says it called under a slot. A slot that this rank has not begun is compared in Begin.
func (m *Mesh) compare(peer int, h *nativewire.Header) bool {
	ours := m.called(h.Slot)
	if ours == nil || ours.Agrees(&h.Call, m.rank, peer) {
		return true
	}
	m.fail(m.mismatch(peer, h.Slot, h.Call, *ours), true)
	return false
}

func (m *Mesh) mismatch(peer int, slot uint64, theirs, ours nativewire.Call) error {
	return &cohort.Error{
		Op: "group: " + ours.Name(), Code: cohort.Mismatch, Rank: cohort.Rank(peer), Peer: m.mu.conns[peer].addr,
		Detail: "operation " + itoa(int(nativewire.TagOf(slot))) + ": rank " + itoa(peer) + " called " + theirs.String() + ", rank " +
			itoa(m.rank) + " called " + ours.String() + "; all ranks must call the same operations in the same order",
	}
}

// sized reports whether slot is a collective whose message lengths all ranks agree on, so that room is announced unasked.
func (m *Mesh) sized(slot uint64) bool {
	call := m.called(slot)
	return call != nil && call.Bytes != 0
}

// What follows is for package lanes, which makes one mesh of several. A collective is known to such a mesh only if a
// message of it moves there, a goroutine of that package drives it, and what befalls one of them befalls all.

// Lanes is how many connections all ranks wish for between two of them: the fewest of what each said when it connected.
// This mesh is the first.
func (m *Mesh) Lanes() int { return m.lanes }

// Called returns what this rank calls under a slot, if all ranks know the lengths of its messages.
func (m *Mesh) Called(slot uint64) (call nativewire.Call, sized bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.called(slot); known != nil {
		call = *known
	}
	return call, m.sized(slot)
}

// NoteCall takes note of what this rank calls under a slot, as Begin does, but the peers learn of it only by its
// messages: they learn the rest from the first mesh.
func (m *Mesh) NoteCall(slot uint64, call nativewire.Call) {
	failpoint.At("tcp.know")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.know(slot, call)
}

// ForgetCall ends what NoteCall began. On this mesh calls are rare: what stays known would be compared with a call that
// is far in the future, when tags begin anew.
func (m *Mesh) ForgetCall(slot uint64) {
	failpoint.At("tcp.forget")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.called(slot) != nil {
		m.mu.calls.known[nativewire.TagOf(slot)%callHistory] = callEntry{}
	}
}

// agreed checks that a message of which this rank receives a part is as long as it expects. If the other rank cuts it otherwise, or not at
// all, the other parts never come.
func (c *conn) agreed(op *transport.Op, total uint64) bool {
	want := op.Length()
	if total == uint64(want) { //nolint:gosec // not negative
		return true
	}
	e := cohort.Newf("group: receive", cohort.Mismatch,
		"rank %d sent %d bytes where rank %d expects %d; give the same sizes on all ranks", c.peer, total, c.m.rank, want)
	e.Rank, e.Peer = cohort.Rank(c.peer), c.addr
	c.m.fail(e, true)
	return false
}

// DriveWhile drives the mesh as Wait does until more returns false, which it asks before every look at the sockets;
// more posts what is to be moved. It reports false when the mesh is closed. No goroutine may wait for an op of the mesh
// meanwhile.
func (m *Mesh) DriveWhile(more func() bool) bool {
	failpoint.At("tcp.attend")
	m.mu.Lock()
	if m.mu.closed {
		m.mu.Unlock()
		return false
	}
	m.mu.driver.taken = true
	m.watch.relieve(m.ep)
	m.mu.Unlock()
	_ = m.drive(context.Background(), driveGoal{more: more, bytes: spinwait.Much + 1})
	m.release()
	return !m.over(nil)
}

// WakeDriver makes the driver ask again whether there is more, if it is not about to.
func (m *Mesh) WakeDriver() {
	if !m.asleep.Load() {
		return
	}
	failpoint.At("tcp.stir")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wake()
}

// FailSilently is Fail without a word to the peers: another mesh of the same ranks notifies them.
func (m *Mesh) FailSilently(err error) {
	failpoint.At("tcp.fail.silently")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.closed {
		m.fail(err, false)
	}
}

// MarkLost gives a rank up that another mesh of the same ranks has lost, unless it said goodbye here or was lost here too.
func (m *Mesh) MarkLost(rank int, err error) {
	failpoint.At("tcp.lose")
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.mu.conns[rank]
	if m.mu.err != nil || c.gone != nil {
		return
	}
	if c.read(); c.gone != nil {
		return
	}
	c.close(err)
	m.lose(err)
	m.report(transport.Loss{Rank: rank, How: transport.Died, Err: err})
}
