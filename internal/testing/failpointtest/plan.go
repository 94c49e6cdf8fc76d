// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Event is something that a scenario can make happen. Its action is given by [Run.On].
type Event struct {
	Name string
	// where says from where it can happen.
	Where where
	// Alone keeps a second event away from it.
	Alone bool
}

// where is from where an event can be made to happen.
type where uint8

// The places.
const (
	// anywhere is the default: the goroutine at the point, or another one while that one waits.
	anywhere where = iota
	// Beside is for what may wait for the goroutine at the point, such as Close.
	Beside
	// Inside is for what has to hold up the goroutine at the point.
	Inside
)

// The events that [Run.Context] knows.
var (
	// Cancel ends the context of the victim.
	Cancel = Event{Name: "cancel"}
	// CancelCause ends it with a cause that carries a code of its own, as errgroup does.
	CancelCause = Event{Name: "cancel-cause"}
	// Deadline holds up the goroutine that hits the point until the context's deadline has passed.
	Deadline = Event{Name: "deadline", Where: Inside}
)

// Scenario is one kind of world.
type Scenario struct {
	Name string
	// Virtual runs it in a bubble of testing/synctest, on one processor.
	Virtual bool
	// Points are the prefixes of the points that count; none: all.
	Points []string
	// Events are what can happen, each of them.
	Events []Event
	// Share divides the number of seeds, for scenarios that take long: 10 runs a tenth of them.
	Share int
	// Run sets up, acts and checks.
	Run func(r *Run)
}

// moment is a place in the execution: the n-th hit of a point, from 1.
type place struct {
	point string
	n     int
}

func (p place) String() string { return fmt.Sprintf("%s #%d", p.point, p.n) }

// injection is one event at one place.
type injection struct {
	event  Event
	at     place
	inside bool
	pause  time.Duration // how long the goroutine at the place waits after it
}

func (i injection) String() string {
	how := "beside it"
	if i.inside {
		how = "from it"
	}
	return fmt.Sprintf("%s at %s, %s, then %v", i.event.Name, i.at, how, i.pause)
}

// plan is what a seed decides.
type plan struct {
	seed       uint64
	injections []injection
	jitter     int // how long goroutines wait at every point at most, in nanoseconds; see pauseAt
	counting   bool
}

func (p *plan) String() string {
	parts := make([]string, len(p.injections))
	for i, in := range p.injections {
		parts[i] = in.String()
		if p.counting {
			parts[i] = in.event.Name
		}
	}
	what := strings.Join(parts, " and ")
	if p.counting {
		what = "counting, with no event but the plan for " + what
	}
	return fmt.Sprintf("seed %d: %s", p.seed, what)
}

// Streams of random numbers that a seed gives.
const (
	streamScenario = iota
	streamEvents
	streamPlaces
)

func (p *plan) rand(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, stream)) //nolint:gosec // a test that can be repeated
}

// newPlan chooses the events of a seed.
func newPlan(s Scenario, seed uint64) *plan {
	p := &plan{seed: seed, counting: true}
	rng := p.rand(streamEvents)
	if s.Virtual {
		p.jitter = []int{1000, 10_000, 1_000_000}[rng.IntN(3)]
	}
	n := 1 + rng.IntN(2)
	for len(p.injections) < n {
		e := s.Events[rng.IntN(len(s.Events))]
		if e.Alone && len(p.injections) > 0 {
			break
		}
		p.injections = append(p.injections, injection{event: e})
		if e.Alone {
			break
		}
	}
	return p
}

// pauseAt is how long a goroutine waits at a place in virtual time, before anything happens there. It changes the order of
// the goroutines, differently for each seed; and since it depends on the place alone, goroutines that the scheduler let
// run in another order than the last time come back to the same one.
func (p *plan) pauseAt(at place) time.Duration {
	if p.jitter == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s %d", p.seed, at.point, at.n)
	return time.Duration(1 + h.Sum64()%uint64(p.jitter)) //nolint:gosec // small
}

// pauses are how long a goroutine waits at its point after an event, in virtual time and in real time.
var pauses = []time.Duration{0, time.Nanosecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 20 * time.Millisecond}

// togetherEvery is how many second events there are for each one that happens at the place of the first: at once, in two goroutines.
const togetherEvery = 4

// beginEvery is how many events there are for each one that happens before the calls: there are many points, and that is one.
const beginEvery = 10

// choose places the events among the points that were hit. It returns nil when none was.
func (p *plan) choose(hits map[string]int) *plan {
	if len(hits) == 0 {
		return nil
	}
	chosen := &plan{seed: p.seed, jitter: p.jitter}
	rng := p.rand(streamPlaces)
	for i, in := range p.injections {
		in.at = choosePlace(rng, hits)
		if rng.IntN(beginEvery) == 0 {
			in.at = place{beginPoint, 1}
		}
		if i > 0 && rng.IntN(togetherEvery) == 0 {
			in.at = chosen.injections[0].at
		}
		in.inside = in.event.Where == Inside || in.event.Where == anywhere && rng.IntN(2) == 0
		in.pause = pauses[rng.IntN(len(pauses))]
		chosen.injections = append(chosen.injections, in)
	}
	return chosen
}

// choosePlace chooses one of the points that were hit, and one of its hits. The place is zero when none was.
func choosePlace(rng *rand.Rand, hits map[string]int) place {
	if len(hits) == 0 {
		return place{}
	}
	point := slices.Sorted(maps.Keys(hits))[rng.IntN(len(hits))]
	return place{point, 1 + rng.IntN(hits[point])}
}
