// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package momenttest

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cohort-dist/cohort/internal/moment"
)

// ProcessScenario is a world of processes of which one does something to itself at a point: it kills or stops itself. The
// process counts the points that it hits with [OwnMoment] and tells them at its end.
type ProcessScenario struct {
	Name   string
	Share  int // as in Scenario
	Points []string
	Events []string
	// Run starts the processes, waits for them and checks what they say. Without an event it returns how often the victim
	// hit each point. Several run at once.
	Run func(p *ProcessRun) map[string]int
}

// ProcessRun is one run of a ProcessScenario.
type ProcessRun struct {
	Seed uint64
	// Event happens at the N-th hit of Point; empty: nothing happens, and points are counted.
	Event string
	Point string
	N     int

	mu       sync.Mutex
	failures []string
	happened bool
}

// Errorf fails the run. It may be called from any goroutine.
func (p *ProcessRun) Errorf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

// Happened says that the point was reached.
func (p *ProcessRun) Happened() { p.happened = true }

// What happens to a process by its own hand.
const (
	KillEvent = "kill"
	StopEvent = "stop"
)

// MomentLine is what a process says on its standard output when its moment has come.
const MomentLine = "now"

// OwnMoment counts the points that this process hits, and makes the event happen to it at the n-th hit of point. stop ends that and
// returns the counts.
func OwnMoment(event, point string, n int) (stop func() map[string]int) {
	var mu sync.Mutex
	hits := map[string]int{}
	restore := moment.SetHook(func(hit string) {
		mu.Lock()
		defer mu.Unlock() // meanwhile the process gets no further than to its next point, or to stop
		if hits[hit]++; hit != point || hits[hit] != n {
			return
		}
		fmt.Println(MomentLine)
		signalSelf(event == StopEvent)
	})
	return func() map[string]int {
		restore()
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(hits)
	}
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
		var workers sync.WaitGroup
		for range min(atOnce, n) {
			workers.Go(func() {
				for i := taken.Add(1); i <= n && !t.Failed(); i = taken.Add(1) {
					if !runProcessSeed(t, s, begin+i-1) {
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
	})
}

func runProcessSeed(t *testing.T, s ProcessScenario, seed uint64) bool {
	t.Helper()
	count := &ProcessRun{Seed: seed}
	hits := s.Run(count)
	if s.report(t, count); len(count.failures) > 0 {
		return false
	}
	scope := &Run{scenario: Scenario{Points: s.Points}}
	for point := range hits {
		if !scope.counts(point) {
			delete(hits, point)
		}
	}
	p := &plan{seed: seed, injections: []injection{{event: Event{Name: s.Events[(&plan{seed: seed}).rand(streamEvents).IntN(len(s.Events))]}}}}
	chosen := p.choose(hits)
	if chosen == nil {
		t.Errorf("%s: seed %d hits no point", s.Name, seed)
		return false
	}
	in := chosen.injections[0]
	run := &ProcessRun{Seed: seed, Event: in.event.Name, Point: in.at.point, N: in.at.n}
	s.Run(run)
	s.report(t, run)
	return run.happened
}

func (s ProcessScenario) report(t *testing.T, p *ProcessRun) {
	t.Helper()
	if *traced {
		t.Logf("seed %d: %q at %s #%d", p.Seed, p.Event, p.Point, p.N)
	}
	if len(p.failures) > 0 {
		t.Errorf("%s: seed %d: %q at %s #%d\n  %s\n%s", s.Name, p.Seed, p.Event, p.Point, p.N, strings.Join(p.failures, "\n  "), replay(t, &plan{seed: p.Seed}))
	}
}
