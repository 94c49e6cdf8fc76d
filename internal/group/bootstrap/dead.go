// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A rank may die when it has come and others have not. That ends no attempt: another process may take its place, as it
// may for a rank that has not come. But a rank that waits, or has waited in vain, must be notified.

// deadMembers returns the ranks that joined and then died. Each rank looks after the next one that is there, and, where
// that is dead, after the one behind it.
func (a *attempt) deadMembers(ctx context.Context, missing []int) []int {
	dead, err := a.Place.Dead(ctx)
	if err != nil {
		return nil
	}
	for step := 1; step < a.p.size(); step++ {
		r := (a.p.Rank + step) % a.p.size()
		if slices.Contains(missing, r) || slices.Contains(dead, r) {
			continue
		}
		if !a.hasDied(ctx, r) {
			break
		}
		_ = a.Place.MarkDead(ctx, r)
		dead = append(dead, r)
	}
	slices.Sort(dead)
	return slices.DeleteFunc(dead, func(r int) bool { return slices.Contains(missing, r) })
}

// hasDied reports whether a rank that has come is gone, without having said so.
func (a *attempt) hasDied(ctx context.Context, r int) bool {
	caps, err := a.read(ctx, []int{r})
	if err != nil {
		return false
	}
	addr := caps[r].livenessAddr()
	if addr == "" || !refuses(ctx, addr, false) {
		return false
	}
	departed, err := a.Place.LeftOnPurpose(ctx, r)
	return err == nil && !departed
}

// recordDead keeps which ranks joined and then died: in this attempt, or in an earlier one if no rank has taken their places since.
func (p *Plan) recordDead(missing, dead []int) {
	before := slices.DeleteFunc(p.dead, func(r int) bool { return !slices.Contains(missing, r) })
	p.dead = slices.Compact(slices.Sorted(slices.Values(append(before, dead...))))
}

// joinedThenDied is what is added to the words about missing ranks.
func joinedThenDied(ranks []int) string {
	if len(ranks) == 0 {
		return ""
	}
	return "; " + ranklist.Words(ranks) + " joined and then died"
}

// successors waits in the store for the processes that may take the places of dead ranks, for those who ask the store who waits for what.
type successors struct {
	a     *attempt
	of    []int
	end   context.CancelFunc
	tasks sync.WaitGroup
}

// shownDead bounds how many ranks the name of a key lists.
const shownDead = 16

// await waits for those of the given ranks, and for no others any more.
func (h *successors) await(ctx context.Context, ranks []int) {
	client, ok := store.UnderlyingNonPrefix(h.a.p.Store).(*tcpstore.Client)
	if !ok || client.Dialect() != tcpstore.DialectNative || slices.Equal(ranks, h.of) { // other stores do not tell
		return
	}
	h.stop()
	h.of = ranks
	if len(ranks) == 0 {
		return
	}
	waiting, end := context.WithCancel(ctx)
	h.end = end
	h.tasks.Go(func() { _ = h.a.Place.AwaitReplacement(waiting, ranklist.Named(ranks[:min(len(ranks), shownDead)])) })
}

func (h *successors) stop() {
	if h.end != nil {
		h.end()
	}
	failpoint.At("bootstrap.successors.end")
	h.tasks.Wait()
}
