// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/worldcore"
)

// Calls counts the calls of this worker that are under way.
type Calls interface {
	// Idle waits until there is none.
	Idle(ctx context.Context) error
	// Freeze returns how many there are, and keeps new ones from beginning until Thaw.
	Freeze() int
	Thaw()
}

// lastGrace is how long the last barrier waits for the others once a worker has died in it. None of them has anything to
// do before it.
const lastGrace = 2 * time.Second

// EndStatic leaves a static world in order: when no worker has a call under way. Package worldcore decides.
func (w *World) EndStatic(ctx context.Context, p Party, calls Calls) error {
	d := &departure{w: w, p: p, calls: calls}
	defer func() { _ = d.unwatch() }()
	step := d.core.Step(worldcore.EndEvent{Kind: worldcore.Begin})
	for step.Action != worldcore.End {
		step = d.core.Step(d.do(ctx, step))
	}
	switch step.Outcome {
	case worldcore.InOrder:
		return nil
	case worldcore.Death:
		return d.dead
	default:
		return d.err
	}
}

// departure carries out what the end of a world asks for.
type departure struct {
	w     *World
	p     Party
	calls Calls
	core  worldcore.Ending
	watch *Watcher    // until the last barrier
	dead  *dist.Error // the worker that was lost
	err   error       // why the last action failed, if it was no death
}

// unwatch ends the watch over the others and says who has died in it.
func (d *departure) unwatch() *dist.Error {
	v := d.watch
	if v == nil {
		return nil
	}
	d.watch = nil
	return v.End()
}

// do performs one action.
func (d *departure) do(ctx context.Context, step worldcore.Step) worldcore.EndEvent {
	w := d.w
	switch step.Action { //nolint:exhaustive // the others are about the way to the last barrier
	case worldcore.Arrive:
		_ = d.unwatch()
		w.Over(ctx) // for worlds that come later, if the store outlives this one
		all, err := w.Arrive(ctx, step.N, 0)
		return d.result(worldcore.EndEvent{Kind: worldcore.Arrived, All: all}, nil, err)
	case worldcore.WaitLast:
		others := w.Others(d.p)
		d.watch = w.Watch(ctx, d.p, others, others, LastWait)
		err := w.Ready(d.watch.Context(), step.N)
		return d.result(worldcore.EndEvent{Kind: worldcore.Passed}, d.unwatch(), err)
	case worldcore.Look:
		return worldcore.EndEvent{Kind: worldcore.Looked, Open: w.Unfinished(ctx, step.N, lastGrace)}
	case worldcore.Name:
		d.dead = w.firstDeath(ctx, d.p, d.dead)
		return worldcore.EndEvent{Kind: worldcore.Named, Worker: d.dead.Peer}
	}
	if d.watch == nil {
		others := w.Others(d.p)
		d.watch = w.Watch(ctx, d.p, others, others, ClosedWait)
	}
	ev, err := d.approach(d.watch.Context(), step)
	var dead *dist.Error
	if err != nil {
		dead = d.unwatch()
	}
	return d.result(ev, dead, err)
}

// approach performs an action on the way to the last barrier, which nobody leaves before this worker.
func (d *departure) approach(ctx context.Context, step worldcore.Step) (worldcore.EndEvent, error) {
	switch step.Action {
	case worldcore.FindBarrier:
		n, err := d.w.FirstBarrier(ctx)
		return worldcore.EndEvent{Kind: worldcore.Found, N: n}, err
	case worldcore.WaitIdle:
		return worldcore.EndEvent{Kind: worldcore.Idle}, d.calls.Idle(ctx)
	case worldcore.Meet:
		_, err := d.w.Barrier(ctx, step.N, 0)
		return worldcore.EndEvent{Kind: worldcore.Passed}, err
	default: // worldcore.Count
		own := d.calls.Freeze()
		defer d.calls.Thaw()
		sum, err := d.w.Barrier(ctx, step.N, own)
		return worldcore.EndEvent{Kind: worldcore.Passed, Sum: sum}, err
	}
}

// result is the event of an action, or of its failure.
func (d *departure) result(ev worldcore.EndEvent, dead *dist.Error, err error) worldcore.EndEvent {
	if err == nil {
		return ev
	}
	ev = worldcore.EndEvent{Kind: worldcore.Failed}
	if dead != nil {
		d.dead, ev.Worker = dead, dead.Peer
		return ev
	}
	d.err = err
	switch dist.CodeOf(err) { //nolint:exhaustive // the others are no loss
	case dist.PeerLost, dist.Unavailable, dist.Closed: // of the store
		ev.StoreLost = true
	}
	return ev
}

// Others are the names of all workers but this one, in order.
func (w *World) Others(p Watched) []string {
	var names []string
	for _, x := range p.Workers() {
		if x.Name != w.cfg.Name {
			names = append(names, x.Name)
		}
	}
	slices.Sort(names)
	return names
}

// firstDeath tells the other workers of a static world of a death, unless they know of an earlier one: then that is the
// cause, and this one its consequence.
func (w *World) firstDeath(ctx context.Context, p Watched, e *dist.Error) *dist.Error {
	first := w.FirstDeath(ctx, e.Peer)
	if first == e.Peer {
		return e
	}
	return Death(p, first, "another worker has found that it has ended")
}

// Blame tells the other workers of a static world whose death has made this one give up, before they find that it is gone.
func (w *World) Blame(ctx context.Context, p Watched, err error) {
	var e *dist.Error
	if !errors.As(err, &e) || e.Code != dist.PeerLost {
		return
	}
	if _, known := rankOf(p, e.Peer); known && e.Peer != w.cfg.Name {
		_ = w.firstDeath(ctx, p, e)
	}
}

// Death is the error of whoever waited for a worker that died.
func Death(p Watched, worker, how string) *dist.Error {
	e := dist.New("rpc: worker", dist.PeerLost, how)
	e.Peer = worker
	if rank, known := rankOf(p, worker); known {
		e.Rank = dist.Rank(rank)
	}
	return e
}

func rankOf(p Watched, worker string) (rank int, known bool) {
	for _, x := range p.Workers() {
		if x.Name == worker {
			return x.ID, true
		}
	}
	return -1, false
}
