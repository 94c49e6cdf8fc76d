// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/dist"
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

// EndStatic repeats a barrier in the store until no worker has a call under way. Nobody can have left before the last one.
func (w *World) EndStatic(ctx context.Context, p Party, calls Calls) error {
	v := w.Watch(ctx, p, w.Others(p), ClosedWait)
	last, err := w.joinCalls(v.Context(), calls)
	if dead := v.End(); err != nil {
		if dead != nil {
			return dead
		}
		return err
	}
	w.Over(ctx) // for worlds that come later, if the store outlives this one
	return w.lastBarrier(ctx, p, last)
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

// joinCalls waits until no worker has a call under way, and returns the number of the barrier that is left.
func (w *World) joinCalls(ctx context.Context, calls Calls) (last int, err error) {
	n, err := w.FirstBarrier(ctx)
	if err != nil {
		return 0, err
	}
	for {
		if err := calls.Idle(ctx); err != nil {
			return 0, err
		}
		if _, err := w.Barrier(ctx, n, 0); err != nil {
			return 0, err
		}
		own := calls.Freeze()
		sum, err := w.Barrier(ctx, n+1, own)
		calls.Thaw()
		if err != nil {
			return 0, err
		}
		if sum == 0 {
			return n + 2, nil
		}
		n += 2
	}
}

// lastBarrier is the one after which everybody leaves. So a worker that is gone may have seen its end, and whoever hosts the
// store too: only if the barrier does not end although its workers do, one of them has died in it.
func (w *World) lastBarrier(ctx context.Context, p Party, n int) error {
	if all, err := w.Arrive(ctx, n, 0); err != nil || all {
		return err
	}
	v := w.Watch(ctx, p, w.Others(p), LastWait)
	err := w.Ready(v.Context(), n)
	dead := v.End()
	switch code := dist.CodeOf(err); {
	case err == nil, dead != nil && !w.Unfinished(ctx, n, lastGrace):
		return nil
	case dead != nil:
		return w.firstDeath(ctx, p, dead)
	case code == dist.PeerLost, code == dist.Unavailable, code == dist.Closed: // of the store
		return nil
	}
	return err
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
