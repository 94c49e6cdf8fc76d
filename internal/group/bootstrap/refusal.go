// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store"
)

// Some of what ranks find while they wait makes it useless to try again: sizes that differ, a rank that two processes have. The rank that
// finds it records it as the end of the attempt and closes that. The others read there why.

const rendezvousOp = "group: rendezvous"

// useless reports whether a code says that the ranks must be started otherwise.
func useless(code cohort.Code) bool { return code == cohort.Mismatch || code == cohort.AlreadyExists }

// refuse ends the attempt of all ranks for a reason that makes it useless to try again.
func (a *attempt) refuse(why *cohort.Error) { a.refused.Store(recordRefusal(a.p, a.Place, why)) }

// recordRefusal records why an attempt is useless, unless a reason is recorded, closes it, and returns why.
func recordRefusal(p *Plan, place *assemble.Place, why *cohort.Error) *cohort.Error {
	ctx, cancel := context.WithTimeout(context.Background(), judgeLimit)
	defer cancel()
	failpoint.At("bootstrap.refuse")
	words, err := json.Marshal(ending{Code: uint8(why.Code), Rank: int(why.Rank), By: p.Rank, Detail: why.Detail})
	if err == nil {
		_ = place.Refuse(ctx, words)
	}
	return why
}

// refusal returns why the attempt is useless: as this rank has found, or another one has recorded; nil if it is not.
func (a *attempt) refusal(ctx context.Context) *cohort.Error {
	if why := a.refused.Load(); why != nil || a.Place == nil {
		return why
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), judgeLimit)
	defer cancel()
	said, _ := a.Place.Refused(look, a.since())
	for _, words := range said {
		first := new(ending)
		if printable.Unmarshal(words, first) == nil && useless(cohort.Code(first.Code)) {
			return first.to(rendezvousOp, a.p.Rank)
		}
	}
	return nil
}

// since returns the first generation after the last one in which this rank was, or that of this attempt where it is the first.
func (a *attempt) since() int64 {
	if a.p.last == nil {
		return a.Place.Generation()
	}
	return a.p.last.Generation() + 1
}

// readEnding returns what was recorded as the end of an attempt; nil if there is nothing, or the store does not answer.
func readEnding(ctx context.Context, s store.Store, place *assemble.Place) *ending {
	words, err := readIfThere(ctx, s, place.EndKey())
	first := new(ending)
	if err != nil || words == nil || printable.Unmarshal(words, first) != nil {
		return nil
	}
	return first
}

// rivals are the processes that took the place of this rank, by the word of their call of [Make].
type rivals struct {
	own  string
	seen map[string]rival
	last string // which process it was, "" if there was none
}

// before says which process had the place of this rank before.
func (r *rivals) before(rank int) string {
	if r.last == "" {
		return ""
	}
	return "; rank " + strconv.Itoa(rank) + " was taken before, by a process that is perhaps still in a group with the others: " + r.last
}

// rival is what is known of one.
type rival struct {
	first      time.Time
	generation int64
}

// rivalAfter is how long two processes take a place from each other until both fail. One whose time is over is gone by then.
const rivalAfter = time.Second

// maxRivals bounds how many are remembered.
const maxRivals = 16

// took takes in that the place was taken in a generation by a call. It reports whether that certainly runs, and has for a while: it took
// the place again after this rank had closed the generation in which it had it.
func (r *rivals) took(call string, generation int64, now time.Time) bool {
	if call == "" || call == r.own { // a release that does not say it, or this rank in the attempt before
		return false
	}
	known, ok := r.seen[call]
	if !ok {
		if len(r.seen) < maxRivals {
			r.seen[call] = rival{now, generation}
		}
		return false
	}
	return generation > known.generation && now.Sub(known.first) >= rivalAfter
}

func parseCapability(words []byte) (c capability, ok bool) {
	return c, len(words) <= maxCapability && printable.Unmarshal(words, &c) == nil
}

// taken is called when the place of this rank is taken in the open generation. It returns an error when another process keeps taking it.
func (p *Plan) taken(place *assemble.Place, words []byte, own *capability) error {
	other, ok := parseCapability(words)
	if !ok {
		return nil
	}
	if other.Call != own.Call {
		p.rivals.last = process(other.Hostname, other.PID)
	}
	if !p.rivals.took(other.Call, place.Generation(), time.Now()) {
		return nil
	}
	both := []string{p.rivals.last, process(own.Hostname, own.PID)}
	slices.Sort(both)
	e := cohort.Newf(rendezvousOp, cohort.AlreadyExists, "two processes are rank %d of group %s: %s and %s; give each its own rank",
		p.Rank, p.Name, both[0], both[1])
	e.Rank = cohort.Rank(p.Rank)
	return recordRefusal(p, place, e)
}

// A member of a group that is to be reconfigured may have closed it, and not know or not care that it is in the list
// for the next one. It says so when it closes, among the keys of the group that it leaves, and those who wait for it
// decline in its name. Of a group that was never connected there are no such keys: no rank could delete them.

// Former is where the ranks of a group were before it is made by a reconfiguration.
type Former struct {
	Place *assemble.Place // of this rank; nil if it was in no group with others
	Ranks []int           // by new rank: the one in that group, -1 for those that were not in it
}

// Whether members have left is looked at for the first time after quitAfter, since all normally come in milliseconds, then less and less
// often, at last every quitEvery. A look is one question to the store until a rank has left, then two, and one more for each that came
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
