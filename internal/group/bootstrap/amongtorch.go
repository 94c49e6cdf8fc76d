// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// amongTorch returns the context of the connecting in a group with PyTorch ranks. It ends, with the reason for its
// cause, when a rank is gone or a Go rank has abandoned the group. PyTorch's ranks know nothing of attempts, so the
// group cannot be formed any more: all Go ranks fail, which ends their connections to PyTorch's.
func (a *attempt) amongTorch(ctx context.Context) (limited context.Context, stop func() (over bool)) {
	limited, cancel := context.WithCancelCause(ctx)
	livenessAddrs := a.livenessAddrs() // what is known of the members is completed while they connect
	var tasks sync.WaitGroup
	lost := func(err error) { cancel(a.Failure.Judge(err)) }
	tasks.Go(func() { a.probeNextRank(limited, livenessAddrs, lost) })
	tasks.Go(func() { a.watchTorch(limited, lost) })
	tasks.Go(func() {
		if err := a.Failure.awaitReason(limited); err != nil {
			cancel(err)
		}
	})
	tasks.Go(func() { a.watchGivenUp(limited, cancel) })
	return limited, func() bool {
		cancel(nil)
		failpoint.At("bootstrap.among_torch.end")
		tasks.Wait()
		return false
	}
}

// watchTorch calls lost when a PyTorch rank has died: its connection has ended when it cannot have had the group yet.
// On a rank that has, that may be the end of its program.
func (a *attempt) watchTorch(ctx context.Context, lost func(error)) {
	for {
		failpoint.At("bootstrap.among_torch.watch")
		select {
		case loss := <-a.Failure.ended:
			if why := a.unfinished(ctx, loss.Rank); why != "" {
				e := cohort.Wrap("group: new", cohort.PeerLost, loss.Err)
				e.Rank, e.Detail = cohort.Rank(loss.Rank), "it has died or given up: its connection ended before "+why
				lost(e)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// unfinished says why the group cannot have been made yet on a PyTorch rank, "" if it can. Up to 2.2 all ranks of the
// world meet in the store after they have connected; later ones need the addresses of all, except those that connect at
// the first use.
func (a *attempt) unfinished(ctx context.Context, rank int) string {
	p := a.p
	if a.Layout == gloo.Torch113 {
		n, err := p.Store.Add(ctx, a.Layout.BarrierKey(p.torchBase(), p.Index), 0)
		if err != nil || n >= int64(p.World) {
			return ""
		}
		return "all ranks had met in the store (" + strconv.FormatInt(n, 10) + " of " + strconv.Itoa(p.World) + " had)"
	}
	var missing []int
	for r := range p.size() {
		raw, err := readIfThere(ctx, p.Store, a.Layout.FirstKey(p.meshPrefix(a.Layout), r))
		if err != nil {
			return ""
		}
		record, err := gloowire.ParseRecord(raw, p.size())
		switch {
		case raw == nil:
			missing = append(missing, r)
		case r == rank && (err != nil || record.IDs == nil):
			return ""
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return ranklist.Words(missing) + " had published an address"
}

// awaitReason waits until a rank has recorded why the group cannot be formed, and returns that, the loss of the store,
// or nil when ctx ends.
func (v *Failure) awaitReason(ctx context.Context) error {
	if !hasLongDeadline(ctx) {
		return nil
	}
	failpoint.At("group.verdict.told")
	words, err := v.store.Get(ctx, v.place.EndKey())
	if storeLost(err) {
		return cohort.Wrap("group: new", cohort.Unavailable, err)
	}
	first := new(ending)
	if err != nil || printable.Unmarshal(words, first) != nil {
		return nil //nolint:nilerr // a store that does not answer knows no reason
	}
	return first.toOthers("group: new", v.rank)
}

// hasLongDeadline waits for a while that normally suffices to connect, and reports whether ctx has not ended by then.
func hasLongDeadline(ctx context.Context) bool {
	wait := time.NewTimer(overAfter)
	defer wait.Stop()
	failpoint.At("bootstrap.among_torch.wait")
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watchGivenUp calls end when a Go rank has abandoned the group without a recorded reason: it did so before it knew of PyTorch's ranks.
func (a *attempt) watchGivenUp(ctx context.Context, end func(error)) {
	if !hasLongDeadline(ctx) || a.Place.UntilOver(ctx) != nil {
		return
	}
	ranks, err := a.Place.GaveUp(ctx)
	// another process took the place of a rank: whether that one is dead is seen at its liveness listener
	if err != nil || len(ranks) == 0 {
		return
	}
	if has, err := a.p.Store.Check(ctx, a.Place.EndKey()); has || err != nil {
		return // awaitReason reads why
	}
	if a.p.Origin.once() {
		end(a.p.gaveUp(ctx)) // as where no PyTorch rank is in the group
		return
	}
	end(&cohort.Error{
		Op: "group: new", Code: cohort.Aborted, Rank: cohort.Rank(ranks[0]),
		Detail: ranklist.Words(ranks) + " abandoned the group before the others had connected",
	})
}

// toOthers is the error of a rank, reader, that finds the reason of another one in the store.
func (e *ending) toOthers(op string, reader int) *cohort.Error {
	err := e.to(op, reader)
	if err.Code == cohort.PeerLost {
		return err
	}
	err.Detail = "rank " + strconv.Itoa(e.By) + " abandoned the group: " + e.Detail
	if err.Code == cohort.Canceled || err.Code == cohort.Unknown { // no rank here was cancelled
		err.Code = cohort.Aborted
	}
	if err.Rank == cohort.NoRank && err.Code != cohort.DeadlineExceeded { // whose time is over has waited for another rank
		err.Rank = cohort.Rank(e.By)
	}
	return err
}

// recordReason tells the other Go ranks how this rank's connecting ended, before its liveness listener closes: they
// would declare it dead. It returns what to report.
func (a *attempt) recordReason(ctx context.Context, err error) error {
	if err == nil {
		_ = a.Place.MarkConnected(ctx) // a store that does not answer declares no rank dead
		return nil
	}
	judged := a.Failure.Judge(err)
	if cohort.CodeOf(err) != cohort.PeerLost {
		return judged
	}
	if first := a.Failure.first; first != nil && first.By != a.p.Rank {
		return first.toOthers("group: new", a.p.Rank)
	}
	return judged
}
