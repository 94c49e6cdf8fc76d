// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/internal/group/monitoredbarrier"
)

// MonitoredBarrier is a barrier whose error names the ranks that did not arrive. Rank 0 hears from every other rank and
// then releases all of them: all pass or none does. Only rank 0 enforces the timeout ([WithTimeout], else the group's),
// so that it can name the culprit; the others report that rank 0 had an error.
//
// The timeout is for all ranks together: when it has passed, the error names every rank that has not arrived, and its Rank is the
// first of them. With [WaitAllRanks] rank 0 waits that long for each rank in turn, so that ranks that are only slow are not named.
// A barrier that fails fails the group.
//
// It corresponds to torch.distributed.monitored_barrier. It takes two sequence numbers, as there.
func (g *Group) MonitoredBarrier(ctx context.Context, opts ...OpOption) error {
	var c opConfig
	for _, o := range opts {
		if o != nil {
			o.applyOp(&c)
		}
	}
	w := workOf(OpBarrier)
	g.args.Barrier(&w.call)
	limit := c.timeout
	if limit <= 0 {
		limit = g.Timeout()
	}
	if g.rank == 0 {
		// The barrier ends itself: the group's own watch must not come first.
		w.submitted.timeout = limit*time.Duration(g.size) + time.Minute
	} else {
		w.submitted.timeout = max(limit*time.Duration(2*g.size), limit+time.Hour)
	}
	w.steps.add(func(ctx context.Context) error {
		b := monitoredbarrier.Barrier{Mesh: g.mesh, Limit: limit, All: c.waitAll}
		// On gloo's wire the slots are the bare sequence numbers, as PyTorch has it; on the native wire they are out of the way
		// of user tags.
		if b.Report = uint64(w.call.Request.Tag); g.Transport() != Gloo {
			b.Report |= 1 << 62
		}
		b.Release = b.Report + 1
		return b.Run(ctx)
	})
	return g.post(ctx, w, 2).Wait(ctx)
}
