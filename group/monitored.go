// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/ranklist"
	"github.com/cohort-dist/cohort/tensor"
)

// MonitoredBarrier is a barrier whose error names the ranks that did not arrive. Rank 0 hears from every other rank and
// then releases all of them: all pass or none does. Only rank 0 enforces the timeout ([WithTimeout], else the group's),
// so that it can name the culprit; the others report that rank 0 had an error.
//
// With [WaitAllRanks] rank 0 waits for every rank and names all that are late; otherwise the time is shared and the first
// late rank ends the barrier. A barrier that fails fails the group.
//
// It corresponds to torch.distributed.monitored_barrier. It takes two sequence numbers, as there.
func (g *Group) MonitoredBarrier(ctx context.Context, opts ...OpOption) error {
	var c opConfig
	for _, o := range opts {
		if o != nil {
			o.applyOp(&c)
		}
	}
	w := &Work{op: OpBarrier, source: NoSource}
	w.call.Request.Kind, w.call.Request.DType = coll.Barrier, tensor.Uint8
	limit := c.timeout
	if limit <= 0 {
		limit = g.Timeout()
	}
	if g.rank == 0 {
		// The barrier ends itself: the group's own watch must not come first.
		w.timeout = limit*time.Duration(g.size) + time.Minute
	} else {
		w.timeout = max(limit*time.Duration(2*g.size), limit+time.Hour)
	}
	barrier := &monitored{g: g, w: w, limit: limit, all: c.waitAll}
	w.steps = []step{barrier.run}
	return g.post(ctx, w, 2).Wait(ctx)
}

// monitored is one monitored barrier.
type monitored struct {
	g     *Group
	w     *Work
	limit time.Duration
	all   bool
}

// slots are those of the report and of the release. On gloo's wire they are the bare sequence numbers, as PyTorch has it;
// on the native wire they are out of the way of user tags.
func (m *monitored) slots() (report, release uint64) {
	t := uint64(m.w.call.Request.Tag)
	if m.g.transport == Gloo {
		return t, t + 1
	}
	return 1<<62 | t, 1<<62 | (t + 1)
}

func (m *monitored) run(ctx context.Context) error {
	if m.g.size == 1 {
		return nil
	}
	if m.g.rank == 0 {
		return m.lead(ctx)
	}
	return m.follow(ctx)
}

// do posts one message and waits for it. What is given up is withdrawn.
func (m *monitored) do(ctx context.Context, peer int, slot uint64, buf []byte, send bool) error {
	op := &link.Op{Peer: peer, Slot: slot, Buf: buf}
	if send {
		m.g.mesh.Send(op)
	} else {
		m.g.mesh.Recv(op)
	}
	return m.await(ctx, op)
}

func (m *monitored) await(ctx context.Context, op *link.Op) error {
	err := m.g.mesh.Wait(ctx, op)
	if err != nil && !op.Completed() && !m.g.mesh.Cancel(op) && !op.Completed() {
		m.g.mesh.Fail(err) // the buffer is in use until then
		_ = m.g.mesh.Wait(context.WithoutCancel(ctx), op)
	}
	return err
}

func (m *monitored) follow(ctx context.Context) error {
	report, release := m.slots()
	own := binary.LittleEndian.AppendUint32(nil, uint32(m.g.rank)) //nolint:gosec // a rank
	err := m.do(ctx, 0, report, own, true)
	if err == nil {
		err = m.do(ctx, 0, release, make([]byte, 4), false)
	}
	if err != nil {
		e := dist.Wrap("group: monitored_barrier", dist.PeerLost, err)
		if e.Code == dist.PeerLost {
			e.Rank = 0
			e.Detail = "rank " + strconv.Itoa(m.g.rank) + " reached the barrier, but rank 0 had an error: " + err.Error() + "; its log has the reason"
		} else if cause := asError(err); cause != nil {
			e.Rank, e.Detail = cause.Rank, "rank "+strconv.Itoa(m.g.rank)+" reached the barrier: "+cause.Error()
		}
		return e
	}
	return nil
}

func (m *monitored) lead(ctx context.Context) error {
	report, release := m.slots()
	began := time.Now()
	ops := make([]*link.Op, m.g.size)
	for r := 1; r < m.g.size; r++ {
		ops[r] = &link.Op{Peer: r, Slot: report, Buf: make([]byte, 4)}
		m.g.mesh.Recv(ops[r])
	}
	var late, came []int
	var lost error
	deadline := began.Add(m.limit)
	for r := 1; r < m.g.size; r++ {
		if m.all {
			deadline = time.Now().Add(m.limit) // each rank gets the full time again
		}
		wait, cancel := context.WithDeadline(ctx, deadline)
		if len(late) > 0 && !m.all { // only see who else is here
			cancel()
		}
		err := m.g.mesh.Wait(wait, ops[r])
		cancel()
		switch {
		case err == nil:
			came = append(came, r)
		case ops[r].Completed() && ctx.Err() == nil:
			late = append(late, r)
			if lost == nil {
				lost = err
			}
		case ctx.Err() != nil:
			m.giveUp(ctx, ops, err)
			return dist.FromContext("group: monitored_barrier", ctx)
		default:
			late = append(late, r)
		}
	}
	if len(late) > 0 {
		e := &dist.Error{Op: "group: monitored_barrier", Code: dist.DeadlineExceeded, Rank: dist.Rank(late[0]), Err: lost}
		e.Detail = ranklist.Words(late) + " did not reach the barrier within " + m.limit.String()
		if lost != nil {
			e.Code = dist.PeerLost
			e.Detail = ranklist.Words(late) + " did not reach the barrier: " + lost.Error()
		}
		if len(came) > 0 {
			e.Detail += "; " + ranklist.Words(came) + " did"
		}
		m.giveUp(ctx, ops, e)
		return e
	}
	for r := 1; r < m.g.size; r++ {
		if err := m.do(ctx, r, release, make([]byte, 4), true); err != nil {
			return err
		}
	}
	return nil
}

// giveUp withdraws the receives that are still posted.
func (m *monitored) giveUp(ctx context.Context, ops []*link.Op, err error) {
	for _, op := range ops {
		if op != nil && !op.Completed() && !m.g.mesh.Cancel(op) {
			m.g.mesh.Fail(err)
			_ = m.g.mesh.Wait(context.WithoutCancel(ctx), op)
		}
	}
}
