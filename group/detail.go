// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// checks is the part of a group with PyTorch ranks that run with TORCH_DISTRIBUTED_DEBUG=DETAIL.
type checks struct {
	wrapper *gloo.Wrapper
	turn    chan struct{} // held by the operation that is being checked and posted
}

// checked compares an operation with what the other ranks are going to run, and posts it, unless this rank refuses it. A difference takes
// no sequence number and leaves the group as it was, on all ranks; any other failure of the check fails the group.
func (g *Group) checked(ctx context.Context, w *Work, tags uint32, refused *collective.Refusal) *Work {
	if err := ctx.Err(); err != nil {
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	failpoint.At("group.check.turn")
	select {
	case g.checks.turn <- struct{}{}:
	case <-ctx.Done():
		return w.complete(cohort.FromContext(ctx, "group: "+w.op.String()))
	}
	defer func() { <-g.checks.turn }()
	failpoint.At("group.check")
	g.mu.Lock()
	err := g.failedLocked(w.op)
	limit := w.submitted.timeout
	if limit <= 0 {
		limit = g.mu.timeout
	}
	fingerprint := gloo.Fingerprint{Op: uint8(w.op), Sequence: g.mu.torchSeq}
	g.mu.Unlock()
	if err != nil {
		return w.complete(err)
	}
	pairs := g.args.Peers.PairsComplex(torchcaps.Op(w.op))
	for _, t := range w.call.Subject {
		if t != nil {
			fingerprint.Add(t.DType(), t.Shape(), pairs)
		}
	}
	if s := w.call.Sparse; s != nil {
		fingerprint.Add(s.Values.DType(), s.Shape, pairs)
	}
	if err := g.checks.wrapper.Check(ctx, &fingerprint, limit); err != nil {
		if !errors.Is(err, cohort.Mismatch) {
			g.fail(err)
			failpoint.At("group.check.failed")
			g.mu.Lock()
			err = g.mu.failure
			g.mu.Unlock()
		}
		return w.complete(err)
	}
	if refused != nil {
		g.skip(tags)
		return w.complete(refused.Reason)
	}
	w.submitted.checked = true
	w = g.post(ctx, w, tags)
	if w.outcome.over.Load() && w.outcome.err != nil {
		g.fail(w.outcome.err) // it was announced and is not there: the ranks are out of step
	}
	return w
}
