// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

// lastGrace is how long the last barrier waits for the others once a worker has died in it. None of them has anything to
// do before it.
const lastGrace = 2 * time.Second

// joinStatic repeats a barrier in the store until no worker has a call under way. Nobody can have left before the last one.
func (a *Agent) joinStatic(ctx context.Context) error {
	v := a.watchOver(ctx, a.others(), closedWait)
	last, err := a.joinCalls(v.ctx)
	if dead := v.end(); err != nil {
		if dead != nil {
			return dead
		}
		return err
	}
	_ = a.st.Set(ctx, keyOver, nil) // for worlds that come later, if the store outlives this one
	return a.lastBarrier(ctx, last)
}

// others are the names of all workers but this one.
func (a *Agent) others() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return sortedNames(a.byName)
}

// joinCalls waits until no worker has a call under way, and returns the number of the barrier that is left.
func (a *Agent) joinCalls(ctx context.Context) (last int, err error) {
	n, err := a.firstBarrier(ctx)
	if err != nil {
		return 0, err
	}
	for {
		if err := a.calls.idle(ctx); err != nil {
			return 0, err
		}
		if _, err := a.barrier(ctx, n, 0); err != nil {
			return 0, err
		}
		mine := a.calls.freeze()
		sum, err := a.barrier(ctx, n+1, mine)
		a.calls.thaw()
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
	if all, err := a.arrive(ctx, n, 0); err != nil || all {
		return err
	}
	v := a.watchOver(ctx, a.others(), lastWait)
	err := a.st.Wait(v.ctx, readyKey(n))
	dead := v.end()
	switch code := dist.CodeOf(err); {
	case err == nil, dead != nil && !a.unfinished(ctx, n):
		return nil
	case dead != nil:
		return a.firstDeath(ctx, dead)
	case code == dist.PeerLost, code == dist.Unavailable, code == dist.Closed: // of the store
		return nil
	}
	return err
}

// unfinished reports whether a barrier does not end, although the store is there to tell.
func (a *Agent) unfinished(ctx context.Context, n int) bool {
	ctx, cancel := context.WithTimeout(ctx, lastGrace)
	defer cancel()
	for answered := false; ; answered = true {
		there, err := a.st.Check(ctx, readyKey(n))
		if there || err != nil {
			return !there && answered && ctx.Err() != nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return true
		}
	}
}

func readyKey(n int) string { return "shutdown/READY_ID_" + strconv.Itoa(n) }

func activeKey(n int) string { return "shutdown/ACTIVE_CALLS_ID_" + strconv.Itoa(n) }

// arrive enters a barrier with a number to add up. It reports whether everybody has entered it.
func (a *Agent) arrive(ctx context.Context, n, add int) (bool, error) {
	if _, err := a.st.Add(ctx, activeKey(n), int64(add)); err != nil {
		return false, err
	}
	count, err := a.st.Add(ctx, "shutdown/PROCESS_COUNT_ID_"+strconv.Itoa(n), 1)
	if err != nil || count != int64(a.cfg.worldSize) {
		return false, err
	}
	return true, a.st.Set(ctx, readyKey(n), nil)
}

// barrier waits for all workers and returns the sum of what they add.
func (a *Agent) barrier(ctx context.Context, n, add int) (int64, error) {
	all, err := a.arrive(ctx, n, add)
	if err == nil && !all {
		err = a.st.Wait(ctx, readyKey(n))
	}
	if err != nil {
		return 0, err
	}
	return a.st.Add(ctx, activeKey(n), 0)
}
