// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/muster"
)

// A member of a group that is to be reconfigured may have closed it, and not know or not care that it is in the list for the next one. It says
// so when it closes, among the keys of the group that it leaves, and those who wait for it decline in its name. Of a group that was never
// connected there are no such keys: nobody could delete them.

// Former is where the ranks of a group were before it is made by a reconfiguration.
type Former struct {
	Place *muster.Place // of this rank; nil if it was in no group with others
	Ranks []int         // by new rank: the one in that group, -1 for those that were not in it
}

// former returns the rank before of a new rank, -1 if nothing is known of it.
func (p *Plan) former(r int) int {
	if p.Former.Place == nil {
		return -1
	}
	return p.Former.Ranks[r]
}

// quitAfter is how long the ranks may take to come before one looks whether others have left: normally it takes milliseconds.
const quitAfter = 200 * time.Millisecond

// watchFirst declines in the name of the new rank 0, for whose claim the others wait, if it has left. stop ends that.
func (p *Plan) watchFirst(ctx context.Context, handles []string) (stop func()) {
	if p.former(0) < 0 {
		return func() {}
	}
	first := *p
	first.Rank = 0
	return later(ctx, func(ctx context.Context) {
		if first.Former.Place.AwaitQuit(ctx, first.former(0)) == nil {
			first.Decline(ctx, handles)
		}
	})
}

// watchQuits declines in the names of ranks that have left. Each rank looks after those between it and the next one that has come, so
// the store is asked once for each that has not.
func (a *attempt) watchQuits(ctx context.Context) (stop func()) {
	if a.p.Former.Place == nil || !slices.ContainsFunc(a.p.Former.Ranks, func(r int) bool { return r >= 0 }) {
		return func() {}
	}
	p := *a.p
	return later(ctx, func(ctx context.Context) {
		var tasks sync.WaitGroup
		defer func() {
			moment.At("form.quit.all")
			tasks.Wait()
		}()
		for step := 1; step < p.size(); step++ {
			absent := p
			absent.Rank = (p.Rank + step) % p.size()
			if came, err := p.Store.Check(ctx, a.Place.Key(absent.Rank)); err != nil || came {
				return
			}
			if absent.former(absent.Rank) >= 0 {
				tasks.Go(func() { a.awaitQuit(ctx, &absent) })
			}
		}
	})
}

// awaitQuit declines for a rank when it leaves without having come.
func (a *attempt) awaitQuit(ctx context.Context, absent *Plan) {
	if absent.Former.Place.AwaitQuit(ctx, absent.former(absent.Rank)) != nil {
		return
	}
	if came, err := absent.Store.Check(ctx, a.Place.Key(absent.Rank)); err == nil && !came {
		absent.decline(ctx)
	}
}

// later calls watch after a while, unless it is stopped before. stop ends its context and waits for it.
func later(ctx context.Context, watch func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var task sync.WaitGroup
	task.Go(func() {
		moment.At("form.quit")
		t := time.NewTimer(quitAfter)
		defer t.Stop()
		select {
		case <-t.C:
			watch(ctx)
		case <-ctx.Done():
		}
	})
	return func() {
		cancel()
		moment.At("form.quit.end")
		task.Wait()
	}
}
