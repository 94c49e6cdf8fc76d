// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/hangwatch"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/launch/supervisor"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	// evidenceTime bounds the inspection of the workers before they are signalled.
	evidenceTime = 100 * time.Millisecond
	// drainTime bounds the wait for the output of workers after everything below the supervisor has ended.
	drainTime = 2 * time.Second
)

// attempt drives the machine of one attempt. One goroutine owns it.
type attempt struct {
	job          *Job
	place        place
	group        *launchcore.Group
	workers      []*worker
	store        *tcpstore.Server
	filters      [2]*joblog.Filter
	started      time.Time
	alarm        alarm
	inspectors   inspectors
	before       stacks.Places // where the workers were when they were interrupted
	found        *Evidence
	hang         hangFinding
	outcome      launchcore.Outcome
	err          error
	coordination *coordination // of a job whose members change, or nil
	member       *member       // of a job on several nodes, or nil
}

// alarm is the timer of the machine.
type alarm struct {
	timer *time.Timer
	id    int
}

// inspectors are goroutines that inspect something for the attempt.
type inspectors struct {
	running sync.WaitGroup
	inbox   chan any // their answers
}

// ask runs look in the background, which answers.
func (l *inspectors) ask(look func() any) {
	l.running.Go(func() { l.inbox <- look() })
}

// hangFinding is why the watch reported a hang.
type hangFinding struct {
	verdict string
	seen    *verdict.Job
	events  string // of the cgroup
}

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

// run runs the attempt until all its workers have ended.
func (a *attempt) run() (launchcore.Outcome, error) {
	a.job.screen.begin(a.place.world)
	a.alarm.timer = time.NewTimer(time.Hour)
	defer a.alarm.timer.Stop()
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	if a.job.cfg.HangTimeout > 0 {
		a.inspectors.running.Go(func() { a.watch(watching) })
	}
	if a.member != nil && a.member.watched {
		a.inspectors.running.Go(func() { a.shareStatus(watching) })
	}
	a.job.current.Store(a)
	defer a.job.current.Store(nil)
	a.job.memory.Forget()
	a.step(launchcore.Begin{})
	done := a.job.asked.Done()
	var remotes <-chan nodecoord.Message
	if a.member != nil {
		remotes = a.member.incoming
	}
	for !a.group.Ended() {
		failpoint.At("agent.attempt.select")
		select {
		case e, open := <-a.job.supervisor.Events():
			if !open {
				a.supervisorLost()
				continue
			}
			a.supervisorEvent(e)
		case s := <-a.job.signals:
			a.signal(s)
		case <-a.alarm.timer.C:
			a.step(launchcore.TimerFired{ID: a.alarm.id})
		case answer := <-a.inspectors.inbox:
			a.inspected(answer)
		case msg, open := <-remotes:
			if !open {
				remotes = nil
			}
			a.hostMessage(msg, open)
		case <-done:
			done = nil
			a.step(launchcore.UserSignal{Signal: launchcore.SIGTERM})
		}
	}
	stop()
	a.inspectors.running.Wait()
	a.drain()
	a.closeStore()
	a.filters[0].Close()
	a.filters[1].Close()
	return a.outcome, a.err
}

func (a *attempt) step(ev launchcore.Event) {
	for _, e := range a.group.Step(ev) {
		a.perform(e)
	}
}

func (a *attempt) perform(e launchcore.Effect) {
	switch e := e.(type) {
	case launchcore.Start:
		a.start()
	case launchcore.TakeEvidence:
		a.collectEvidence(e.Hung)
	case launchcore.Send:
		a.send(e.Workers, e.Signal, true)
	case launchcore.Pass:
		a.send(e.Workers, e.Signal, false)
	case launchcore.Mark:
		a.mark(e.Workers)
	case launchcore.Waits:
		a.announceKill(e.Workers, e.Left)
	case launchcore.FindStuck:
		a.findStuck(e.Workers)
	case launchcore.Sweep:
		if a.job.supervisor.Sweep(a.clean()) != nil {
			a.inspectors.inbox <- launchcore.Swept{}
		}
	case launchcore.SetTimer:
		a.alarm.id = e.ID
		a.alarm.timer.Reset(e.After)
	case launchcore.GoOn:
		a.reportSpared(a.workers[e.Worker], e.Spares)
	case launchcore.Failing:
		a.reportFailure(e.Hung)
	case launchcore.Ended:
		a.outcome = e.Outcome
	}
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
	if w.out, err = a.openStream(w, Stdout); err != nil {
		return err
	}
	if w.err, err = a.openStream(w, Stderr); err != nil {
		w.out.Abandon()
		w.out = nil
		return err
	}
	command := supervisor.Command{Args: c.command(w.local), Set: set, Dir: role.Dir, Mark: "COHORT_RUN=" + a.job.run.Path, CPUs: c.CPUs[w.local]}
	err = a.job.supervisor.Spawn(a.id(launchcore.Worker(w.local)), command, [3]*os.File{in, w.out.Worker(), w.err.Worker()})
	if err != nil {
		w.out.Abandon()
		w.err.Abandon()
		w.out, w.err = nil, nil
		return err
	}
	tails := [2]*joblog.Tail{w.out.Tail(), w.err.Tail()}
	a.job.board.rank(w.local, func(r *WorkerStatus) { r.tails = tails })
	w.out.Start(a.sink(w, Stdout)) // ends in drain
	w.err.Start(a.sink(w, Stderr))
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

// signal takes a signal that the launcher has received.
func (a *attempt) signal(s os.Signal) {
	switch number, ending := a.job.setSignal(s); {
	case ending:
		a.step(launchcore.UserSignal{Signal: launchcore.Signal(number)})
	case number != 0:
		a.step(launchcore.PassedSignal{Signal: launchcore.Signal(number)})
	}
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

// inspected takes what an inspector found.
func (a *attempt) inspected(answer any) {
	switch answer := answer.(type) {
	case *hangwatch.Hang:
		a.hangFound(answer)
	case silentWorkers:
		a.killSilent(answer)
	case stacks.Places:
		if a.group.Marking() { // else some were interrupted before they were read
			a.before = answer
		}
		a.step(launchcore.Marked{})
	case *Evidence:
		a.found = answer
		a.step(launchcore.EvidenceTaken{})
	case launchcore.Event:
		if r, refused := answer.(launchcore.Refused); refused {
			w := a.workers[r.Worker]
			w.cause, w.ended = postmortem.Explain(postmortem.Death{Refused: w.refused}), time.Now()
			a.publishEnd(w)
		}
		a.step(answer)
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

// drain waits until all output has been moved.
func (a *attempt) drain() {
	late := time.After(drainTime)
	for _, w := range a.workers {
		for _, s := range []*joblog.Pipe{w.out, w.err} {
			if s == nil {
				continue
			}
			select {
			case <-s.Done():
			case <-late:
				s.Break() // a process outside of our reach has it open
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

// mark remembers where the workers are.
func (a *attempt) mark(workers []launchcore.Worker) {
	pids := a.pidsOf(workers)
	a.inspectors.ask(func() any { return a.places(pids) })
}

// places is where processes stand, as far as that can be found out before they are interrupted again.
func (a *attempt) places(pids []int) stacks.Places {
	ctx, cancel := context.WithTimeout(context.Background(), a.job.cfg.Interrupt)
	defer cancel()
	return a.job.reader.Places(ctx, pids)
}

// findStuck compares where the workers stand with where they stood when they were interrupted.
func (a *attempt) findStuck(workers []launchcore.Worker) {
	before, pids := a.before, a.pidsOf(workers)
	a.inspectors.ask(func() any {
		now := a.places(pids)
		var stuck []launchcore.Worker
		for i, w := range workers {
			if before.Same(now, pids[i]) {
				stuck = append(stuck, w)
			}
		}
		return launchcore.Stuck{Workers: stuck}
	})
}

// announceKill prints whom the user is waiting for.
func (a *attempt) announceKill(workers []launchcore.Worker, left time.Duration) {
	ranks := make([]cohort.Rank, len(workers))
	for i, w := range workers {
		ranks[i] = a.workers[w].rank
	}
	still := map[bool]string{true: "still runs: it is", false: "still run: they are"}[len(ranks) == 1]
	a.job.screen.logf("%s %s killed in %v, or at once by Ctrl-C", ranklist.Named(ranks), still, left)
}
