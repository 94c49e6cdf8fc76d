// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// Evidence is what was observed when a job failed or hung, before any worker was signalled.
type Evidence struct {
	Taken time.Time
	Took  time.Duration
	Ranks []RankState
	Waits []StoreWait // in the store
}

// RankState is what a live worker was doing. The fields are those of launch.RankState.
type RankState struct {
	Rank  cohort.Rank
	PID   int
	Doing string
	Idle  time.Duration
	Stack string
	Error string
}

// StoreWait is a client of the job's store that waits for a key.
type StoreWait struct {
	Key   string
	Rank  cohort.Rank // [cohort.NoRank]: not known
	Since time.Time
}

// collectEvidence takes evidence in the background and puts it into the inbox.
func (a *attempt) collectEvidence(bool) {
	c := collection{
		time: evidenceTime, running: &a.inspectors.running,
		read: func(ctx context.Context, rank cohort.Rank, pid int) RankState {
			return readRank(ctx, &a.job.reader, rank, pid)
		},
	}
	pids := make(map[int]int, len(a.workers)) // rank of each process
	for _, w := range a.workers {
		if w.exit == nil && w.pid != 0 {
			c.ranks = append(c.ranks, RankState{Rank: w.rank, PID: w.pid, Error: "it was not read in time"})
			pids[w.pid] = int(w.rank)
		}
	}
	if server := a.store; server != nil {
		c.waits = func() []StoreWait { return storeWaits(server, pids) }
	}
	a.inspectors.ask(func() any { return c.take() })
}

// collection takes evidence within a time. What arrives later is left out: the workers must not wait for it.
type collection struct {
	time    time.Duration
	ranks   []RankState // to be read; each says that it was not
	read    func(ctx context.Context, rank cohort.Rank, pid int) RankState
	waits   func() []StoreWait // nil: without a store
	running *sync.WaitGroup    // of those that still run when the time is over
}

func (c collection) take() *Evidence {
	e := &Evidence{Taken: time.Now(), Ranks: c.ranks}
	ctx, cancel := context.WithTimeout(context.Background(), c.time)
	defer cancel()
	type reading struct {
		index int
		state RankState
	}
	readings, waits := make(chan reading, len(c.ranks)), make(chan []StoreWait, 1)
	for i, r := range c.ranks {
		c.running.Go(func() { readings <- reading{i, c.read(ctx, r.Rank, r.PID)} })
	}
	left := len(c.ranks)
	if c.waits != nil {
		left++
		c.running.Go(func() { waits <- c.waits() })
	}
	for ; left > 0 && ctx.Err() == nil; left-- {
		select {
		case r := <-readings:
			e.Ranks[r.index] = r.state
		case e.Waits = <-waits:
		case <-ctx.Done():
		}
	}
	e.Took = time.Since(e.Taken)
	return e
}

// storeWaits returns who waits for which key of the store.
func storeWaits(server *tcpstore.Server, ranks map[int]int) []StoreWait {
	stats := server.Stats()
	var waits []StoreWait
	for _, w := range jobscan.Waiters(stats, server.Port(), ranks) {
		waits = append(waits, StoreWait{Key: w.Key, Rank: cohort.Rank(w.Rank), Since: stats.Time.Add(-w.Age)})
	}
	return waits
}

func readRank(ctx context.Context, reader *stacks.Reader, rank cohort.Rank, pid int) RankState {
	s := RankState{Rank: rank, PID: pid}
	p, err := reader.Read(ctx, pid)
	if errors.Is(err, stacks.ErrNotPython) { // perhaps it is Go, with a socket to ask it
		s.Stack, s.Doing = jobscan.Goroutines(ctx, jobscan.Describe(int(rank), pid))
		return s
	}
	if err != nil {
		s.Error = err.Error()
		return s
	}
	s.Stack = p.String()
	if main := p.Main(); main != nil {
		s.Doing = verdict.With(main.Frames)
		if main.State != "R" {
			limited, cancel := context.WithTimeout(ctx, idleTime)
			defer cancel()
			s.Idle = jobscan.Idle(limited, pid, main.ID)
		}
	}
	return s
}

// idleTime bounds the question how long a worker has been idle: where it is matters more.
const idleTime = 20 * time.Millisecond

// RecorderPrefix begins the names of the files that PyTorch's flight recorders write into the folder of the run.
const RecorderPrefix = "flight_recorder_"
