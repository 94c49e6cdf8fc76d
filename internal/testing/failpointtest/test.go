// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

var (
	seeds   = flag.Int("moments.seeds", 100, "how many seeds to run")
	first   = flag.Uint64("moments.first", 1, "the first seed")
	oneSeed = flag.Uint64("moments.seed", 0, "run this seed alone")
	traced  = flag.Bool("moments.trace", false, "print the points that were hit")
	tabled  = flag.Bool("moments.table", false, "print what was covered: events by operation, by point and by each other")
)

// stuckTime is how long a run may take in real time before it counts as stuck.
const stuckTime = 2 * time.Minute

// Test runs a scenario with many seeds.
func Test(t *testing.T, s Scenario) {
	t.Helper()
	t.Run(s.Name, func(t *testing.T) {
		if s.Virtual {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		}
		if *oneSeed != 0 {
			runSeed(t, s, *oneSeed)
			return
		}
		n := uint64(max(*seeds/max(s.Share, 1), 1))
		var memory memoryCheck
		var covered table
		missed, pairs := 0, 0
		for seed := *first; seed < *first+n; seed++ {
			r := runSeed(t, s, seed)
			if t.Failed() {
				return
			}
			switch len(r.mu.happened) {
			case 0:
				missed++
			case 2:
				pairs++
			}
			covered.add(r.operations, r.happenings())
			memory.look(t, seed-*first, n)
		}
		t.Logf("%d seeds; in %d of them two events happened, in %d the chosen point was not reached a second time", n, pairs, missed)
		if *tabled {
			covered.log(t, names(s.Events))
		}
		if n >= enoughSeeds && pairs == 0 {
			t.Errorf("in %d seeds no two events happened together", n)
		}
	})
}

// enoughSeeds is how many seeds have certainly some with two different events.
const enoughSeeds = 100

// runSeed counts and injects. It returns the run in which events happened: one may have had no occasion.
func runSeed(t *testing.T, s Scenario, seed uint64) *Run {
	t.Helper()
	p := newPlan(s, seed)
	counted := execute(t, s, p)
	if t.Failed() {
		return counted
	}
	if len(counted.mu.hits) < 2 { // the first is Begin
		t.Fatalf("%s: seed %d hits no point", s.Name, seed)
	}
	chosen := p.choose(counted.mu.hits)
	before := resources()
	injected := execute(t, s, chosen)
	if !s.Virtual {
		before.compare(injected)
	}
	report(t, injected)
	return injected
}

// Trace runs a seed once more and returns the points that it hit, for tests of the replay.
func Trace(t *testing.T, s Scenario, seed uint64) []string {
	t.Helper()
	if s.Virtual {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	p := newPlan(s, seed)
	chosen := p.choose(execute(t, s, p).mu.hits)
	return execute(t, s, chosen).mu.trace
}

// execute runs the scenario once.
func execute(t *testing.T, s Scenario, p *plan) (r *Run) {
	t.Helper()
	stuck := time.AfterFunc(stuckTime, func() {
		fmt.Fprintf(os.Stderr, "%s: %v: stuck; is a point hit under a mutex?\n%s\n%s", s.Name, p, replay(t, p), stack())
		os.Exit(2)
	})
	defer stuck.Stop()
	body := func(t *testing.T) {
		t.Helper()
		r = newRun(t, s, p)
		defer failpoint.SetHook(r.hit)()
		defer func() {
			if panicked := recover(); panicked != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n%s\n", s.Name, p, replay(t, p))
				panic(panicked)
			}
		}()
		s.Run(r)
		r.End()
		for len(r.cleanups) > 0 {
			last := len(r.cleanups) - 1
			f := r.cleanups[last]
			r.cleanups = r.cleanups[:last]
			f()
		}
		<-r.beside.none()
		if s.Virtual {
			synctest.Wait()
			if left := inBubble(); left != "" {
				r.hang("goroutines are left:\n" + left)
			}
		}
	}
	if s.Virtual {
		// The collector would interrupt goroutines at places of its own choice.
		old := debug.SetGCPercent(-1)
		synctest.Test(t, body)
		debug.SetGCPercent(old)
	} else {
		body(t)
	}
	if p.counting {
		report(t, r)
	}
	return r
}

// report prints the failures of a run.
func report(t *testing.T, r *Run) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if *traced {
		t.Logf("%v: %s", r.plan, strings.Join(r.mu.trace, ", "))
	}
	if len(r.mu.failures) > 0 {
		t.Errorf("%s: %v\n  %s\n%s\nlast points: %s", r.scenario.Name, r.plan, strings.Join(r.mu.failures, "\n  "),
			replay(t, r.plan), tail(r.mu.trace))
	}
}

func tail(trace []string) string {
	const shown = 30
	if len(trace) > shown {
		trace = trace[len(trace)-shown:]
	}
	return strings.Join(trace, ", ")
}

// hang reports what would keep a bubble from ending, with the stacks, and ends the process: it cannot go on.
func (r *Run) hang(what string) {
	r.mu.Lock()
	trace, failures := tail(r.mu.trace), strings.Join(r.mu.failures, "\n  ")
	r.mu.Unlock()
	fmt.Fprintf(os.Stderr, "--- FAIL: %s: %v\n  %s\n  %s\n%s\nlast points: %s\n%s\n",
		r.scenario.Name, r.plan, what, failures, replay(r.tb, r.plan), trace, stack())
	os.Exit(1)
}

// replay is the command that runs a seed again.
func replay(tb testing.TB, p *plan) string {
	tb.Helper()
	pkg := "?"
	if dir, err := os.Getwd(); err == nil { // a test runs in the folder of its package
		pkg = path.Base(dir)
	}
	return fmt.Sprintf(
		"run it again: go test -tags moments ./internal/testing/failpointtest/%s -run '^%s$' -moments.seed %d -moments.trace -v",
		pkg, strings.ReplaceAll(tb.Name(), "/", "$/^"), p.seed)
}
