// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Status describes a job at one moment. The fields are those of launch.Status.
type Status struct {
	Program string
	Started time.Time
	// Attempt counts from 0. MaxRestarts bounds those after a failure.
	Attempt, MaxRestarts int
	// World is the number of ranks on all nodes; 0 while nodes gather.
	World int
	// Node is this node's number among Nodes.
	Node  int
	Nodes []nodecoord.Node
	// Gathering says that the job waits for nodes; nil: it does not.
	Gathering *Gathering
	// Ranks are the workers of this node.
	Ranks []WorkerStatus
	// Waits are ranks that have waited in the job's store for a while.
	Waits []StoreWait
	// Others and OtherWaits are the same of other nodes, as far as those have sent theirs: at most the first 64, each second.
	Others     []WorkerStatus
	OtherWaits []StoreWait
}

type (
	// Gathering is the wait for nodes.
	Gathering struct {
		Here, Min, Max int
		// Missing are the numbers of those that have not joined, if the others were given numbers.
		Missing []int
		Since   time.Time
	}
	// WorkerStatus describes a worker.
	WorkerStatus struct {
		Rank  cohort.Rank
		Phase WorkerPhase
		Since time.Time
		// Words say how it ended.
		Words string
		// Line is what it has printed of a line that is not finished: a progress bar, or a prompt.
		Line string
		// Printed is when it last printed something; zero: never.
		Printed time.Time
		// Section is the part of its program that it says it is in, and Entered since when; Steps is how many steps it says it has done.
		Section string
		Entered time.Time
		Steps   uint64
		lines   [2]string // of its stdout and stderr
		tails   [2]*joblog.Tail
	}
)

// WorkerPhase is what a worker does.
type WorkerPhase int

// The states of a worker.
const (
	WorkerStarting WorkerPhase = iota
	WorkerRunning
	WorkerStopping
	WorkerDone
	WorkerFailed
)

const (
	// firstShown is how long a job runs before it shows its status: one that ends at once has none.
	firstShown = 200 * time.Millisecond
	// showEvery is the time between two updates.
	showEvery = 100 * time.Millisecond
	// waitsEvery is how often the store is asked who waits, and minWaitAge the age of a wait that is shown.
	waitsEvery = 2 * time.Second
	minWaitAge = 2 * time.Second
	// maxLive bounds what is kept of a line that is not finished.
	maxLive = 1024
)

// board holds the status of a job for its readers.
type board struct {
	mu struct {
		sync.Mutex
		status Status
	}
}

// change lets f change the status.
func (b *board) change(f func(s *Status)) {
	failpoint.At("agent.board.lock")
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.mu.status)
}

// rank lets f change the status of a worker of this node.
func (b *board) rank(local int, f func(r *WorkerStatus)) {
	b.change(func(s *Status) {
		if local < len(s.Ranks) {
			f(&s.Ranks[local])
		}
	})
}

// snapshot returns a copy.
func (b *board) snapshot() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.mu.status
	s.Ranks = slices.Clone(s.Ranks)
	return s // the rest is replaced, never changed
}

// show shows the status again and again until ctx ends.
func (j *Job) show(ctx context.Context) {
	next := time.NewTimer(firstShown)
	defer next.Stop()
	asked := time.Now()
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		if time.Since(asked) > waitsEvery {
			j.scanWorkers(ctx)
			asked = time.Now()
		}
		j.screen.Show(j.board.snapshot())
		next.Reset(showEvery)
	}
}

// scanWorkers asks the store which ranks wait, and reads what the workers say of themselves.
func (j *Job) scanWorkers(ctx context.Context) {
	a := j.current.Load()
	if a == nil {
		return
	}
	ranks := map[int]int{}
	for _, w := range a.workers {
		if pid := int(w.running.Load()); pid != 0 {
			ranks[pid] = int(w.rank)
		}
	}
	said := map[cohort.Rank]verdict.Reported{}
	for pid, rank := range ranks {
		said[cohort.Rank(rank)] = jobscan.ReportedBy(pid)
	}
	found, _ := jobscan.StoreWaits(ctx, a.place.asked(), ranks)
	now := time.Now()
	waits := oldestWaits(found, now)
	j.board.change(func(s *Status) {
		if s.Attempt == a.place.attempt {
			s.Waits = waits
			for i := range s.Ranks {
				s.Ranks[i].reported(said[s.Ranks[i].Rank], now)
			}
		}
	})
}

// reported takes what a worker says of itself.
func (r *WorkerStatus) reported(said verdict.Reported, now time.Time) {
	r.Section, r.Steps = said.Section, said.Steps
	r.Entered = now.Add(-said.SectionAge)
}

// oldestWaits returns, for each rank that waits for longer than minWaitAge, the wait that is the oldest.
func oldestWaits(all []verdict.Wait, now time.Time) []StoreWait {
	byRank := map[int]verdict.Wait{}
	for _, w := range all {
		if old, found := byRank[w.Rank]; w.Rank >= 0 && w.Age >= minWaitAge && (!found || w.Age > old.Age) {
			byRank[w.Rank] = w
		}
	}
	var waits []StoreWait
	for _, w := range byRank {
		waits = append(waits, StoreWait{Rank: cohort.Rank(w.Rank), Key: w.Key, Since: now.Add(-w.Age)})
	}
	slices.SortFunc(waits, func(a, b StoreWait) int { return cmp.Compare(a.Rank, b.Rank) })
	return waits
}

// publishStart shows an attempt on the board.
func (a *attempt) publishStart() {
	ranks := make([]WorkerStatus, len(a.workers))
	for i, w := range a.workers {
		ranks[i] = WorkerStatus{Rank: w.rank, Since: a.started}
	}
	a.job.board.change(func(s *Status) {
		s.Attempt, s.World, s.Gathering, s.Waits, s.Ranks = a.place.attempt, a.place.world, nil, nil, ranks
		s.Others, s.OtherWaits = nil, nil
		s.Node, s.Nodes = a.place.node, a.place.roster
	})
}

// publishEnd shows on the board how a worker has ended.
func (a *attempt) publishEnd(w *worker) {
	a.job.board.rank(w.local, func(r *WorkerStatus) {
		r.Phase, r.Since, r.Words, r.Line, r.Section, r.Steps = WorkerDone, w.ended, w.cause.Words, "", "", 0
		if w.exit == nil || w.exit.Code != 0 {
			r.Phase = WorkerFailed
		}
	})
}

// printed shows the unfinished line of a worker on the board.
func (b *board) printed(local, stream int, line []byte) {
	text := string(line[:min(len(line), maxLive)])
	b.rank(local, func(r *WorkerStatus) {
		r.lines[stream], r.Printed = text, time.Now()
		r.Line = r.line()
	})
}
