// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// deadlineTime is how long the context of a run lives in which Deadline may happen. Every call ends before that by
// itself when nothing happens.
const deadlineTime = 300 * time.Millisecond

// Run is one execution of a scenario.
type Run struct {
	// Rand decides what the scenario does. Both runs of a seed see the same numbers.
	Rand *rand.Rand

	tb         testing.TB
	scenario   Scenario
	plan       *plan
	beside     tally // events
	calls      []*Call
	cancel     context.CancelCauseFunc
	deadline   context.Context //nolint:containedctx // that of the victim, for Deadline
	cleanups   []func()
	operations []string

	mu struct {
		sync.Mutex
		open     bool
		hits     map[string]int
		trace    []string
		actions  map[string]func()
		happened map[string]time.Time
		slack    time.Duration
		failures []string
		injected []injection
	}
}

// Call is a call whose end the run expects.
type Call struct {
	Name  string
	Err   error // valid after Run.Wait
	Began time.Time
	Ended time.Time

	bound time.Duration
	done  chan struct{}
	gone  bool // its goroutine ended by runtime.Goexit or a panic
}

// Gone reports whether the goroutine of the call ended without a result: by runtime.Goexit or by a panic, which a
// callback of the scenario's had.
func (c *Call) Gone() bool { return c.gone }

func newRun(tb testing.TB, s Scenario, p *plan) *Run {
	tb.Helper()
	r := &Run{tb: tb, scenario: s, plan: p, Rand: p.rand(streamScenario)}
	r.mu.hits, r.mu.actions, r.mu.happened = map[string]int{}, map[string]func(){}, map[string]time.Time{}
	return r
}

// Virtual reports whether time is that of a bubble.
func (r *Run) Virtual() bool { return r.scenario.Virtual }

// Seed returns the seed of the run.
func (r *Run) Seed() uint64 { return r.plan.seed }

// On says how an event is made to happen.
func (r *Run) On(event string, do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.actions[event] = do
}

// Cleanup has f called when the scenario has ended, the last first.
func (r *Run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Planned reports whether an event may happen in this run.
func (r *Run) Planned(event string) bool {
	for _, in := range r.plan.injections {
		if in.event.Name == event {
			return true
		}
	}
	return false
}

// Happened reports whether an event has happened, and when.
func (r *Run) Happened(event string) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.mu.happened[event]
	return at, ok
}

// errCause is the cause of CancelCause: an error of another operation, with its own code and rank.
var errCause = &cohort.Error{Op: "errgroup", Code: cohort.PeerLost, Rank: 7, Detail: "the error of another goroutine"}

// Context returns the context of the victim, which the events Cancel, CancelCause and Deadline end.
func (r *Run) Context() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	r.Cleanup(func() { cancel(nil) })
	if r.Planned(Deadline.Name) {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, deadlineTime)
		r.Cleanup(stop)
	}
	r.deadline = ctx
	r.On(Cancel.Name, func() { cancel(nil) })
	r.On(CancelCause.Name, func() { cancel(errCause) })
	r.On(Deadline.Name, func() { <-ctx.Done() })
	return ctx
}

// beginPoint is the first point of a run: what happens there happens before the calls.
const beginPoint = "begin"

// Begin lets points count. It is one itself.
func (r *Run) Begin() {
	r.setOpen(true)
	r.hit(beginPoint)
}

// Does notes an operation of the run, for the table of what was covered.
func (r *Run) Does(operation string) { r.operations = append(r.operations, operation) }

// End lets them count no more, and waits for the events that have begun meanwhile: a goroutine that belongs to no call may
// have hit its point after Wait. A scenario that took itself apart under such an event would be two that close the same thing.
func (r *Run) End() {
	r.setOpen(false)
	<-r.beside.none()
}

func (r *Run) setOpen(open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.open = open
}

// Go starts a call that must end within bound, besides what the run itself holds it up for.
func (r *Run) Go(name string, bound time.Duration, f func() error) *Call {
	c := &Call{Name: name, Began: time.Now(), bound: bound, done: make(chan struct{}), gone: true}
	r.calls = append(r.calls, c)
	go func() {
		defer func() {
			c.Ended = time.Now()
			if c.gone {
				if p := recover(); p != nil && !Meant(p) {
					r.Errorf("%s panicked: %v\n%s", name, p, stack())
				}
			}
			close(c.done)
		}()
		c.Err = f()
		c.gone = false
	}()
	return c
}

// errPanic is the panic of a scenario's callbacks.
var errPanic = errors.New("a callback of the test panics")

// Panic panics as a callback of a user might. Calls of Run.Go that it ends are Gone.
func Panic() { panic(errPanic) }

// Meant reports whether what was recovered is the panic of a scenario's callbacks.
func Meant(p any) bool { return errors.Is(asError(p), errPanic) }

func asError(p any) error {
	err, _ := p.(error)
	return err
}

// Wait waits until all calls and events have ended, and fails the run for each that has not in time.
func (r *Run) Wait() {
	for _, c := range r.calls {
		r.await(c)
	}
	select {
	case <-r.beside.none():
	case <-time.After(r.realTime(30 * time.Second)):
		r.hang("an event has not ended")
	}
}

// realTime widens a bound where time is real and the machine is busy with other things.
func (r *Run) realTime(d time.Duration) time.Duration {
	if r.scenario.Virtual {
		return d
	}
	return 5*d + 5*time.Second
}

// Await returns when a call has ended, in time or not.
func (r *Run) Await(c *Call) { <-c.done }

// EndsSoon fails the run if a call ended later than grace after an event, or after its own beginning if the event came first.
func (r *Run) EndsSoon(c *Call, event string, grace time.Duration) {
	at, happened := r.Happened(event)
	if !happened {
		return
	}
	if c.Began.After(at) {
		at = c.Began
	}
	if took := c.Ended.Sub(at); took > r.realTime(grace)+r.Slack() {
		r.Errorf("%s ended %v after %s, allowed are %v", c.Name, took, event, r.realTime(grace)+r.Slack())
	}
}

func (r *Run) await(c *Call) {
	for {
		limit := c.Began.Add(r.realTime(c.bound) + r.Slack())
		timer := time.NewTimer(time.Until(limit) + time.Nanosecond)
		select {
		case <-c.done:
			timer.Stop()
			return
		case <-timer.C:
		}
		if time.Now().After(c.Began.Add(r.realTime(c.bound) + r.Slack())) {
			select {
			case <-c.done:
				return
			default:
			}
			r.hang(fmt.Sprintf("%s has not ended within %v", c.Name, r.realTime(c.bound)+r.Slack()))
		}
	}
}

// Slack is how long the run itself has held goroutines up.
func (r *Run) Slack() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.slack
}

// Errorf fails the run. It may be called from any goroutine.
func (r *Run) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.failures = append(r.mu.failures, fmt.Sprintf(format, args...))
}

// Allowance says that a code is right for a call if an event happened, or may have.
type Allowance struct {
	code   cohort.Code
	events []string
}

// Allow returns the allowance of a code after any of the events; without events it is always right.
func (r *Run) Allow(code cohort.Code, events ...string) Allowance { return Allowance{code, events} }

// Check fails the run if a call ended with an error that none of the allowances explains. The end of the context counts
// for a call only where [Run.AllowContext] was called.
func (r *Run) Check(c *Call, allowed ...Allowance) {
	if c.gone || c.Err == nil {
		return
	}
	code := cohort.CodeOf(c.Err)
	for _, a := range allowed {
		if a.code != code {
			continue
		}
		if len(a.events) == 0 {
			return
		}
		for _, e := range a.events {
			if _, ok := r.Happened(e); ok {
				return
			}
		}
	}
	r.Errorf("%s ended with %v (code %v), which nothing that happened explains", c.Name, c.Err, code)
}

// AllowContext returns what the end of the victim's context allows, and fails the run if the error of c says that it was
// the context and does not match the context's own.
func (r *Run) AllowContext(c *Call) []Allowance {
	if ended := r.deadline.Err(); ended != nil && c.Err != nil {
		code := cohort.CodeOf(c.Err)
		if (code == cohort.Canceled || code == cohort.DeadlineExceeded) && errors.Is(c.Err, errCause) && !errors.Is(c.Err, ended) {
			r.Errorf("%s: the error %v does not match %v", c.Name, c.Err, ended)
		}
	}
	all := []Allowance{r.Allow(cohort.Canceled, Cancel.Name, CancelCause.Name)}
	if r.Planned(Deadline.Name) {
		all = append(all, r.Allow(cohort.DeadlineExceeded))
	}
	return all
}

// hit is called at every point.
func (r *Run) hit(point string) {
	if !r.counts(point) {
		return
	}
	r.mu.Lock()
	if !r.mu.open {
		r.mu.Unlock()
		return
	}
	r.mu.hits[point]++
	at := place{point, r.mu.hits[point]}
	pause := r.plan.pauseAt(at)
	r.mu.slack += pause
	r.mu.Unlock()
	if pause > 0 {
		time.Sleep(pause) //nolint:forbidigo // that is what a point is for
	}
	r.mu.Lock()
	r.mu.trace = append(r.mu.trace, at.String())
	if r.plan.counting || !r.mu.open { // it has ended while this goroutine waited
		r.mu.Unlock()
		return
	}
	r.beside.begin() // under the lock, so that End waits for it
	r.mu.Unlock()
	defer r.beside.end()
	for _, in := range r.plan.injections {
		if in.at == at {
			r.inject(in)
		}
	}
}

func (r *Run) counts(point string) bool {
	if len(r.scenario.Points) == 0 || point == beginPoint {
		return true
	}
	for _, prefix := range r.scenario.Points {
		if strings.HasPrefix(point, prefix) {
			return true
		}
	}
	return false
}

// inject makes an event happen.
func (r *Run) inject(in injection) {
	began := time.Now()
	r.mu.Lock()
	do := r.mu.actions[in.event.Name]
	r.mu.trace = append(r.mu.trace, "<-- "+in.event.Name)
	if do != nil {
		r.mu.happened[in.event.Name] = began
		r.mu.injected = append(r.mu.injected, in)
	}
	r.mu.Unlock()
	if do == nil {
		r.Errorf("the scenario has no action for %q", in.event.Name)
		return
	}
	if in.inside {
		do()
	} else {
		r.beside.begin()
		go func() {
			defer r.beside.end()
			do()
		}()
	}
	if in.pause > 0 {
		time.Sleep(in.pause) //nolint:forbidigo // that is what a point is for
	}
	r.mu.Lock()
	r.mu.slack += time.Since(began)
	r.mu.Unlock()
}

// stack returns the stacks of all goroutines.
func stack() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
