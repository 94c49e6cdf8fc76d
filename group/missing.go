// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/muster"
	"github.com/cohort-dist/cohort/observe"
)

// EventWait is emitted while a rank waits for others to form a group: first after a few seconds, then rarely. Its Detail
// says who is missing.
const EventWait observe.Kind = "group.wait"

// The pace at which a waiting rank says who is missing.
const (
	missingFirst = 3 * time.Second
	missingLater = 30 * time.Second
)

// sayWhoIsMissing tells logger and hook who is missing until stop is called.
func (c *choice) sayWhoIsMissing(ctx context.Context, p *plan) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		began := time.Now()
		t := time.NewTimer(missingFirst)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			if missing, err := c.place.Missing(ctx); err == nil && len(missing) > 0 {
				text := "rank " + strconv.Itoa(p.rank) + " of group " + p.config.name + " waits for " + rankList(missing) + ", " + haveNotCome(missing) + " (" +
					strconv.Itoa(len(p.globals)-len(missing)) + " of " + strconv.Itoa(len(p.globals)) + " are here)"
				p.config.logger.Warn("waiting for ranks that have not come", slog.String("detail", text), slog.String("group", p.config.name), slog.Any("missing", missing), slog.Duration("dur", time.Since(began)))
				p.config.hook.Emit(observe.Event{Kind: EventWait, Rank: dist.Rank(p.rank), Group: p.config.name, Dur: time.Since(began), Detail: text})
			}
			t.Reset(missingLater)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

func haveNotCome(ranks []int) string {
	if len(ranks) == 1 {
		return "which has not come"
	}
	return "which have not come"
}

// notCome is the error of a wait for other ranks that ended, one of them or, with -1, all. It says who is missing, as far as
// the store tells in time.
func (c *choice) notCome(ctx context.Context, p *plan, waitedFor int, err error) error {
	const op = "group: rendezvous"
	if ctx.Err() == nil && !errors.Is(err, muster.ErrOver) {
		return dist.Wrap(op, dist.Unavailable, err)
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpLimit)
	defer cancel()
	missing, _ := c.place.Missing(look)
	if len(missing) == 0 && waitedFor >= 0 {
		missing = []int{waitedFor}
	}
	// Who has come to an attempt before is not missing because it is not in this one yet.
	still := slices.DeleteFunc(slices.Clone(missing), func(r int) bool { return !slices.Contains(p.missing, r) })
	if len(still) == 0 {
		still = missing
	}
	p.missing = still
	if ctx.Err() == nil {
		return err // the next attempt may have them
	}
	return p.tooLate(ctx)
}

// tooLate is the error of a rank whose time to make the group is over. All ranks have the same time as a rule, so the ranks
// that were missing may be known from an attempt that another rank gave up a moment before.
func (p *plan) tooLate(ctx context.Context) error {
	e := dist.Ended("group: rendezvous", ctx)
	if len(p.missing) > 0 {
		e.Rank = dist.Rank(p.missing[0])
		e.Detail = rankList(p.missing) + " of group " + p.config.name + " did not appear"
	}
	return e
}
