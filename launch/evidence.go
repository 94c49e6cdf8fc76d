// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/jobscan"
	"github.com/cohort-dist/cohort/internal/pystack"
	"github.com/cohort-dist/cohort/internal/verdict"
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
	Rank dist.Rank `json:"rank"`
	PID  int       `json:"pid"`
	// Doing is the Python line that matters most, in words; empty where there is none.
	Doing string `json:"doing,omitempty"`
	// Stack is the text of all Python stacks, Error why there is none.
	Stack string `json:"stack,omitempty"`
	Error string `json:"error,omitempty"`
}

// StoreWait is a client of the job's store that waits for a key.
type StoreWait struct {
	Key   string    `json:"key"`
	Rank  dist.Rank `json:"rank"` // [dist.NoRank]: not known
	Since time.Time `json:"since"`
}

// Of returns the state of a rank, or nil.
func (e *Evidence) Of(rank dist.Rank) *RankState {
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
	c := collection{time: evidenceTime, running: &a.looking, read: func(ctx context.Context, rank dist.Rank, pid int) RankState {
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
	a.looking.Go(func() { a.inbox <- c.take() })
}

// collection takes evidence within a time. What comes later is left out: the workers must not wait for it.
type collection struct {
	time    time.Duration
	ranks   []RankState // to be read; each says that it was not
	read    func(ctx context.Context, rank dist.Rank, pid int) RankState
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
	for _, w := range jobscan.Waiters(stats, ranks) {
		waits = append(waits, StoreWait{Key: w.Key, Rank: dist.Rank(w.Rank), Since: stats.Time.Add(-w.Age)})
	}
	return waits
}

func readRank(ctx context.Context, reader *pystack.Reader, rank dist.Rank, pid int) RankState {
	s := RankState{Rank: rank, PID: pid}
	p, err := reader.Read(ctx, pid)
	if err != nil {
		if !errors.Is(err, pystack.ErrNotPython) {
			s.Error = err.Error()
		}
		return s
	}
	s.Stack = p.String()
	if main := p.Main(); main != nil {
		s.Doing = verdict.With(main.Frames)
	}
	return s
}

// keptBundles is how many runs' evidence the default folder holds.
const keptBundles = 10

// maxBundle bounds the files of one bundle, each of which is bounded too.
const maxBundle = 64 << 20

// saveEvidence writes the bundle: the report, and for each rank its stacks and last lines. It holds no environment and no
// arguments, which may have secrets in them.
func (j *job) saveEvidence() {
	if j.cfg.NoEvidence {
		return
	}
	dir := j.cfg.EvidenceDir
	own := dir == ""
	if own {
		dir = defaultEvidence()
		if dir == "" {
			return
		}
	}
	dir = filepath.Join(dir, j.report.Started.UTC().Format("20060102T150405Z")+"_"+j.cfg.RunID)
	if err := j.writeBundle(dir); err != nil {
		j.screen.say("the evidence cannot be written: %v", err)
		return
	}
	j.report.Bundle = dir
	if own {
		prune(filepath.Dir(dir), keptBundles)
	}
}

// defaultEvidence is the folder for bundles, "" if there is no home.
func defaultEvidence() string {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "cohort", "evidence")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "state", "cohort", "evidence")
}

func (j *job) writeBundle(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	left := maxBundle
	write := func(name string, data []byte) error {
		if len(data) == 0 || len(data) > left {
			return nil
		}
		left -= len(data)
		return os.WriteFile(filepath.Join(dir, name), data, 0o600)
	}
	report, err := json.MarshalIndent(j.report, "", "  ")
	if err != nil {
		return err
	}
	errs := []error{write("report.json", append(report, '\n')), write("report.txt", []byte(j.report.Text(nil)))}
	for _, a := range j.report.Attempts {
		for _, w := range a.Workers {
			name := fmt.Sprintf("attempt%d-rank%d", a.Number, w.Rank)
			errs = append(errs, write(name+"-stderr.txt", []byte(w.LastErr)), write(name+"-stdout.txt", []byte(w.LastOut)))
			if s := a.Evidence.Of(w.Rank); s != nil {
				errs = append(errs, write(name+"-stack.txt", []byte(s.Stack)))
			}
		}
	}
	return errors.Join(errs...)
}

// prune removes all but the newest bundles. Their names begin with their time.
func prune(dir string, keep int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var bundles []string
	for _, e := range entries {
		if len(e.Name()) > 17 && e.IsDir() && e.Name()[8] == 'T' && e.Name()[15] == 'Z' && e.Name()[16] == '_' {
			bundles = append(bundles, e.Name())
		}
	}
	slices.Sort(bundles)
	for _, name := range bundles[:max(0, len(bundles)-keep)] {
		_ = os.RemoveAll(filepath.Join(dir, name))
	}
}
