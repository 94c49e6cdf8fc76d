// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/hangwatch"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/store/storegate"
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
	gateway      *storegate.Gateway
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

// signal takes a signal that the launcher has received.
func (a *attempt) signal(s os.Signal) {
	switch number, ending := a.job.setSignal(s); {
	case ending:
		a.step(launchcore.UserSignal{Signal: launchcore.Signal(number)})
	case number != 0:
		a.step(launchcore.PassedSignal{Signal: launchcore.Signal(number)})
	}
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
