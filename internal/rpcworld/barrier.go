// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
)

// barriersAhead is how many barriers of a shutdown are looked for beyond those that the round explains.
const barriersAhead = 64

func readyKey(n int) string { return "shutdown/READY_ID_" + strconv.Itoa(n) }

func activeKey(n int) string { return "shutdown/ACTIVE_CALLS_ID_" + strconv.Itoa(n) }

// FirstBarrier finds out which barrier is the first of this world's end. PyTorch workers do not wait for others to enter it.
func (w *World) FirstBarrier(ctx context.Context) (int, error) {
	if w.round == 0 || !w.mixed {
		return 1, nil
	}
	for again, ahead := time.Millisecond, barriersAhead; ; again, ahead = min(2*again, 50*time.Millisecond), min(ahead+barriersAhead, 4096) {
		for n := range 3*w.round + 1 + ahead {
			n = (3*w.round+n)%(3*w.round+1+ahead) + 1 // the likely one first
			if there, err := w.st.Check(ctx, activeKey(n)); there || err != nil {
				return n, err
			}
		}
		if !pause(ctx, again) {
			return 0, dist.FromContext(ctx, "rpc: shutdown")
		}
	}
}

// Arrive enters a barrier with a number to add up. It reports whether everybody has entered it.
func (w *World) Arrive(ctx context.Context, n, add int) (bool, error) {
	moment.At("rpcworld.barrier.arrive")
	if _, err := w.st.Add(ctx, activeKey(n), int64(add)); err != nil {
		return false, err
	}
	count, err := w.st.Add(ctx, "shutdown/PROCESS_COUNT_ID_"+strconv.Itoa(n), 1)
	if err != nil || count != int64(w.cfg.Size) {
		return false, err
	}
	return true, w.st.Set(ctx, readyKey(n), nil)
}

// Ready waits until everybody has entered a barrier.
func (w *World) Ready(ctx context.Context, n int) error {
	moment.At("rpcworld.barrier.wait")
	return w.st.Wait(ctx, readyKey(n))
}

// Barrier waits for all workers and returns the sum of what they add.
func (w *World) Barrier(ctx context.Context, n, add int) (int64, error) {
	all, err := w.Arrive(ctx, n, add)
	if err == nil && !all {
		err = w.Ready(ctx, n)
	}
	if err != nil {
		return 0, err
	}
	return w.st.Add(ctx, activeKey(n), 0)
}

// Unfinished reports whether a barrier does not end within a while, although the store is there to tell.
func (w *World) Unfinished(ctx context.Context, n int, grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for answered := false; ; answered = true {
		there, err := w.st.Check(ctx, readyKey(n))
		if there || err != nil {
			return !there && answered && ctx.Err() != nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return true
		}
	}
}

// Over says that a static world is about to end in order, for worlds that come later.
func (w *World) Over(ctx context.Context) { _ = w.st.Set(ctx, keyOver, nil) }
