// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// mesh is several meshes of the same ranks. It implements transport.Mesh and native.Checker.
type mesh struct {
	first  *nativetcp.Mesh
	others []*mover
	split  int // the shortest message that is cut
	shared bool
	live   atomic.Int32 // calls that the movers know of
	tasks  sync.WaitGroup
	close  sync.Once
	leaves atomic.Bool // Close was called

	mu struct {
		sync.Mutex
		announced []uint64 // the slots of these calls
	}
}

// newMesh makes one mesh of several. They are driven from now on.
func newMesh(lanes []*nativetcp.Mesh, shared bool) *mesh {
	m := &mesh{first: lanes[0], split: max(leastSplit, leastPart*len(lanes)), shared: shared}
	for _, lane := range lanes[1:] {
		v := newMover(lane, &m.live)
		m.others = append(m.others, v)
		m.tasks.Go(v.run)
	}
	return m
}

// Rank is the own rank.
func (m *mesh) Rank() int { return m.first.Rank() }

// Size is the number of ranks.
func (m *mesh) Size() int { return m.first.Size() }

// Lanes is how many connections there are between two ranks.
func (m *mesh) Lanes() int { return 1 + len(m.others) }

// Begin takes note of what this rank calls. The other lanes learn of it with the first message that is cut.
func (m *mesh) Begin(slot uint64, call nativewire.Call) { m.first.Begin(slot, call) }

// End takes note that the collective is over on this rank.
func (m *mesh) End(slot uint64) {
	m.first.End(slot)
	if m.live.Load() > 0 && m.retract(slot) {
		for _, v := range m.others {
			v.lane.ForgetCall(slot)
		}
		m.live.Add(-1)
	}
}

// EnterBarrier and LeaveBarrier frame a monitored barrier, as Begin and End a collective.
func (m *mesh) EnterBarrier(tag uint32) { m.first.EnterBarrier(tag) }

func (m *mesh) LeaveBarrier(tag uint32) { m.first.LeaveBarrier(tag) }

// retract reports whether the other lanes were notified of a call.
func (m *mesh) retract(slot uint64) bool {
	failpoint.At("lanes.retract")
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.mu.announced, slot)
	if i >= 0 {
		m.mu.announced = slices.Delete(m.mu.announced, i, i+1)
	}
	return i >= 0
}

// announce notifies the other lanes of a call, once.
func (m *mesh) announce(slot uint64, call nativewire.Call) {
	failpoint.At("lanes.announce")
	m.mu.Lock()
	known := slices.Contains(m.mu.announced, slot)
	if !known {
		m.mu.announced = append(m.mu.announced, slot)
		m.live.Add(1)
	}
	m.mu.Unlock()
	if !known {
		for _, v := range m.others {
			v.lane.NoteCall(slot, call)
		}
	}
}

// cut makes parts of a message that is to be cut. It returns nil for all others.
func (m *mesh) cut(op *transport.Op) []transport.Op {
	if len(op.Buf) < m.split || !nativewire.IsCollective(op.Slot) {
		return nil
	}
	call, sized := m.first.Called(op.Slot)
	if !sized {
		return nil
	}
	m.announce(nativewire.BaseSlot(op.Slot), call)
	return op.Divide(m.Lanes())
}

// Send posts a message.
func (m *mesh) Send(op *transport.Op) {
	if parts := m.cut(op); parts != nil {
		m.post(parts, true)
		op = &parts[0]
	}
	m.first.Send(op)
}

// Recv posts room for a message.
func (m *mesh) Recv(op *transport.Op) {
	if parts := m.cut(op); parts != nil {
		m.post(parts, false)
		op = &parts[0]
	}
	m.first.Recv(op)
}

// post hands all parts but the first to the movers.
func (m *mesh) post(parts []transport.Op, send bool) {
	for i, v := range m.others {
		v.push(posted{&parts[i+1], send})
	}
}

// Wait returns when op is complete. The caller drives the first lane until its part there is.
func (m *mesh) Wait(ctx context.Context, op *transport.Op) error {
	if !op.Divided() {
		return m.first.Wait(ctx, op)
	}
	if first := &op.State.Parts[0]; !op.Completed() {
		if err := m.first.Wait(ctx, first); !first.Completed() {
			return err
		}
		if err := first.State.Err; err != nil {
			m.Fail(err) // a collective that misses a part cannot go on, and the other parts may never come
		}
		if m.shared || !await(op) {
			if err := op.Await(ctx); !op.Completed() {
				return err
			}
		}
	}
	op.Release()
	return op.State.Err
}

// await waits as long as that is right without sleeping until the other parts are complete, and reports whether they
// are: parts of a message mostly end at the same time, and who sleeps has to be woken.
func await(op *transport.Op) bool {
	var w spinwait.Waiter
	w.SetSize(len(op.Buf))
	now := spinwait.Now()
	w.Begin(now)
	for !op.Completed() {
		switch w.Next(now) {
		case spinwait.Spin:
			now = spinwait.Now()
		case spinwait.Yield:
			spinwait.YieldCore()
			now = spinwait.Now()
			w.Yielded(now)
		case spinwait.Sleep:
			return false
		}
	}
	return true
}

// Cancel withdraws an op that no peer has matched. One that was cut is not withdrawn: its peers learn of it when it is posted.
func (m *mesh) Cancel(op *transport.Op) bool { return !op.Divided() && m.first.Cancel(op) }

// Awaited returns the ranks that receives and sends wait for.
func (m *mesh) Awaited() []int {
	ranks := m.first.Awaited()
	for _, v := range m.others {
		ranks = append(ranks, v.lane.Awaited()...)
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// Fail ends every op with err. The peers are notified on the first lane. An operation that a lane ended because it was
// closed is not a failure that the peers should learn of, if another lane has not said goodbye yet; Close ends all
// others too.
func (m *mesh) Fail(err error) {
	if m.leaves.Load() {
		return
	}
	m.first.Fail(err)
	for _, v := range m.others {
		v.lane.FailSilently(err)
	}
}

// Close says goodbye on all lanes at once and releases everything.
func (m *mesh) Close() error {
	m.close.Do(func() {
		m.leaves.Store(true)
		var lanes sync.WaitGroup
		for _, v := range m.others {
			lanes.Go(func() { _ = v.lane.Close() })
		}
		_ = m.first.Close()
		failpoint.At("lanes.close")
		lanes.Wait()
		for _, v := range m.others {
			v.end()
		}
		failpoint.At("lanes.close.movers")
		m.tasks.Wait()
	})
	return nil
}

var _ transport.Mesh = (*mesh)(nil)
