// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/hangwatch"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
)

const (
	// minSampleInterval bounds how often a job is sampled.
	minSampleInterval = 200 * time.Millisecond
	// collectTime is how long it can take to ask NCCL, which gives up a process that does not answer after some seconds.
	collectTime = 8 * time.Second
)

// watch samples the workers again and again until ctx ends, and reports when they hang.
func (a *attempt) watch(ctx context.Context) {
	every := max(minSampleInterval, a.job.cfg.HangTimeout/hangwatch.SamplesPerHang)
	var prepared func() verdict.Job
	w, begun := hangwatch.New(a.job.cfg.HangTimeout, max(collectTime, every)), time.Now()
	for order := hangwatch.Glance; ; {
		var seen verdict.Job
		switch order {
		case hangwatch.Collect:
			seen = prepared()
		case hangwatch.Repeat:
			seen = a.examineLocal(ctx, every, jobscan.Examine)
		case hangwatch.Prepare:
			prepared = async(&a.inspectors.running, func() verdict.Job { return a.examineLocal(ctx, sampleInterval, jobscan.Examine) })
			fallthrough
		default:
			seen = a.examineLocal(ctx, every, jobscan.Glance)
		}
		if ctx.Err() != nil {
			return
		}
		var hang *hangwatch.Hang
		if order, hang = w.Took(hangwatch.Look{At: time.Since(begun), Seen: seen}); hang == nil {
			continue
		}
		select {
		case a.inspectors.inbox <- hang:
		case <-ctx.Done():
			return
		}
	}
}

// async begins to ask and returns how to wait for the answer.
func async[T any](running *sync.WaitGroup, ask func() T) func() T {
	answer := make(chan T, 1)
	running.Go(func() { answer <- ask() })
	return func() T { return <-answer }
}

// asJob describes the workers that run.
func (a *attempt) asJob() jobscan.Job {
	j := jobscan.Job{ID: a.job.cfg.RunID, World: a.place.world, Store: a.place.address()}
	if a.place.gateway.IsValid() {
		j.Gateway = a.place.asked()
	}
	for _, w := range a.workers {
		if pid := int(w.running.Load()); pid != 0 {
			j.Ranks = append(j.Ranks, jobscan.Describe(int(w.rank), pid))
		}
	}
	return j
}

// hangFound takes what the watch found.
func (a *attempt) hangFound(h *hangwatch.Hang) {
	says := "the job has been hanging for %s: %s"
	switch {
	case h.Ran:
		says = "the job may hang, it has been at the same place for %s whenever it was looked at: %s"
	case !h.Sure:
		says = "the job may hang, nothing has moved for %s: %s"
	}
	a.job.screen.logf(says, h.Since.Round(time.Second), h.Verdict.Sentence)
	for _, line := range h.Verdict.Proof {
		a.job.screen.logf("  %s", line)
	}
	if a.job.cfg.HangKill && h.Sure {
		for i := range h.Seen.Ranks {
			h.Seen.Ranks[i].Line = "" // it may have a secret in it
		}
		a.hang = hangFinding{h.Verdict.Sentence, &h.Seen, a.job.memory.Events()}
		a.step(launchcore.Hung{})
	}
}
