// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/collargs"
	"github.com/cohort-dist/cohort/internal/gloo"
	"github.com/cohort-dist/cohort/tensor"
)

// helperLimit is how long the other ranks may take to show up in the helper group once all are connected in the group
// itself: PyTorch makes the one right after the other.
const helperLimit = 30 * time.Second

// checks is the part of a group with PyTorch ranks that run with TORCH_DISTRIBUTED_DEBUG=DETAIL.
type checks struct {
	wrapper *gloo.Wrapper
	turn    chan struct{} // held by the operation that is being checked and posted
}

// connectChecks joins the helper group, after the group itself as PyTorch does.
func (c *choice) connectChecks(ctx context.Context, g *Group, p *plan) error {
	prefix := c.layout.WrapperPrefix(p.torchBase(), p.torchName)
	limited, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	mesh, err := gloo.Connect(limited, gloo.Config{
		Rank: g.rank, Size: g.size, Store: p.store, Prefix: prefix, Generation: c.layout.GenerationOf(), Devices: p.config.devices,
		StoreAddr: p.config.storeAddr, Timeout: p.config.connectTimeout, Logger: p.config.logger, Hook: p.config.hook, Group: g.name + " (checks)",
	})
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			e := dist.Wrap("group: checks", dist.Mismatch, err)
			e.Code = dist.Mismatch
			e.Detail = "this rank was told to check operations (" + collargs.DebugVariable + "=DETAIL or WithDetail), but a PyTorch rank does not: give it to all ranks or to none"
			return e
		}
		return err
	}
	g.args.Checked = true
	g.checks = &checks{wrapper: gloo.NewWrapper(c.layout, mesh), turn: make(chan struct{}, 1)}
	p.config.logger.Info("operations are checked before they run", slog.String("group", g.name), slog.String("reason", collargs.DebugVariable+"=DETAIL"))
	return nil
}

// checked compares an operation with what the other ranks are going to run, and posts it. A difference takes no sequence
// number and leaves the group as it was, on all ranks; any other failure of the check fails the group.
func (g *Group) checked(ctx context.Context, w *Work, tags uint32) *Work {
	if err := ctx.Err(); err != nil {
		w.complete(dist.FromContext("group: "+w.op.String(), ctx))
		return w
	}
	select {
	case g.checks.turn <- struct{}{}:
	case <-ctx.Done():
		w.complete(dist.FromContext("group: "+w.op.String(), ctx))
		return w
	}
	defer func() { <-g.checks.turn }()
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
			fingerprint.Tensors = append(fingerprint.Tensors, printOf(w.op, t))
		}
	}
	if err := g.checks.wrapper.Check(ctx, &fingerprint, limit); err != nil {
		if !errors.Is(err, dist.Mismatch) {
			g.fail(err)
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
// operations that refuse them.
func printOf(op OpType, t *tensor.Tensor) gloo.TensorPrint {
	p := gloo.TensorPrint{DType: uint8(t.DType())}
	for i := range t.Dims() {
		p.Shape = append(p.Shape, int64(t.Dim(i)))
	}
	if op == OpReduce || op == OpBroadcast || op == OpGather {
		return p
	}
	switch t.DType() {
	case tensor.Complex64:
		p.DType, p.Shape = uint8(tensor.Float32), append(p.Shape, 2)
	case tensor.Complex128:
		p.DType, p.Shape = uint8(tensor.Float64), append(p.Shape, 2)
	default:
	}
	return p
}

// errDetail is the error of a rank that was not told what the PyTorch ranks were.
func errDetail(rank int) error {
	e := dist.Newf("group: checks", dist.Mismatch, "rank %d runs with %s=DETAIL, which checks every collective beforehand: set it for this process too, or use WithDetail", rank, collargs.DebugVariable)
	e.Rank = dist.Rank(rank)
	return e
}

// helperSeen looks for a PyTorch rank that waits in the helper group.
func helperSeen(ctx context.Context, p *plan, layout gloo.Layout, members []member) error {
	prefix := layout.WrapperPrefix(p.torchBase(), p.torchName)
	for r := range members {
		if members[r].Go {
			continue
		}
		if has, err := p.store.Check(ctx, layout.FirstKey(prefix, r)); err == nil && has {
			return errDetail(r)
		}
	}
	return nil
}

// The pace at which a rank looks for a helper group that it was not told of.
const (
	helperFirst = 2 * time.Millisecond
	helperPause = 200 * time.Millisecond
	helperTries = 300
)

// watchHelper fails the group when it turns out that PyTorch's ranks check operations and wait for this one. PyTorch 2.x says
// nothing after a group was made, so there is no moment at which that is certain, other than the end of a collective.
func (g *Group) watchHelper(p *plan, layout gloo.Layout) {
	defer g.tasks.Done()
	pause := helperFirst
	t := time.NewTimer(pause)
	defer t.Stop()
	for range helperTries {
		select {
		case <-g.working.Done():
			return
		case <-t.C:
		}
		if g.proven.Load() {
			return
		}
		if err := helperSeen(g.working, p, layout, g.members); err != nil {
			if !g.proven.Load() {
				g.fail(err)
			}
			return
		}
		pause = min(2*pause, helperPause)
		t.Reset(pause)
	}
}
