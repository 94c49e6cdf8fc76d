// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

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

// NoteCall takes note of what this rank calls under a slot, as Begin does, but the peers hear of it only by its
// messages: they hear the rest from the first mesh.
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

// FailSilently is Fail without a word to the peers: another mesh of the same ranks tells them.
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
