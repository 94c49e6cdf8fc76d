// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// ProcessScenario is a world of processes of which one or two do something to themselves at a point: they kill or stop themselves, or
// are late. A process counts the points that it hits with [OwnMoment] and reports them at its end.
type ProcessScenario struct {
	Name   string
	Share  int // as in Scenario
	Points []string
	// Events are what can happen for good: KillEvent and StopEvent. lateEvent and pauseEvent can happen in all scenarios.
	Events []string
	// Victims is how many processes something can happen to; zero: one.
	Victims int
	// Run starts the processes, waits for them and checks what they say. If nothing is to happen, it returns how often each victim
	// hit each point. Several run at once.
	Run func(p *ProcessRun) []map[string]int
}

// ProcessRun is one run of a ProcessScenario.
type ProcessRun struct {
	Seed uint64
	// Victims are what happens to each of them.
	Victims []Fate

	mu         sync.Mutex
	failures   []string
	happened   bool
	operations []string
}

// Fate is what happens to a process.
type Fate struct {
	// Event is what happens to it for good: KillEvent, StopEvent or nothing.
	Event string
	// Moments are where something happens; none: nothing does, and points are counted.
	Moments []OwnEvent
}

// OwnEvent is what a process does to itself at the N-th hit of Point.
type OwnEvent struct {
	Event string
	Point string
	N     int
}

func (o OwnEvent) String() string { return fmt.Sprintf("%s at %s #%d", o.Event, o.Point, o.N) }

// Errorf fails the run. It may be called from any goroutine.
func (p *ProcessRun) Errorf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

// Does notes an operation of the run, for the table of what was covered.
func (p *ProcessRun) Does(operation string) { p.operations = append(p.operations, operation) }

// Happened says that a point was reached. It may be called from any goroutine.
func (p *ProcessRun) Happened() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.happened = true
}

// Quiet reports whether no event happens: the points are only counted.
func (p *ProcessRun) Quiet() bool {
	return !slices.ContainsFunc(p.Victims, func(f Fate) bool { return len(f.Moments) > 0 })
}

// Fatal reports whether something is to happen to a victim for good.
func (p *ProcessRun) Fatal() bool {
	return slices.ContainsFunc(p.Victims, func(f Fate) bool { return f.Event != "" })
}

func (p *ProcessRun) String() string {
	var parts []string
	for i, f := range p.Victims {
		for _, m := range f.Moments {
			parts = append(parts, fmt.Sprintf("victim %d: %v", i, m))
		}
	}
	if len(parts) == 0 {
		parts = []string{"counting"}
	}
	return fmt.Sprintf("seed %d: %s", p.Seed, strings.Join(parts, " and "))
}

// What happens to a process by its own hand.
const (
	KillEvent  = "kill"
	StopEvent  = "stop"
	lateEvent  = "late"  // one of its goroutines stands still for a moment, and goes on
	pauseEvent = "pause" // it is stopped for a moment, and goes on
)

// What a process says on its standard output.
const (
	MomentLine = "now"   // when it is killed or stopped
	LateLine   = "late"  // when it is late, and when it goes on after a pause
	PauseLine  = "pause" // before a pause, see [Continue]
)

// lateTime is how long a process is late: long enough for the others to wait for it, and short enough to be no reason to give it up.
const lateTime = 200 * time.Millisecond

// OwnMoment counts the points that this process hits, and makes events happen to it. stop ends that and returns the counts.
func OwnMoment(events []OwnEvent) (stop func() map[string]int) {
	var mu sync.Mutex
	hits := map[string]int{}
	restore := failpoint.SetHook(func(hit string) {
		mu.Lock()
		defer mu.Unlock() // meanwhile the process gets no further than to its next point, or to stop
		hits[hit]++
		for _, e := range events {
			switch {
			case hit != e.Point || hits[hit] != e.N:
			case e.Event == lateEvent:
				_, _ = fmt.Fprintln(os.Stdout, LateLine)
				time.Sleep(lateTime) //nolint:forbidigo // that is what the event is
			case e.Event == pauseEvent:
				_, _ = fmt.Fprintln(os.Stdout, PauseLine)
				signalSelf(true)
				_, _ = fmt.Fprintln(os.Stdout, LateLine)
			default:
				_, _ = fmt.Fprintln(os.Stdout, MomentLine)
				signalSelf(e.Event == StopEvent)
			}
		}
	})
	return func() map[string]int {
		restore()
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(hits)
	}
}

// Continue lets a process that has printed PauseLine go on after a while. Call stop when it has printed LateLine, or nothing more can come.
func Continue(p *os.Process) (stop func()) {
	over := make(chan struct{})
	go func() {
		tick := time.NewTicker(lateTime)
		defer tick.Stop()
		for { // it says so before it stops, so the first signal may come too early
			select {
			case <-tick.C:
				resume(p)
			case <-over:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(over) })
}

// atOnce is how many seeds of a ProcessScenario run side by side: most of their time they wait for something to be noticed.
const atOnce = 4

// TestProcesses runs a ProcessScenario with many seeds.
func TestProcesses(t *testing.T, s ProcessScenario) {
	t.Helper()
	t.Run(s.Name, func(t *testing.T) {
		begin, n := *first, uint64(max(*seeds/max(s.Share, 1), 1))
		if *oneSeed != 0 {
			begin, n = *oneSeed, 1
		}
		startPoller()
		before := resources()
		var taken, missed atomic.Uint64
		var covered table
		var workers sync.WaitGroup
		for range min(atOnce, n) {
			workers.Go(func() {
				for i := taken.Add(1); i <= n && !t.Failed(); i = taken.Add(1) {
					if !runProcessSeed(t, s, begin+i-1, &covered) {
						missed.Add(1)
					}
				}
			})
		}
		workers.Wait()
		after := &Run{}
		before.compare(after)
		for _, failure := range after.mu.failures {
			t.Errorf("%s: after seeds %d to %d: %s", s.Name, begin, begin+n-1, failure)
		}
		t.Logf("%d seeds; in %d of them the chosen point was not reached a second time", n, missed.Load())
		if *tabled {
			covered.log(t, append(slices.Clone(s.Events), lateEvent, pauseEvent))
		}
	})
}

func runProcessSeed(t *testing.T, s ProcessScenario, seed uint64, covered *table) bool {
	t.Helper()
	victims := max(s.Victims, 1)
	count := &ProcessRun{Seed: seed, Victims: make([]Fate, victims)}
	hits := s.Run(count)
	if s.report(t, count); len(count.failures) > 0 {
		return false
	}
	run := &ProcessRun{Seed: seed, Victims: fates(s, seed)}
	scope := &Run{scenario: Scenario{Points: s.Points}}
	rng := (&plan{seed: seed}).rand(streamPlaces)
	for i, f := range run.Victims {
		maps.DeleteFunc(hits[i], func(point string, _ int) bool { return !scope.counts(point) })
		for k, m := range f.Moments {
			at := choosePlace(rng, hits[i])
			if at.n == 0 {
				t.Errorf("%s: seed %d: victim %d hits no point", s.Name, seed, i)
				return false
			}
			f.Moments[k] = OwnEvent{m.Event, at.point, at.n}
		}
	}
	s.Run(run)
	s.report(t, run)
	if run.happened {
		covered.add(run.operations, run.happenings())
	}
	return run.happened
}

// fates chooses one or two events: the first is for good in most seeds, the second one happens to the same victim or to another.
func fates(s ProcessScenario, seed uint64) []Fate {
	rng := (&plan{seed: seed}).rand(streamEvents)
	all := make([]Fate, max(s.Victims, 1))
	for i := range 1 + rng.IntN(2) {
		choice := append(slices.Clone(s.Events), lateEvent, pauseEvent)
		event, victim := choice[rng.IntN(len(choice))], rng.IntN(len(all))
		if i == 0 && rng.IntN(8) > 0 {
			event = s.Events[rng.IntN(len(s.Events))]
		}
		f := &all[victim]
		switch {
		case event == lateEvent, event == pauseEvent:
		case f.Event != "": // nothing more can happen to it for good
			event = lateEvent
		default:
			f.Event = event
		}
		f.Moments = append(f.Moments, OwnEvent{Event: event})
	}
	for _, f := range all {
		for k := range f.Moments {
			if f.Event == StopEvent && f.Moments[k].Event == pauseEvent { // who lets it go on could do so once too often
				f.Moments[k].Event = lateEvent
			}
		}
	}
	return all
}

func (s ProcessScenario) report(t *testing.T, p *ProcessRun) {
	t.Helper()
	if *traced {
		t.Log(p)
	}
	if len(p.failures) == 0 {
		return
	}
	again := replay(t, &plan{seed: p.Seed})
	t.Run(p.String(), func(t *testing.T) { // so that a list of the tests that failed says what happened
		t.Errorf("%s\n%s", strings.Join(p.failures, "\n  "), again)
	})
}
