// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/bundle"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// Evidence is what was observed when a job failed or hung, before any worker was signalled.
type Evidence struct {
	Taken time.Time     `json:"taken"`
	Took  time.Duration `json:"took"`
	Ranks []RankState   `json:"ranks"`
	// Waits are the store's waiters.
	Waits []StoreWait `json:"waits,omitempty"`
}

// RankState is what a live worker was doing.
type RankState struct {
	Rank cohort.Rank `json:"rank"`
	PID  int         `json:"pid"`
	// Doing is the line of the program that matters most, in words; empty where there is none.
	Doing string `json:"doing,omitempty"`
	// Idle is how long its main thread had not run, so that it had been there for at least as long; 0: not known.
	Idle time.Duration `json:"idle,omitempty"`
	// Stack is the text of all Python stacks, or of all goroutines; Error why there is none.
	Stack string `json:"stack,omitempty"`
	Error string `json:"error,omitempty"`
}

// StoreWait is a client of the job's store that waits for a key.
type StoreWait struct {
	Key   string      `json:"key"`
	Rank  cohort.Rank `json:"rank"` // [cohort.NoRank]: not known
	Since time.Time   `json:"since"`
}

// Of returns the state of a rank, or nil.
func (e *Evidence) Of(rank cohort.Rank) *RankState {
	if e == nil {
		return nil
	}
	for i := range e.Ranks {
		if e.Ranks[i].Rank == rank {
			return &e.Ranks[i]
		}
	}
	return nil
}

// look takes evidence in the background and puts it into the inbox.
func (a *attempt) look(bool) {
	c := collection{time: evidenceTime, running: &a.inspectors.running, read: func(ctx context.Context, rank cohort.Rank, pid int) RankState {
		return readRank(ctx, &a.job.reader, rank, pid)
	}}
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

// collection takes evidence within a time. What comes later is left out: the workers must not wait for it.
type collection struct {
	time    time.Duration
	ranks   []RankState // to be read; each says that it was not
	read    func(ctx context.Context, rank cohort.Rank, pid int) RankState
	waits   func() []StoreWait // nil: there is no store
	running *sync.WaitGroup    // of those who still look when the time is over
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

// idleTime bounds the question how long a worker has stood still: where it stands matters more.
const idleTime = 20 * time.Millisecond

// recorderFiles begins the names of the files that PyTorch's flight recorders write into the folder of the run.
const recorderFiles = "flight_recorder_"

// keptBundles is how many runs' evidence the default folder holds.
const keptBundles = 10

// saveEvidence writes the bundle: the report, for each rank its stacks and last lines; of a job that hung also what the watch has seen, flight
// recorders included; and the flight recorders that PyTorch has written in the last attempt. It holds no environment and no arguments, which may have secrets in them.
func (j *job) saveEvidence() {
	root := j.cfg.EvidenceDir
	if root == "" {
		root = bundle.Root()
	}
	if j.cfg.NoEvidence || root == "" {
		return
	}
	if j.cfg.EvidenceDir == "" { // before: that makes room, and the new one stays though the clock was set back
		bundle.Prune(root, keptBundles-1)
	}
	b := bundle.Create(root, j.cfg.RunID, j.report.Started)
	report, err := json.MarshalIndent(j.report, "", "  ")
	if err == nil {
		b.Write("report.json", append(report, '\n'))
		b.Write("report.txt", []byte(j.report.Text(nil)))
		for _, a := range slices.Backward(j.report.Attempts) { // the last one matters most
			saveAttempt(b, &a)
		}
		for _, a := range j.report.Attempts { // late, as it can take all the room that is left
			saveSeen(b, &a)
		}
		if n := len(j.report.Attempts); n > 0 { // those of others would be taken for the same ranks
			b.Keep(j.run.Path, recorderFiles+strconv.Itoa(j.report.Attempts[n-1].Number)+"_")
		}
		j.report.Bundle, err = b.Close()
	}
	if err != nil {
		j.report.Bundle = ""
		j.screen.say("the evidence cannot be written: %v", err)
	}
}

func saveAttempt(b *bundle.Bundle, a *Attempt) {
	for _, w := range a.Workers {
		name := fmt.Sprintf("attempt%d-rank%d", a.Number, w.Rank)
		b.Write(name+"-stderr.txt", []byte(w.LastErr))
		b.Write(name+"-stdout.txt", []byte(w.LastOut))
		if s := a.Evidence.Of(w.Rank); s != nil {
			b.Write(name+"-stack.txt", []byte(s.Stack))
		}
	}
	b.Write(fmt.Sprintf("attempt%d-cgroup.txt", a.Number), []byte(a.events))
}

// saveSeen writes what the watch has seen, without the flight recorders if there is no room for them.
func saveSeen(b *bundle.Bundle, a *Attempt) {
	if a.seen == nil {
		return
	}
	write := func(seen verdict.Job) bool {
		text, err := json.MarshalIndent(seen, "", "  ")
		return err == nil && b.Write(fmt.Sprintf("attempt%d-seen.json", a.Number), text)
	}
	if write(*a.seen) {
		return
	}
	short := *a.seen
	short.Ranks = slices.Clone(short.Ranks)
	for i := range short.Ranks {
		short.Ranks[i].Dump = nil
	}
	short.Notes = append(slices.Clip(short.Notes), "the flight recorders were too large for the evidence")
	write(short)
}
