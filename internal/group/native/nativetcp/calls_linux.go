// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
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

// notice looks every slice for collectives that take long, and tells all peers about each, once: they may wait for this rank in another
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
		Op: "group: " + ours.Kind.String(), Code: cohort.Mismatch, Rank: cohort.Rank(peer), Peer: m.mu.conns[peer].addr,
		Detail: "operation " + itoa(int(nativewire.TagOf(slot))) + ": rank " + itoa(peer) + " called " + theirs.String() + ", rank " +
			itoa(m.rank) + " called " + ours.String() + "; all ranks must call the same operations in the same order",
	}
}

// sized reports whether slot is a collective whose message lengths all ranks agree on, so that room is announced unasked.
func (m *Mesh) sized(slot uint64) bool {
	call := m.called(slot)
	return call != nil && call.Bytes != 0
}
