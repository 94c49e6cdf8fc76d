// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/supervisor"
)

// worker is a process of the attempt.
type worker struct {
	local          int
	rank           cohort.Rank
	pid            int
	started, ended time.Time
	exit           *supervisor.Exited
	refused        string
	out, err       *joblog.Pipe
	cause          postmortem.Cause
	sent           postmortem.Signals

	// For concurrent readers: its process, 0 unless that runs, and how it has ended.
	running atomic.Int64
	endText atomic.Pointer[string]
}

// id is the supervisor's number of a worker. Those of earlier attempts have ended.
func (a *attempt) id(w launchcore.Worker) int { return a.place.attempt<<20 | int(w) }

func (a *attempt) workerOf(id int) *worker {
	if id>>20 != a.place.attempt || id&(1<<20-1) >= len(a.workers) {
		return nil
	}
	return a.workers[id&(1<<20-1)]
}

// start asks the supervisor for all workers.
func (a *attempt) start() {
	for _, w := range a.workers {
		if err := a.spawn(w); err != nil {
			w.refused = err.Error()
			a.inspectors.inbox <- launchcore.Refused{Worker: launchcore.Worker(w.local), Rest: true}
			return // the others would only be stopped
		}
	}
}

func (a *attempt) spawn(w *worker) error {
	c := a.job.cfg
	set, err := c.environment(a.place, w.local, a.job.run)
	if err != nil {
		return err
	}
	role, _ := c.roleOf(w.local)
	in := a.job.screen.In
	if in == nil || c.Workers > 1 {
		if in, err = os.Open(os.DevNull); err != nil {
			return err
		}
		defer func() { _ = in.Close() }()
	}
	if w.out, err = a.openStream(w, streamOut); err != nil {
		return err
	}
	if w.err, err = a.openStream(w, streamErr); err != nil {
		w.out.Abandon()
		w.out = nil
		return err
	}
	command := supervisor.Command{
		Args: c.command(w.local), Set: set, Dir: role.Dir, Mark: "COHORT_RUN=" + a.job.run.Path,
		CPUs: c.CPUs[w.local],
	}
	err = a.job.supervisor.Spawn(a.id(launchcore.Worker(w.local)), command, [3]*os.File{in, w.out.Worker(), w.err.Worker()})
	if err != nil {
		w.out.Abandon()
		w.err.Abandon()
		w.out, w.err = nil, nil
		return err
	}
	tails := [2]*joblog.Tail{w.out.Tail(), w.err.Tail()}
	a.job.board.rank(w.local, func(r *WorkerStatus) { r.tails = tails })
	w.out.Start(a.sink(w, streamOut)) // ends in drain
	w.err.Start(a.sink(w, streamErr))
	return nil
}

// supervisorEvent takes a report of the supervisor.
func (a *attempt) supervisorEvent(e supervisor.Event) {
	switch {
	case e.Started != nil:
		if w := a.workerOf(e.Started.ID); w != nil {
			w.pid, w.started = e.Started.PID, e.Started.At
			w.running.Store(int64(w.pid))
			a.job.events.started(a.eventOf(w))
			a.job.board.rank(w.local, func(r *WorkerStatus) { r.Phase, r.Since = WorkerRunning, w.started })
		}
	case e.Refused != nil:
		if w := a.workerOf(e.Refused.ID); w != nil {
			w.refused, w.ended = e.Refused.Error, time.Now()
			w.cause = postmortem.Explain(postmortem.Death{Refused: w.refused})
			a.publishEnd(w)
			a.step(launchcore.Refused{Worker: launchcore.Worker(w.local)})
		}
	case e.Exited != nil:
		if w := a.workerOf(e.Exited.ID); w != nil {
			w.exit, w.ended = e.Exited, e.Exited.At
			w.running.Store(0)
			w.cause = a.explain(w)
			a.publishEnd(w)
			words := w.cause.Words
			if w.exit.Code == 0 {
				words = verdict.Succeeded
			}
			w.endText.Store(&words)
			a.coordination.lost(w.local)
			a.step(launchcore.Exited{Worker: launchcore.Worker(w.local), Code: w.exit.Code, Consequence: w.cause.Kind.Consequence()})
		}
	case e.Swept != nil:
		a.step(launchcore.Swept{})
	}
}

// supervisorLost ends the attempt when the supervisor was killed: the kernel has killed the workers with it.
func (a *attempt) supervisorLost() {
	gone := cohort.New(op, cohort.PeerLost, "the supervisor process was killed; its workers were stopped")
	if err := a.job.supervisor.Close(); err != nil {
		gone.Detail += ": " + err.Error()
	}
	a.err = gone
	for _, w := range a.workers {
		if w.exit == nil && w.refused == "" {
			w.exit, w.ended = &supervisor.Exited{Code: -9}, time.Now()
			w.cause = postmortem.Cause{Kind: postmortem.Killed, Words: "was killed with the supervisor process"}
			a.step(launchcore.Exited{Worker: launchcore.Worker(w.local), Code: -9})
		}
	}
	a.step(launchcore.EvidenceTaken{})
	a.step(launchcore.Swept{})
}

func (a *attempt) send(workers []launchcore.Worker, s launchcore.Signal, ending bool) {
	ids := make([]int, len(workers))
	for i, w := range workers {
		ids[i] = a.id(w)
		a.workers[w].sent.Note(int(s), ending)
		if ending {
			a.job.board.rank(int(w), func(r *WorkerStatus) { r.Phase, r.Since = WorkerStopping, time.Now() })
		}
	}
	_ = a.job.supervisor.Send(ids, int(s)) // a supervisor that has ended is noticed by its events
}

// clean reports whether every worker has succeeded so far: what they leave behind may end in peace then.
func (a *attempt) clean() bool {
	for _, w := range a.workers {
		if w.exit == nil || w.exit.Code != 0 {
			return false
		}
	}
	return true
}

// drain waits until all output has been moved, or for drainTime in all: a process outside of our reach may have the streams open.
func (a *attempt) drain() {
	late, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	for _, w := range a.workers {
		for _, s := range []*joblog.Pipe{w.out, w.err} {
			if s == nil {
				continue
			}
			select {
			case <-s.Done():
			case <-late.Done():
				s.Break()
				<-s.Done()
			}
		}
	}
	a.job.screen.end()
}

// pidsOf returns the processes of workers.
func (a *attempt) pidsOf(workers []launchcore.Worker) []int {
	pids := make([]int, len(workers))
	for i, w := range workers {
		pids[i] = a.workers[w].pid
	}
	return pids
}
