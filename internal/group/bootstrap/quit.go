// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A member of a group that is to be reconfigured may have closed it, and not know or not care that it is in the list
// for the next one. It says so when it closes, among the keys of the group that it leaves, and those who wait for it
// decline in its name. Of a group that was never connected there are no such keys: no rank could delete them.

// Former is where the ranks of a group were before it is made by a reconfiguration.
type Former struct {
	Place *assemble.Place // of this rank; nil if it was in no group with others
	Ranks []int           // by new rank: the one in that group, -1 for those that were not in it
}

// Whether members have left is looked at for the first time after quitAfter, since all normally come in milliseconds, then less and less
// often, at last every quitEvery. A look is one question to the store until somebody has left, then two, and one more for each that came
// before it left: at most six in any second and those, however many are waited for. Every rank looks by itself, since the others may die.
const (
	quitAfter = 200 * time.Millisecond
	quitEvery = 500 * time.Millisecond
)

// watchFirst declines in the name of the new rank 0, for whose claim the others wait, if it has left. stop ends that.
func (p *Plan) watchFirst(ctx context.Context, handles []string) (stop func()) {
	return p.watch(ctx, func(ctx context.Context, left *Plan) (passed bool) {
		if left.Rank == 0 {
			left.Decline(ctx, handles)
		}
		return left.Rank != 0
	})
}

// watchQuits declines in the names of ranks that have left without having come. stop ends that.
func (a *attempt) watchQuits(ctx context.Context) (stop func()) {
	return a.p.watch(ctx, func(ctx context.Context, left *Plan) (passed bool) {
		came, err := left.Store.Check(ctx, a.Place.Key(left.Rank))
		if err == nil && !came {
			left.decline(ctx)
		}
		return came
	})
}

// watch looks for ranks that have left until stop is called. It calls judge with the plan of each, again and again
// until that lets it pass: a store that does not answer is asked again, and one rank that does not pass is enough to
// end the attempt.
func (p *Plan) watch(ctx context.Context, judge func(ctx context.Context, left *Plan) (passed bool)) (stop func()) {
	f := p.Former
	if f.Place == nil || !slices.ContainsFunc(f.Ranks, func(r int) bool { return r >= 0 && r != f.Ranks[p.Rank] }) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var task sync.WaitGroup
	left := *p
	task.Go(func() { left.scanQuits(ctx, judge) })
	return func() {
		cancel()
		failpoint.At("bootstrap.quit.end")
		task.Wait()
	}
}

func (p *Plan) scanQuits(ctx context.Context, judge func(ctx context.Context, left *Plan) (passed bool)) {
	var passed []int
	t := time.NewTimer(quitAfter)
	defer t.Stop()
	for pause := quitAfter; ; t.Reset(pause) {
		failpoint.At("bootstrap.quit")
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		quits, _ := p.Former.Place.Quits(ctx)
		for _, r := range quits {
			if p.Rank = slices.Index(p.Former.Ranks, r); p.Rank < 0 || slices.Contains(passed, r) {
				continue
			}
			if !judge(ctx, p) {
				break
			}
			passed = append(passed, r)
		}
		pause = min(2*pause, quitEvery)
	}
}
