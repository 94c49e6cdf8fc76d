// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/internal/gloo/torch"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/tensor"
)

// checks is the part of a group with PyTorch ranks that run with TORCH_DISTRIBUTED_DEBUG=DETAIL.
type checks struct {
	wrapper *gloo.Wrapper
	turn    chan struct{} // held by the operation that is being checked and posted
}

// checked compares an operation with what the other ranks are going to run, and posts it. A difference takes no sequence
// number and leaves the group as it was, on all ranks; any other failure of the check fails the group.
func (g *Group) checked(ctx context.Context, w *Work, tags uint32) *Work {
	if err := ctx.Err(); err != nil {
		w.complete(dist.FromContext(ctx, "group: "+w.op.String()))
		return w
	}
	moment.At("group.check.turn")
	select {
	case g.checks.turn <- struct{}{}:
	case <-ctx.Done():
		w.complete(dist.FromContext(ctx, "group: "+w.op.String()))
		return w
	}
	defer func() { <-g.checks.turn }() // no point: it has the turn
	moment.At("group.check")
	g.mu.Lock()
	err := g.failedLocked(w.op)
	limit := w.timeout
	if limit <= 0 {
		limit = g.mu.timeout
	}
	fingerprint := gloo.Fingerprint{Op: uint8(w.op), Sequence: g.mu.torchSeq}
	g.mu.Unlock()
	if err != nil {
		w.complete(err)
		return w
	}
	for _, t := range w.call.Subject {
		if t != nil {
			fingerprint.Tensors = append(fingerprint.Tensors, printOf(w.op, g.args.Peers, t.DType(), t.Shape()))
		}
	}
	if s := w.call.Sparse; s != nil {
		fingerprint.Tensors = append(fingerprint.Tensors, printOf(w.op, g.args.Peers, s.Values.DType(), s.Shape))
	}
	if err := g.checks.wrapper.Check(ctx, &fingerprint, limit); err != nil {
		if !errors.Is(err, dist.Mismatch) {
			g.fail(err)
			moment.At("group.check.failed")
			g.mu.Lock()
			err = g.mu.failure
			g.mu.Unlock()
		}
		w.complete(err)
		return w
	}
	if w.refused != nil {
		g.skip(tags)
		w.complete(w.refused.Reason)
		return w
	}
	w = g.enqueue(ctx, w, tags)
	if w.completed.Load() && w.err != nil {
		g.fail(w.err) // it was announced and is not there: the ranks are out of step
	}
	return w
}

// printOf describes a tensor as PyTorch's Python layer hands it on: complex numbers as pairs of real ones, except to
// operations that refuse them, or take them as they are.
func printOf(op OpType, peers torch.Peers, dt tensor.DType, shape []int) gloo.TensorPrint {
	p := gloo.TensorPrint{DType: uint8(dt)}
	for _, n := range shape {
		p.Shape = append(p.Shape, int64(n))
	}
	switch op {
	case OpReduce, OpGather, OpReduceScatter, OpReduceScatterInto:
		return p
	case OpBroadcast:
		if peers.Low < torch.V2_9 {
			return p
		}
	default:
	}
	switch dt {
	case tensor.Complex64:
		p.DType, p.Shape = uint8(tensor.Float32), append(p.Shape, 2)
	case tensor.Complex128:
		p.DType, p.Shape = uint8(tensor.Float64), append(p.Shape, 2)
	default:
	}
	return p
}
