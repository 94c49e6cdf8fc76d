// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/jobscan"
	"github.com/cohort-dist/cohort/internal/launchcore"
	"github.com/cohort-dist/cohort/internal/verdict"
)

// Looks at a job that is watched: so many within the time after which it counts as hung, and not too often.
const (
	looksPerHang = 8
	leastBetween = 200 * time.Millisecond
)

// hung is what the watch found.
type hung struct {
	since   time.Duration
	sure    bool // false: GPUs may still compute
	verdict verdict.Verdict
	seen    verdict.Job
}

// watch looks at the workers again and again until ctx ends. When ranks wait for each other and nothing has moved for
// the time that was given, it says so, once.
func (a *attempt) watch(ctx context.Context) {
	every := max(leastBetween, a.job.cfg.HangTimeout/looksPerHang)
	last, from, said := "", time.Now(), ""
	var all func() verdict.Job
	for {
		v := verdict.Judge(a.examine(ctx, every, jobscan.Glance))
		if ctx.Err() != nil {
			return
		}
		where := strings.Join(v.Places, "\n") // without the times, which grow
		if !v.Hung && !v.Still || where != last || len(v.Moving) > 0 {
			last, from, all = where, time.Now(), nil
			continue
		}
		if all == nil && time.Since(from) >= max(a.job.cfg.HangTimeout/2, a.job.cfg.HangTimeout-max(fullLook, every)) {
			all = behind(&a.looking, func() verdict.Job { return a.examine(ctx, lookApart, jobscan.Examine) })
		}
		if time.Since(from) < a.job.cfg.HangTimeout || said == where {
			continue
		}
		seen := all()
		v = verdict.Judge(seen)
		wentOn, sure := strings.Join(v.Places, "\n") != where || !v.Hung && !v.Still, v.Hung
		if v.Still && !wentOn {
			wentOn, sure = compared(seen, a.examine(ctx, every, jobscan.Examine))
		}
		if wentOn {
			last = ""
			continue
		}
		said = where
		select {
		case a.inbox <- hung{time.Since(from), sure, v, seen}:
		case <-ctx.Done():
			return
		}
	}
}

// compared judges a job that was looked at twice, and stood still as far as could be seen, while GPUs may compute. It is sure that the
// job hangs if its flight recorders have come no further, or if there are none and a rank waits for something else than a GPU.
func compared(first, second verdict.Job) (wentOn, sure bool) {
	a, b := verdict.Judge(first), verdict.Judge(second)
	progress := verdict.Progress(first.Ranks)
	wentOn = !slices.Equal(a.Places, b.Places) || progress != verdict.Progress(second.Ranks)
	return wentOn, progress != "" || len(a.Culprits) > 0
}

// fullLook is how long it can take to ask NCCL, which gives up a process that does not answer after some seconds. The job is asked before the
// report of a hang is due, so that it does not stand still for as much longer.
const fullLook = 8 * time.Second

// behind begins to ask and returns how to wait for the answer.
func behind[T any](running *sync.WaitGroup, ask func() T) func() T {
	answer := make(chan T, 1)
	running.Go(func() { answer <- ask() })
	return func() T { return <-answer }
}

// asJob describes the workers that run.
func (a *attempt) asJob() jobscan.Job {
	j := jobscan.Job{ID: a.job.cfg.RunID, World: a.place.world, Store: a.place.address()}
	for i, w := range a.workers {
		if pid := int(a.pids[i].Load()); pid != 0 {
			j.Ranks = append(j.Ranks, jobscan.Describe(int(w.rank), pid))
		}
	}
	return j
}

// stands takes what the watch found.
func (a *attempt) stands(h hung) {
	says := "the job has been hanging for %s: %s"
	if !h.sure {
		says = "the job may hang, nothing has moved for %s: %s"
	}
	a.job.screen.say(says, h.since.Round(time.Second), h.verdict.Sentence)
	for _, line := range h.verdict.Proof {
		a.job.screen.say("  %s", line)
	}
	if a.job.cfg.HangKill && h.sure {
		for i := range h.seen.Ranks {
			h.seen.Ranks[i].Line = "" // it may have a secret in it
		}
		a.verdict, a.seen, a.events = h.verdict.Sentence, &h.seen, a.job.memory.Events()
		a.step(launchcore.Hung{})
	}
}
