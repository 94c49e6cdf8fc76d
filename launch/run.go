// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/launch/supervisor"
	"github.com/cohort-dist/cohort/internal/launch/torchevents"
	"github.com/cohort-dist/cohort/internal/sys/cgroup"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// KeeperMain runs the keeper. A program that was started with the arguments of [Config].Keeper must call it and exit with
// the code that it returns.
func KeeperMain() int { return supervisor.Main() }

// job is a run of a Config.
type job struct {
	cfg     Config
	screen  *screen
	signals <-chan os.Signal
	run     *rundir.Dir
	keeper  *supervisor.Keeper
	reader  stacks.Reader
	memory  cgroup.OOMKills
	host    string
	report  *Report
	asked   context.Context //nolint:containedctx // the caller's wish to end, which attempts watch
	current atomic.Pointer[attempt]
	events  *torchevents.Log
	last    []torchevents.Worker // of the last attempt
	board   board
	// seen is how far the job had got when this node last took part: a new host goes on from there.
	seen struct{ attempt, restarts int }
}

// Run runs a job until it has ended and reports how. The error is nil if the job succeeded, else that of [Report.Err]. The
// report is nil if nothing was tried, because cfg is wrong ([cohort.InvalidArgument]) or the keeper does not start. The end
// of ctx stops the job as SIGTERM does.
//
// It corresponds to torch.distributed.launcher.api.launch_agent, and the error to its ChildFailedError.
//
// signals are those that the caller has received: the ones of Config.SignalNames end the job, others are passed on to the
// workers. It may be nil.
func Run(ctx context.Context, cfg Config, screen Screen, signals <-chan os.Signal) (*Report, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	k, err := supervisor.Start(cfg.Keeper) // first: it starts while the rest is prepared
	if err != nil {
		return nil, unavailable("the keeper of the workers", err)
	}
	host, _ := os.Hostname()
	j := &job{
		cfg: cfg, screen: newScreen(screen), signals: signals, keeper: k, memory: cgroup.WatchOOMKills("/"), host: host, asked: ctx,
		report: &Report{RunID: cfg.RunID, Host: host, Program: cfg.Program[0], Workers: cfg.Workers, MaxRestarts: cfg.MaxRestarts, Started: time.Now()},
	}
	defer func() { _ = k.Close() }()
	j.openEvents()
	j.run, err = rundir.New(rundir.Options{Base: cfg.LogDir, RunID: cfg.RunID, Keep: cfg.Redirects.any() || cfg.Tee.any(), Shim: !cfg.NoShim, Passing: k.Remove})
	if err != nil {
		return nil, unavailable("a folder for this run", err)
	}
	if !j.run.Temporary {
		j.report.LogDir = j.run.Path
	}
	j.board.change(func(s *Status) {
		s.Program, s.Started, s.MaxRestarts = cfg.Program[0], j.report.Started, cfg.MaxRestarts
	})
	if screen.Show != nil {
		showing, stop := context.WithCancel(ctx)
		var shown sync.WaitGroup
		shown.Go(func() { j.show(showing) })
		defer shown.Wait()
		defer stop()
	}
	server, err := j.answer()
	if err != nil {
		j.screen.say("\"cohort why\" will not be able to ask this launcher: %v", err)
	}
	if cfg.MaxNodes > 1 && !cfg.spread() {
		err = j.nodes()
	} else {
		err = j.attempts()
	}
	if errors.Is(err, errEnded) {
		err = nil
	}
	j.report.Ended = time.Now()
	j.report.judge(ctx, err)
	j.closeEvents()
	if !j.report.Succeeded && err == nil {
		j.saveEvidence()
	}
	server.Close()
	if err := j.run.Close(); err != nil {
		j.screen.say("files of this run are left behind: %v", err)
	}
	return j.report, j.report.Err()
}

// attempts runs the job until it succeeds, is ended, or has failed once too often.
func (j *job) attempts() error {
	for number := 0; ; number++ {
		a, err := j.newAttempt(number, nil)
		if err != nil {
			return err
		}
		outcome, err := a.run()
		j.report.add(a.result(outcome))
		if err != nil {
			return err
		}
		last := &j.report.Attempts[number]
		switch {
		case outcome.Succeeded(), outcome.Signal != 0, len(outcome.Immortal) > 0, number >= j.cfg.MaxRestarts:
			return nil
		}
		j.screen.say("%s; restart %d of %d", last.Sentence(), number+1, j.cfg.MaxRestarts)
	}
}

// newAttempt prepares an attempt: its place and, unless another launcher gives both, its store.
func (j *job) newAttempt(number int, given func(*place)) (*attempt, error) {
	a := &attempt{job: j, started: time.Now(), inspectors: inspectors{inbox: make(chan any, 8)}}
	a.place = place{attempt: number, nodes: 1, world: j.cfg.Workers, roles: j.cfg.rolesAmong(0, 1)}
	if given != nil {
		given(&a.place)
	} else if err := a.openStore(); err != nil {
		return nil, err
	}
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
	a.begins()
	a.group = launchcore.NewGroup(j.cfg.Workers, launchcore.Limits{
		Evidence: evidenceTime, Linger: max(0, j.cfg.Linger), Grace: j.cfg.Grace, Interrupt: j.cfg.Interrupt, Kill: 5 * time.Second,
		Spares: j.cfg.spares(),
	})
	return a, nil
}

// openStore starts the store of the attempt on an address that the workers alone need: the loopback interface for a job
// on one node. Without it rank 0 hosts the store on a port that was free a moment ago.
func (a *attempt) openStore() error {
	c := a.job.cfg
	if c.spread() {
		return a.shareStore()
	}
	a.place.addr = c.MasterAddr
	setDefault(&a.place.addr, "127.0.0.1")
	address := net.JoinHostPort(a.place.addr, strconv.Itoa(c.MasterPort))
	if c.NoShim {
		l, err := net.Listen("tcp", address) //nolint:noctx // it listens for no time at all
		if err != nil {
			return storeError(address, err)
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			a.place.port = tcp.Port
		}
		return l.Close()
	}
	server, err := tcpstore.Listen(address)
	if err != nil {
		return storeError(address, err)
	}
	a.store, a.place.port, a.place.ours = server, server.Port(), true
	return nil
}

// shareStore is the store of a job whose members are on several nodes: it is at the endpoint, on this node or another.
func (a *attempt) shareStore() error {
	c := a.job.cfg
	host, text, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		return refuse("the endpoint %s: %w", c.Endpoint, err)
	}
	port, err := net.LookupPort("tcp", text) //nolint:noctx // a number, or a name of this machine
	if err != nil {
		return refuse("the endpoint %s: %w", c.Endpoint, err)
	}
	a.place.addr, a.place.port, a.place.ours = host, port, true
	if c.hosts(a.job.asked) {
		server, taken := tcpstore.Listen(c.Endpoint)
		switch {
		case taken == nil:
			a.store = server
			return nil
		case !errors.Is(taken, syscall.EADDRINUSE): // another launcher hosts it, or "cohort store serve"
			return storeError(c.Endpoint, taken)
		}
	}
	conn, err := a.job.connect(c.Endpoint, c.JoinTimeout, false)
	if err != nil {
		return err
	}
	return conn.Close()
}

func storeError(address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return cohort.Newf(op, cohort.AlreadyExists, "the port of %s is taken: leave --master-port out and a free one is chosen: %w", address, err)
	}
	return unavailable("a store on "+address, err)
}

func (a *attempt) closeStore() {
	a.coordination.close(a.job)
	if a.store != nil {
		_ = a.store.Close()
	}
}
