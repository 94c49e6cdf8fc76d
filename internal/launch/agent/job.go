// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent runs the workers of a job on one node: it starts them through the supervisor process, restarts them, takes part in the
// rendezvous of several nodes, collects evidence when they fail or hang, and reports each attempt to its caller, package launch. It
// corresponds to torch.distributed.elastic.agent.server.LocalElasticAgent.
//
// [Job] is a run of a [Config]. An attempt is driven by the pure machine [launchcore.Group]; one goroutine owns it and performs its
// effects. On several nodes a member is the connection of this node to the [nodecoord.Host] that coordinates them, and an election
// chooses the host where the endpoint is a store.
package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/launch/supervisor"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/sys/cgroup"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// Job is a run of a Config on this node.
type Job struct {
	cfg        Config
	screen     *screen
	signals    <-chan os.Signal
	run        *rundir.Dir
	supervisor *supervisor.Client
	control    *controlsock.Server
	reader     stacks.Reader
	memory     cgroup.OOMKills
	host       string
	asked      context.Context //nolint:containedctx // of the caller, whose end ends the job: attempts watch it
	current    atomic.Pointer[attempt]
	events     *eventLog
	last       []eventWorker // of the last attempt
	lastEnd    time.Time     // of the last attempt, or when the job began
	end        End
	board      board
	stopShow   func()
	// iface is the interface whose address the workers are to tell others, "" for PyTorch's choice. nameChecked says that it is chosen.
	iface       string
	nameChecked bool
	// creds are those of the launchers of several nodes, nil in plain text; announced that this was said.
	creds     *jobtls.Credentials
	announced bool
	// seen is how far the job had got when this node last took part: a new host goes on from there.
	seen struct{ attempt, restarts int }
}

// End is how a job ended, beside what its attempts say.
type End struct {
	// Err is an error of the launcher itself, or nil.
	Err error
	// Signal is the one that ended the launcher, or 0.
	Signal int
	// Job is the end of the whole job if another launcher has reported it, or has been lost; else nil.
	Job *launchcore.End
	// MaxRestarts is the number that counts: on several nodes that of the host.
	MaxRestarts int
}

// New prepares a job: its supervisor process, its folder, and the socket at which "cohort why" asks. The end of ctx stops the job as
// SIGTERM does. [Job.Close] must be called.
func New(ctx context.Context, cfg Config) (*Job, error) {
	shown := newScreen(cfg.Screen)
	creds, err := cfg.Protection.credentials(shown.logf)
	if err != nil {
		return nil, err
	}
	client, err := supervisor.Start(cfg.Supervisor) // first: it starts while the rest is prepared
	if err != nil {
		return nil, unavailable("the supervisor process", err)
	}
	host, _ := os.Hostname()
	j := &Job{
		cfg: cfg, screen: shown, creds: creds, signals: cfg.Signals, supervisor: client, memory: cgroup.WatchOOMKills("/"), host: host,
		asked: ctx, lastEnd: cfg.Started,
	}
	j.openEvents()
	j.run, err = rundir.New(rundir.Options{
		Base: cfg.LogDir, RunID: cfg.RunID, Keep: anyOf(cfg.Redirects) || anyOf(cfg.Tee), Shim: !cfg.NoShim, Passing: client.Remove,
	})
	if err != nil {
		_ = client.Close()
		return nil, unavailable("a folder for this run", err)
	}
	client.Hold(j.run.Alive())
	SweepDead(cfg.LogDir, j.screen.logf) // their processes may have the ports and the GPUs
	j.board.change(func(s *Status) {
		s.Program, s.Started, s.MaxRestarts = cfg.Roles[0].Program[0], cfg.Started, cfg.MaxRestarts
	})
	j.stopShow = j.startShow()
	if j.control, err = j.serveControl(); err != nil {
		j.screen.logf("\"cohort why\" will not be able to ask this launcher: %v", err)
	}
	return j, nil
}

// startShow begins to show the status, if that is wanted, and returns how to stop it.
func (j *Job) startShow() (stop func()) {
	if j.screen.Show == nil {
		return func() {}
	}
	showing, cancel := context.WithCancel(j.asked)
	var shown sync.WaitGroup
	shown.Go(func() { j.show(showing) })
	return func() {
		cancel()
		shown.Wait()
	}
}

// Run runs the job until it has ended.
func (j *Job) Run() End {
	var err error
	if j.cfg.MaxNodes > 1 && !j.cfg.spread() {
		err = j.nodes()
	} else {
		err = j.attempts()
	}
	if !errors.Is(err, errEnded) {
		j.end.Err = err
	}
	j.end.MaxRestarts = j.cfg.MaxRestarts
	return j.end
}

// Dir is the folder of the run, and temporary says that it is removed at the end.
func (j *Job) Dir() (path string, temporary bool) { return j.run.Path, j.run.Temporary }

// Logf prints a message of the launcher.
func (j *Job) Logf(format string, args ...any) { j.screen.logf(format, args...) }

// Close ends what New has prepared.
func (j *Job) Close() {
	j.control.Close()
	if err := j.run.Close(); err != nil {
		j.screen.logf("files of this run are left behind: %v", err)
	}
	j.stopShow()
	_ = j.supervisor.Close()
}

// attemptEnded reports the end of an attempt and returns a sentence about it.
func (j *Job) attemptEnded(a Attempt) string {
	j.lastEnd = a.Ended
	return j.cfg.AttemptEnded(a)
}

// setEnd notes how the whole job has ended, from another launcher or from the loss of it.
func (j *Job) setEnd(end launchcore.End) { j.end.Job = &end }

// setSignal notes a signal that the launcher has received, and reports whether it ends the job.
func (j *Job) setSignal(s os.Signal) (number int, ending bool) {
	n, ok := s.(syscall.Signal)
	if ending = ok && j.cfg.Ending[int(n)]; ending {
		j.end.Signal = int(n)
	}
	return int(n), ending
}

// attempts runs the job until it succeeds, is ended, or has failed once too often.
func (j *Job) attempts() error {
	for number := 0; ; number++ {
		a, err := j.newAttempt(number, nil)
		if err != nil {
			return err
		}
		outcome, err := a.run()
		sentence := j.attemptEnded(a.result(outcome))
		if err != nil {
			return err
		}
		switch {
		case outcome.Succeeded(), outcome.Signal != 0, len(outcome.Immortal) > 0, number >= j.cfg.MaxRestarts:
			return nil
		}
		j.screen.logf("%s; restart %d of %d", sentence, number+1, j.cfg.MaxRestarts)
	}
}

// newAttempt prepares an attempt: its place and, unless another launcher gives both, its store.
func (j *Job) newAttempt(number int, given func(*place)) (*attempt, error) {
	a := &attempt{job: j, started: time.Now(), inspectors: inspectors{inbox: make(chan any, 8)}}
	a.place = j.cfg.singlePlace()
	a.place.attempt = number
	if err := a.reachStore(given); err != nil {
		a.closeStore()
		return nil, err
	}
	j.chooseInterface()
	a.place.iface = j.iface
	if err := a.coordinate(); err != nil {
		a.closeStore()
		return nil, err
	}
	if err := j.run.Prepare(number, j.cfg.Workers); err != nil {
		a.closeStore()
		return nil, unavailable("a folder for this run", err)
	}
	var err error
	if a.filters, err = newFilters(j.cfg, j.run, number); err != nil {
		a.closeStore()
		return nil, err
	}
	j.beginEvents(a.place)
	for local := range j.cfg.Workers {
		a.workers = append(a.workers, &worker{local: local, rank: a.place.rank(local)})
	}
	a.publishStart()
	a.group = launchcore.NewGroup(j.cfg.Workers, launchcore.Limits{
		Evidence: evidenceTime, Linger: max(0, j.cfg.Linger), Grace: j.cfg.Grace, Interrupt: j.cfg.Interrupt, Kill: 5 * time.Second,
		Spares: j.cfg.spares(),
	})
	return a, nil
}

// op begins the text of every error of a launcher.
const op = "launch"

// refuse returns the error of a configuration that cannot be run.
func refuse(format string, args ...any) error {
	return cohort.Newf(op, cohort.InvalidArgument, format, args...)
}

// unavailable returns the error of something that the launcher needs and does not get. The code is that of err, if it has one.
func unavailable(what string, err error) error {
	e := cohort.Wrap(op, cohort.Unavailable, err)
	e.Detail = what + ": " + err.Error()
	return e
}
