// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"strconv"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
)

// MonitoredBarrier is PyTorch's monitored_barrier: every rank tells rank 0 that it is there, on the slot of the first tag,
// and rank 0 answers on that of the second. Both tags are the group's collective counter, used as plain slots.
//
// Rank 0 returns the ranks that did not come before ctx ended. With waitAll it waits for all of them, otherwise it
// returns with the first. The others then get no answer, as in PyTorch.
func MonitoredBarrier(ctx context.Context, mesh link.Mesh, tag1, tag2 uint32, waitAll bool) (late []int, err error) {
	rank, size := mesh.Rank(), mesh.Size()
	if rank != 0 {
		return nil, report(ctx, mesh, tag1, tag2)
	}
	ops := make([]link.Op, size)
	room := make([]byte, 4*size)
	for r := 1; r < size; r++ {
		ops[r] = link.Op{Peer: r, Slot: uint64(tag1), Buf: room[4*r : 4*r+4]}
		mesh.Recv(&ops[r])
	}
	for r := 1; r < size; r++ {
		if e := mesh.Wait(ctx, &ops[r]); e != nil {
			late = append(late, r)
			err = e
			if !waitAll {
				break
			}
		}
	}
	if len(late) > 0 {
		// What was offered cannot be taken back for certain; the group is out of step anyway.
		for r := 1; r < size; r++ {
			if !ops[r].Completed() && !mesh.Cancel(&ops[r]) {
				mesh.Fail(lateError(late, err))
				_ = mesh.Wait(context.WithoutCancel(ctx), &ops[r])
			}
		}
		return late, lateError(late, err)
	}
	answer := binary.LittleEndian.AppendUint32(nil, 0)
	for r := 1; r < size; r++ {
		ops[r] = link.Op{Peer: r, Slot: uint64(tag2), Buf: answer}
		mesh.Send(&ops[r])
	}
	for r := 1; r < size; r++ {
		if e := finish(ctx, mesh, &ops[r]); e != nil && err == nil {
			late, err = append(late, r), e
		}
	}
	return late, err
}

// report is the part of the other ranks.
func report(ctx context.Context, mesh link.Mesh, tag1, tag2 uint32) error {
	send := link.Op{Peer: 0, Slot: uint64(tag1), Buf: binary.LittleEndian.AppendUint32(nil, uint32(mesh.Rank()))} //nolint:gosec // a rank
	mesh.Send(&send)
	if err := finish(ctx, mesh, &send); err != nil {
		return err
	}
	recv := link.Op{Peer: 0, Slot: uint64(tag2), Buf: make([]byte, 4)}
	mesh.Recv(&recv)
	return finish(ctx, mesh, &recv)
}

// finish waits for op; when ctx ends first it is withdrawn, or the mesh fails, so that op is complete either way.
func finish(ctx context.Context, mesh link.Mesh, op *link.Op) error {
	err := mesh.Wait(ctx, op)
	if err == nil || op.Completed() {
		return err
	}
	if !mesh.Cancel(op) {
		mesh.Fail(err)
		_ = mesh.Wait(context.WithoutCancel(ctx), op)
	}
	return err
}

func lateError(late []int, cause error) error {
	e := dist.Wrap("gloo: monitored_barrier", dist.DeadlineExceeded, cause)
	e.Rank = dist.Rank(late[0])
	e.Detail = "ranks that did not reach the barrier:"
	for _, r := range late {
		e.Detail += " " + strconv.Itoa(r)
	}
	return e
}
