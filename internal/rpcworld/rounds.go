// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"strconv"

	"github.com/cohort-dist/cohort/internal/worldcore"
)

// PyTorch counts in three places, per process and for ever: the worlds it has been in (the round: part of every key), the
// all-gathers of each set of names, and the barriers of all shutdowns. A world whose start or end failed, a dynamic world
// and a shutdown that had to wait for calls count differently, so no number can be had from another. A Go worker counts
// nothing: it looks at what is in the store, and asks.

const (
	// fewRounds is how many rounds without a world are looked at before it is taken that there are no more, manyRounds how
	// many once a start has waited for a while.
	fewRounds, manyRounds = 16, 1024
	// barriersAhead is how many barriers of a shutdown are looked for beyond those that the round explains.
	barriersAhead = 64
)

// noteRound lets those who come later look for the latest round where it is. It is a hint: it may be missing or too low.
func (w *World) noteRound(ctx context.Context) error {
	text, err := lookUp(ctx, w.base, keyRounds)
	if err != nil {
		return err
	}
	if last, bad := strconv.Atoi(text); bad == nil && last >= w.round {
		return nil
	}
	return w.base.Set(ctx, keyRounds, []byte(strconv.Itoa(w.round)))
}

// LatestRound is the last round with a world, or 0.
func (w *World) LatestRound(ctx context.Context) (int, error) {
	m := worldcore.NewLatest()
	w.drive(ctx, m, nil)
	return m.Round(), m.Err()
}

// unusedRound is the first round that is not over.
func (w *World) unusedRound(ctx context.Context) (int, error) {
	for k := 0; ; k++ {
		used, err := w.usedUp(ctx, k)
		if err != nil || !used {
			return k, err
		}
	}
}

// usedUp reports whether a static world cannot start in a round any more: all ranks have come, it was a world of another
// size, or a dynamic one that everybody has left.
func (w *World) usedUp(ctx context.Context, k int) (bool, error) {
	st := w.roundStore(k)
	names := make([]string, w.cfg.Size)
	for r := range names {
		names[r] = keyNames + strconv.Itoa(r)
	}
	if all, err := st.Check(ctx, names...); all || err != nil {
		return all, err
	}
	size, err := lookUp(ctx, st, keySize)
	if err != nil || size != "" {
		return size != strconv.Itoa(w.cfg.Size), err
	}
	mode, err := lookUp(ctx, st, keyStatic)
	if err != nil || mode != "false" {
		return false, err
	}
	all, err := members(ctx, st)
	return len(all) == 0, err
}

// signOf reports whether a PyTorch rank has begun to start in a round: it publishes the address of its gloo group first.
func (w *World) signOf(ctx context.Context, k, rank int) (bool, error) {
	n := strconv.Itoa(rank)
	for _, key := range []string{"0/rank_" + n, "0/" + n} {
		if there, err := w.roundStore(k).Check(ctx, key); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// later finds the last round from first on, of n, in which a PyTorch rank has begun to start, or -1.
func (w *World) later(ctx context.Context, first, n, rank int) (int, error) {
	found := -1
	for k := first; k < first+n; k++ {
		there, err := w.signOf(ctx, k, rank)
		if err != nil {
			return -1, err
		}
		if !there {
			continue
		}
		used, err := w.usedUp(ctx, k)
		if err != nil {
			return -1, err
		}
		if !used {
			found = k
		}
	}
	return found, nil
}
