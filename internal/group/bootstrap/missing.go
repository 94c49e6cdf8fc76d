// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// The pace at which a waiting rank says who is missing.
const (
	missingFirst = 3 * time.Second
	missingLater = 30 * time.Second
)

// missingLimit bounds how long a rank that gives up takes to find out who is missing.
const missingLimit = time.Second

// reportMissing tells the logger and the hook who is missing until stop is called.
func (a *attempt) reportMissing(ctx context.Context) (stop func()) {
	p := a.p
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		shown := successors{a: a}
		defer shown.stop()
		began := time.Now()
		t := time.NewTimer(missingFirst)
		defer t.Stop()
		for {
			failpoint.At("bootstrap.missing")
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			if missing, err := a.Place.Missing(ctx); err == nil && len(missing) > 0 {
				dead := a.deadMembers(ctx, missing)
				shown.await(ctx, dead)
				text := "rank " + strconv.Itoa(p.Rank) + " of group " + p.Name + " waits for " + ranklist.Words(missing) + ", " +
					notAppeared(missing) + " (" +
					strconv.Itoa(p.size()-len(missing)-len(dead)) + " of " + strconv.Itoa(p.size()) + " have joined" +
					joinedThenDied(dead) + a.hints() + ")"
				p.Logger.Warn("waiting for ranks that have not joined", slog.String("detail", text), slog.String("group", p.Name),
					slog.Any("missing", missing), slog.Any("dead", dead), slog.Duration("dur", time.Since(began)))
				p.Hook.Emit(observe.Event{
					Kind: "group.wait", Rank: cohort.Rank(p.Rank), Group: p.Name, Dur: time.Since(began),
					Detail: text,
				})
			}
			t.Reset(missingLater)
		}
	}()
	return func() {
		cancel()
		failpoint.At("bootstrap.missing.end")
		<-ended
	}
}

// hints says what may be why ranks do not come.
func (a *attempt) hints() string {
	said := a.p.rivals.before(a.p.Rank)
	if others := a.otherSizes.Load(); others != nil {
		said = *others + said
	}
	return said
}

func notAppeared(ranks []int) string {
	if len(ranks) == 1 {
		return "which has not joined"
	}
	return "which have not joined"
}

// missingError is the error of a wait for other ranks that ended, one of them or, with -1, all. It says who is missing, as far as
// the store reports in time.
func (a *attempt) missingError(ctx context.Context, waitedFor int, err error) error {
	p := a.p
	const op = "group: rendezvous"
	if ctx.Err() == nil && !errors.Is(err, assemble.ErrAttemptAbandoned) {
		return cohort.Wrap(op, cohort.Unavailable, err)
	}
	var missing []int
	failure := a.Place.GiveUp(ctx)
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), missingLimit)
	defer cancel()
	if failure == nil {
		if missing, failure = a.Place.Missing(look); failure == nil {
			p.recordDead(missing, a.deadMembers(look, missing))
		}
	}
	switch {
	case len(missing) == 0 && failure != nil:
		p.silent = failure
	case len(missing) == 0 && waitedFor >= 0:
		missing = []int{waitedFor}
	}
	p.hints = a.hints() + a.elsewhere(look, missing)
	p.narrow("appear", missing...)
	if ctx.Err() == nil {
		return err // the next attempt may have them
	}
	return p.tooLate(ctx)
}

// narrow keeps which ranks did not do what this one waits for. Who was there in an attempt before is not missing because it is not in
// this one yet.
func (p *Plan) narrow(what string, missing ...int) {
	still := slices.DeleteFunc(slices.Clone(p.missing), func(r int) bool { return !slices.Contains(missing, r) })
	switch {
	case len(missing) == 0:
	case len(still) > 0:
		p.missing = still
	default:
		p.missing, p.awaited = missing, what
	}
}

// tooLate is the error of a rank whose time to make the group is over. All ranks have the same time as a rule, so the ranks
// that were missing may be known from an attempt that another rank gave up a moment before.
func (p *Plan) tooLate(ctx context.Context) error {
	e := cohort.Ended(ctx, "group: rendezvous")
	switch {
	case len(p.missing) > 0:
		e.Rank = cohort.Rank(p.missing[0])
		e.Detail = ranklist.Words(slices.Sorted(slices.Values(p.missing))) + " of group " + p.Name + " did not " + p.awaited +
			joinedThenDied(p.dead) + p.hints
	case p.silent != nil:
		e.Detail = "the store" + atAddress(p.StoreAddr) + " does not report which ranks of group " + p.Name + " are missing: " +
			p.silent.Error()
	}
	return e
}

func atAddress(addr string) string {
	if addr == "" {
		return ""
	}
	return " at " + addr
}

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
	if !ok || client.Dialect() != tcpstore.DialectNative || slices.Equal(ranks, h.of) { // other stores do not report
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
