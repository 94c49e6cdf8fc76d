// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoredbarrier is PyTorch's monitored barrier: a barrier whose error names the ranks that did not reach it. Every rank
// tells rank 0 that it is there, and rank 0 then releases all of them: all pass or none does.
package monitoredbarrier

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// Op stands in front of the errors.
const opName = "group: monitored_barrier"

// comparer is a mesh that knows what ranks called. Between EnterBarrier and LeaveBarrier, a rank that calls another collective with the
// same tag fails the mesh on all ranks, with an error that names both.
type comparer interface {
	EnterBarrier(tag uint32)
	LeaveBarrier(tag uint32)
}

// Barrier is one barrier of the ranks of a mesh.
type Barrier struct {
	Mesh transport.Mesh
	// Report and Release are the slots of the two messages. On gloo's wire they are the group's collective counter.
	Report, Release uint64
	// Tag is the group's collective counter, for a mesh that compares what ranks called.
	Tag uint32
	// Limit is how long rank 0 waits; the other ranks leave it to rank 0, which can name the late one.
	Limit time.Duration
	// All makes rank 0 wait for every rank, each for the whole limit, and name all that are late. Otherwise the time is shared, and
	// the first late rank ends the barrier.
	All bool
	// Hint follows the names of the late ranks.
	Hint string
}

// Run returns when all ranks have come, or with the reason why not. Nothing of it is posted any more then: what cannot be taken back
// fails the mesh.
func (b *Barrier) Run(ctx context.Context) error {
	if b.Mesh.Size() == 1 {
		return nil
	}
	if m, ok := b.Mesh.(comparer); ok {
		m.EnterBarrier(b.Tag)
		defer m.LeaveBarrier(b.Tag)
	}
	err := b.run(ctx)
	if e, ok := errors.AsType[*cohort.Error](err); ok && e.Code == cohort.DeadlineExceeded && e.Detail != "" {
		e.Detail += b.Hint
	}
	return err
}

func (b *Barrier) run(ctx context.Context) error {
	if b.Mesh.Rank() == 0 {
		return b.lead(ctx)
	}
	return b.follow(ctx)
}

// do posts one message and waits for it.
func (b *Barrier) do(ctx context.Context, peer int, slot uint64, buf []byte, send bool) error {
	op := &transport.Op{Peer: peer, Slot: slot, Buf: buf}
	failpoint.At("monitored.post")
	if send {
		b.Mesh.Send(op)
	} else {
		b.Mesh.Recv(op)
	}
	failpoint.At("monitored.wait")
	err := b.Mesh.Wait(ctx, op)
	b.withdraw(ctx, op, err)
	return err
}

// withdraw takes back what is posted and will not be waited for because of err.
func (b *Barrier) withdraw(ctx context.Context, op *transport.Op, err error) {
	if op.Completed() || b.Mesh.Cancel(op) || op.Completed() {
		return
	}
	b.Mesh.Fail(err) // the buffer is in use until then
	_ = b.Mesh.Wait(context.WithoutCancel(ctx), op)
}

func (b *Barrier) follow(ctx context.Context) error {
	own := binary.LittleEndian.AppendUint32(nil, uint32(b.Mesh.Rank())) //nolint:gosec // a rank
	err := b.do(ctx, 0, b.Report, own, true)
	if err == nil {
		err = b.do(ctx, 0, b.Release, make([]byte, 4), false)
	}
	if err == nil || cohort.CodeOf(err) == cohort.Mismatch { // which names both sides
		return err
	}
	here := "rank " + strconv.Itoa(b.Mesh.Rank()) + " reached the barrier"
	e := cohort.Wrap(opName, cohort.PeerLost, err)
	if e.Code == cohort.PeerLost {
		e.Rank = 0
		e.Detail = here + ", but rank 0 had an error: " + err.Error() + "; its log has the reason"
	} else if cause, ok := errors.AsType[*cohort.Error](err); ok {
		e.Rank, e.Detail = cause.Rank, here+": "+cause.Error()
	}
	return e
}

func (b *Barrier) lead(ctx context.Context) error {
	size := b.Mesh.Size()
	deadline := time.Now().Add(b.Limit)
	ops := make([]transport.Op, size)
	for r := 1; r < size; r++ {
		ops[r] = transport.Op{Peer: r, Slot: b.Report, Buf: make([]byte, 4)}
		b.Mesh.Recv(&ops[r])
	}
	var late, came []int
	var lost error
	for r := 1; r < size; r++ {
		if b.All {
			deadline = time.Now().Add(b.Limit) // each rank gets the full time again
		}
		wait, cancel := context.WithDeadline(ctx, deadline)
		if len(late) > 0 && !b.All { // only see who else is here
			cancel()
		}
		failpoint.At("monitored.lead")
		err := b.Mesh.Wait(wait, &ops[r])
		cancel()
		switch {
		case err == nil:
			came = append(came, r)
		case cohort.CodeOf(err) == cohort.Mismatch: // of the whole mesh
			b.giveUp(ctx, ops, err)
			return err
		case ctx.Err() != nil:
			e := ended(ctx, ops)
			b.giveUp(ctx, ops, err)
			return e
		default:
			late = append(late, r)
			if ops[r].Completed() && lost == nil {
				lost = err
			}
		}
	}
	if len(late) > 0 {
		e := b.failed(late, came, lost)
		b.giveUp(ctx, ops, e)
		return e
	}
	for r := 1; r < size; r++ {
		if err := b.do(ctx, r, b.Release, make([]byte, 4), true); err != nil {
			return err
		}
	}
	return nil
}

// failed names the ranks that did not come; lost is why, if it is known of one of them.
func (b *Barrier) failed(late, came []int, lost error) error {
	e := &cohort.Error{Op: opName, Code: cohort.DeadlineExceeded, Rank: cohort.Rank(late[0]), Err: lost}
	e.Detail = ranklist.Words(late) + " did not reach the barrier within " + b.Limit.String()
	if lost != nil {
		e.Code = cohort.PeerLost
		e.Detail = ranklist.Words(late) + " did not reach the barrier: " + lost.Error()
	}
	if len(came) > 0 {
		e.Detail += "; " + ranklist.Words(came) + " did"
	}
	return e
}

// ended is the error of a barrier that ended with ctx. It names the ranks that had not come.
func ended(ctx context.Context, ops []transport.Op) error {
	var late, came []int
	for r := 1; r < len(ops); r++ {
		if ops[r].Completed() && ops[r].State.Err == nil {
			came = append(came, r)
		} else {
			late = append(late, r)
		}
	}
	e := cohort.Ended(ctx, opName)
	if len(late) > 0 {
		e.Rank, e.Detail = cohort.Rank(late[0]), ranklist.Words(late)+" had not reached the barrier"
	}
	if len(late) > 0 && len(came) > 0 {
		e.Detail += "; " + ranklist.Words(came) + " had"
	}
	return e
}

// giveUp withdraws the receives that are still posted.
func (b *Barrier) giveUp(ctx context.Context, ops []transport.Op, err error) {
	for r := 1; r < len(ops); r++ {
		b.withdraw(ctx, &ops[r], err)
	}
}
