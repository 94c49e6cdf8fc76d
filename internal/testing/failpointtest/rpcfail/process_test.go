// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package rpcfail

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	workerEnv = "COHORT_MOMENT_WORKER"
	victim    = "b"
	rounds    = 6 // of calls, so that there is something to interrupt
	// lostSoon is how soon a call to a dead worker ends. The promise is a second; the machine may be busy.
	lostSoon = 5 * time.Second
	// leftSoon is how soon the others have left after a death: references of the dead are kept for a while.
	leftSoon = 15 * time.Second
	// stoppedLimit is how long the others work with a worker that is stopped, and how long they try to leave.
	stoppedLimit = 6 * time.Second
)

// workers are those of a static world of processes, and victims those of them to which something happens.
var (
	workers = []string{"a", "b", "c", "d"}
	victims = []string{victim, "d"}
)

// orders are what a victim's process is told: what it does to itself, and where. Without moments it counts.
type orders struct {
	Name    string
	Addr    string
	Wire    string
	Dynamic bool          // its world has workers that come and go, and its moment may be one of joining
	Limit   time.Duration // of a call
	Moments []failpointtest.OwnEvent
}

// options are those of the worker with a rank; in a dynamic world it has none.
func (o orders) options(rank int) []rpc.Option {
	opts := []rpc.Option{
		rpc.WithHandlers(keepers(!o.Dynamic)), rpc.WithTimeout(o.Limit),
		rpc.WithLease(500*time.Millisecond, 20*time.Second, 500*time.Millisecond),
	}
	if o.Wire != "cohort" {
		opts = append(opts, rpc.WithTransports(o.Wire))
	}
	if o.Dynamic {
		return opts
	}
	return append(opts, rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(len(workers)))
}

// keepers are the handlers of every worker, with one that keeps a reference, where it is told to until the next one comes: a worker of a
// dynamic world does not leave while others keep what it has.
func keepers(hold bool) *rpc.Registry {
	var mu sync.Mutex
	var kept *rpc.Ref[int]
	return handlers().MustHandle("test.keep", func(ref *rpc.Ref[int]) {
		mu.Lock()
		defer mu.Unlock()
		if kept != nil {
			_ = kept.Close()
		}
		if kept = ref; !hold {
			_ = kept.Close()
			kept = nil
		}
	})
}

// workerMain is a victim in a process of its own.
func workerMain(spec string) int {
	var o orders
	if err := json.Unmarshal([]byte(spec), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*timeout)
	defer cancel()
	st, err := tcpstore.Dial(ctx, o.Addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer func() { _ = st.Close() }()
	var stop func() map[string]int
	if o.Dynamic {
		stop = failpointtest.OwnMoment(o.Moments)
	}
	a, err := rpc.Join(ctx, st, o.Name, o.options(slices.Index(workers, o.Name))...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if !o.Dynamic {
		stop = failpointtest.OwnMoment(o.Moments)
	}
	failed := work(ctx, a, "a", "c")
	failed = errors.Join(failed, a.Shutdown(ctx))
	out, _ := json.Marshal(stop())
	if failed != nil {
		fmt.Fprintln(os.Stderr, failed)
		return 1
	}
	fmt.Println(string(out))
	return 0
}

// work is what every worker does with others: calls, references there, and references of its own that they keep.
func work(ctx context.Context, a *rpc.Agent, others ...string) error {
	for i := range rounds {
		for _, to := range others {
			if err := once(ctx, a, to, i); err != nil {
				return fmt.Errorf("%s with %s: %w", a.Name(), to, err)
			}
		}
	}
	return nil
}

func once(ctx context.Context, a *rpc.Agent, to string, i int) error {
	got, err := rpc.Call[int](ctx, a, to, "test.double", i)
	if err != nil || got != 2*i {
		return answered(got, err)
	}
	ref, err := rpc.Remote[int](ctx, a, to, "test.double", i)
	if err != nil {
		return err
	}
	defer func() { _ = ref.Close() }()
	if got, err = ref.Fetch(ctx); err != nil || got != 2*i {
		return answered(got, err)
	}
	own, err := rpc.NewRef(a, i)
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	_, err = rpc.Call[any](ctx, a, to, "test.keep", own)
	return err
}

// answered is the error of a call that was not answered as it should be.
func answered(got int, err error) error {
	if err == nil {
		err = fmt.Errorf("the answer is %d", got)
	}
	return err
}

// TestProcesses kills or stops one or two workers' processes at points, by their own hands, or lets them be late: in their calls, in those
// of others, and while they leave. The others' calls to them end in time, those among themselves go on, and they leave, in order or
// naming one of the victims.
func TestProcesses(t *testing.T) {
	for _, wire := range []string{"cohort", "uv"} {
		failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
			Name: wire, Share: 25, Events: []string{failpointtest.KillEvent, failpointtest.StopEvent}, Victims: len(victims),
			Points: []string{"rpc.", "rpcworld.", "cohortwire.", "tensorpipe."},
			Run: func(p *failpointtest.ProcessRun) []map[string]int {
				o := orders{Wire: wire, Limit: timeout}
				if stops(p) {
					o.Limit = stoppedLimit // what is asked of it ends with its time only
				}
				return runProcesses(p, o)
			},
		})
	}
}

// stops reports whether a victim is to be stopped.
func stops(p *failpointtest.ProcessRun) bool {
	return slices.ContainsFunc(p.Victims, func(f failpointtest.Fate) bool { return f.Event == failpointtest.StopEvent })
}

// child is a victim's process.
type child struct {
	cmd    *exec.Cmd
	ended  chan struct{} // closed when all it said was read
	hits   map[string]int
	event  time.Time     // when it said that its moment had come
	moment chan struct{} // closed when it has
}

func startChild(p *failpointtest.ProcessRun, o orders) (*child, error) {
	spec, _ := json.Marshal(o)
	c := &child{cmd: exec.Command(os.Args[0]), ended: make(chan struct{}), moment: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), workerEnv+"="+string(spec))
	c.cmd.Stderr = os.Stderr
	stdout, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(c.ended)
		goesOn := func() {}
		defer func() { goesOn() }()
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if lines.Text() == failpointtest.MomentLine {
				c.event = time.Now()
				close(c.moment)
				continue
			}
			if lines.Text() == failpointtest.PauseLine {
				goesOn = failpointtest.Continue(c.cmd.Process)
				continue
			}
			if lines.Text() == failpointtest.LateLine {
				goesOn()
				if !p.Fatal() { // else what is for good has to happen
					p.Happened()
				}
				continue
			}
			_ = json.Unmarshal(lines.Bytes(), &c.hits)
		}
	}()
	return c, nil
}

// outcome is how something that a survivor did has ended.
type outcome struct {
	what         string
	with         string // the victim that it was done with, "": all
	err          error
	began, ended time.Time
	bound        time.Duration
}

func runProcesses(p *failpointtest.ProcessRun, o orders) []map[string]int {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		p.Errorf("%v", err)
		return nil
	}
	defer func() { _ = server.Close() }()
	o.Addr = server.Addr().String()
	children := map[string]*child{}
	for i, name := range victims {
		o := o
		o.Name, o.Moments = name, p.Victims[i].Moments
		c, failure := startChild(p, o)
		if failure != nil {
			p.Errorf("%v", failure)
			return nil
		}
		children[name] = c
	}
	var mu sync.Mutex
	var all []outcome
	report := func(x outcome) {
		x.ended = time.Now()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, x)
	}
	var survivors, working sync.WaitGroup
	working.Add(len(workers) - len(victims))
	for rank, name := range workers {
		if !slices.Contains(victims, name) {
			survivors.Go(func() { survive(p, o, name, rank, &working, report) })
		}
	}
	survivors.Wait()
	hits := make([]map[string]int, len(victims))
	events := map[string]time.Time{}
	for i, name := range victims {
		c := children[name]
		c.over(p, name)
		if hits[i] = c.hits; !c.event.IsZero() {
			events[name] = c.event
			p.Happened()
		}
	}
	for _, x := range all {
		judgeOutcome(p, x, events)
	}
	for i, name := range victims {
		if len(events) == 0 && hits[i] == nil {
			p.Errorf("%s, to which nothing happened for good, has failed", name)
		}
	}
	return hits
}

// over returns when the victim's process has ended, which it is made to if something has happened to it for good.
func (c *child) over(p *failpointtest.ProcessRun, name string) {
	select {
	case <-c.ended:
	case <-c.moment: // it is dead or stopped
	case <-time.After(leftSoon):
		p.Errorf("%s has not ended", name)
	}
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.cmd.Wait()
}

// survive is another worker: it works with the victims and with the other one that lives, and leaves in order.
func survive(p *failpointtest.ProcessRun, o orders, name string, rank int, working *sync.WaitGroup, report func(outcome)) {
	through := sync.OnceFunc(working.Done)
	defer through()
	ctx, cancel := context.WithTimeout(context.Background(), 3*timeout)
	defer cancel()
	st, err := tcpstore.Dial(ctx, o.Addr)
	if err != nil {
		p.Errorf("%s: %v", name, err)
		return
	}
	defer func() { _ = st.Close() }()
	a, err := rpc.Join(ctx, st, name, o.options(rank)...)
	if err != nil {
		p.Errorf("%s cannot join: %v", name, err)
		return
	}
	defer func() { _ = a.Close() }()
	other := "a"
	if name == "a" {
		other = "c"
	}
	for _, v := range victims {
		began := time.Now()
		limited, stop := context.WithTimeout(ctx, o.Limit) // a call with a deadline takes no other time
		report(outcome{what: name + "'s work with " + v, with: v, began: began, bound: lostSoon, err: work(limited, a, v)})
		stop()
	}
	if err := work(ctx, a, other); err != nil {
		p.Errorf("among survivors: %v", err)
	}
	through()
	working.Wait() // a worker that finds the victim dead while it leaves does not wait for others
	leaving, given := context.WithTimeout(ctx, o.Limit)
	defer given()
	report(outcome{what: name + "'s way out", began: time.Now(), bound: leftSoon, err: a.Shutdown(leaving)})
}

// judgeOutcome is the oracle. events are when something happened to whom. A victim that lives leaves when it finds the other one dead, so
// work with it can end too, a little later.
func judgeOutcome(p *failpointtest.ProcessRun, x outcome, events map[string]time.Time) {
	if x.err == nil {
		return
	}
	if len(events) == 0 {
		p.Errorf("no process died, but %s: %v", x.what, x.err)
		return
	}
	event, happened := events[x.with]
	if !happened {
		x.bound = leftSoon
		for _, e := range events {
			event = later(event, e)
		}
	}
	allowed := []cohort.Code{cohort.PeerLost, cohort.Unavailable, cohort.Closed, cohort.Aborted, cohort.NotFound}
	if stops(p) {
		allowed = append(allowed, cohort.DeadlineExceeded)
		x.bound += 2 * stoppedLimit
	}
	if code := cohort.CodeOf(x.err); !slices.Contains(allowed, code) {
		p.Errorf("%s: %v (code %v)", x.what, x.err, code)
	}
	if e, ok := errors.AsType[*cohort.Error](x.err); ok && e.Code == cohort.PeerLost && e.Peer != "" && !slices.Contains(victims, e.Peer) {
		p.Errorf("%s names %s: %v", x.what, e.Peer, x.err)
	}
	if took := x.ended.Sub(later(event, x.began)); took > x.bound {
		p.Errorf("%s ended %v after the death: %v", x.what, took, x.err)
	}
}
