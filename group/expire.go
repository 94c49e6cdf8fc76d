// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/ranklist"
	"github.com/cohort-dist/cohort/internal/sched"
)

// watchLocked makes sure that the group looks at its deadlines no later than at.
func (g *Group) watchLocked(at time.Time) {
	if g.mu.sched.State() == sched.Closed || (!g.mu.timerAt.IsZero() && !at.Before(g.mu.timerAt)) {
		return
	}
	g.mu.timerAt = at
	if g.mu.timer == nil {
		g.mu.timer = time.AfterFunc(time.Until(at), g.expire)
		return
	}
	g.mu.timer.Reset(time.Until(at))
}

// expire ends operations whose time is over. A collective takes the group with it.
func (g *Group) expire() {
	moment.At("group.expire")
	now := time.Now()
	var late *Work
	var lateMessages []*Work
	g.mu.Lock()
	g.mu.timerAt = time.Time{}
	next := time.Time{}
	over := func(w *Work) bool {
		at := w.posted.Add(w.timeout)
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
		return !at.After(now)
	}
	g.mu.sched.EachCollective(func(w *Work) {
		if over(w) && late == nil {
			late = w
		}
	})
	for _, it := range g.mu.sched.Messages() {
		if over(it.Owner) {
			lateMessages = append(lateMessages, it.Owner)
		}
	}
	if !next.IsZero() {
		g.watchLocked(next)
	}
	g.mu.Unlock()
	if m, ok := g.mesh.(interface{ Err() error }); late != nil && (!ok || m.Err() == nil) { // else it has found that itself
		e := dist.Newf("group: "+late.op.String(), dist.DeadlineExceeded, "operation %d of group %s did not complete within %v", late.seq, g.name, late.timeout)
		if m, ok := g.mesh.(interface{ Awaited() ([]int, bool) }); ok {
			if ranks, sure := m.Awaited(); len(ranks) > 0 {
				if sure {
					e.Rank = dist.Rank(ranks[0])
				}
				e.Detail += "; it waits for " + ranklist.Words(ranks)
			}
		}
		g.fail(e)
	}
	for _, w := range lateMessages {
		g.expireMessage(w)
	}
}
