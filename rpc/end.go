// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcworld"
)

// lastGrace is how long the last barrier waits for the others once a worker has died in it. None of them has anything to
// do before it.
const lastGrace = 2 * time.Second

// joinStatic repeats a barrier in the store until no worker has a call under way. Nobody can have left before the last one.
func (a *Agent) joinStatic(ctx context.Context) error {
	v := a.world.Watch(ctx, members{a}, a.others(), rpcworld.ClosedWait)
	last, err := a.joinCalls(v.Context())
	if dead := v.End(); err != nil {
		if dead != nil {
			return dead
		}
		return err
	}
	a.world.Over(ctx) // for worlds that come later, if the store outlives this one
	return a.lastBarrier(ctx, last)
}

// others are the names of all workers but this one.
func (a *Agent) others() []string {
	members := a.net.Members()
	names := make([]string, len(members))
	for i, p := range members {
		names[i] = p.Name
	}
	slices.Sort(names)
	return names
}

// joinCalls waits until no worker has a call under way, and returns the number of the barrier that is left.
func (a *Agent) joinCalls(ctx context.Context) (last int, err error) {
	n, err := a.world.FirstBarrier(ctx)
	if err != nil {
		return 0, err
	}
	for {
		if err := a.caller.Active.Idle(ctx); err != nil {
			return 0, err
		}
		if _, err := a.world.Barrier(ctx, n, 0); err != nil {
			return 0, err
		}
		own := a.caller.Active.Freeze()
		sum, err := a.world.Barrier(ctx, n+1, own)
		a.caller.Active.Thaw()
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
func (a *Agent) lastBarrier(ctx context.Context, n int) error {
	if all, err := a.world.Arrive(ctx, n, 0); err != nil || all {
		return err
	}
	v := a.world.Watch(ctx, members{a}, a.others(), rpcworld.LastWait)
	err := a.world.Ready(v.Context(), n)
	dead := v.End()
	switch code := dist.CodeOf(err); {
	case err == nil, dead != nil && !a.world.Unfinished(ctx, n, lastGrace):
		return nil
	case dead != nil:
		return a.firstDeath(ctx, dead)
	case code == dist.PeerLost, code == dist.Unavailable, code == dist.Closed: // of the store
		return nil
	}
	return err
}

// firstDeath tells the other workers of a static world of a death, unless they know of an earlier one: then that is the
// cause, and this one its consequence.
func (a *Agent) firstDeath(ctx context.Context, e *dist.Error) *dist.Error {
	first := a.world.FirstDeath(ctx, e.Peer)
	if first == e.Peer {
		return e
	}
	return a.deathOf(first, "another worker has found that it has ended")
}

// blame tells the other workers of a static world whose death has made this one give up, before they find that it is gone.
func (a *Agent) blame(ctx context.Context, err error) {
	var e *dist.Error
	if !errors.As(err, &e) || e.Code != dist.PeerLost {
		return
	}
	if _, known := a.net.Peer(e.Peer); known == nil {
		_ = a.firstDeath(ctx, e)
	}
}
