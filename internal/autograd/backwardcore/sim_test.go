// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// The simulation builds a random graph over several workers, runs passes over a network that loses, repeats, delays and
// reorders messages, lets functions fail and workers die, and compares the gradients with those of the same graph on one
// worker. A seed gives the same run every time: go test -run 'TestSimulation' -backward.seed N -v.

var oneSeed = flag.Uint64("backward.seed", 0, "run this seed only, and log what happens")

// instructive are seeds that find a mistake which few others find: the mutants NoFlood and NoSeen.
var instructive = []uint64{477, 1533}

func TestSimulation(t *testing.T) {
	t.Parallel()
	if *oneSeed != 0 {
		for _, mode := range []Mode{Fast, Smart} {
			t.Logf("mode %d: %v", mode, simulate(*oneSeed, Options{}, mode, t.Logf))
		}
		return
	}
	count, ran := 300, 0
	if raceEnabled {
		count = 200 // it is one goroutine
	}
	for seed := range seeds.Range(count, instructive...) {
		ran++
		mode := Mode(seed % 2)
		if err := simulate(seed, Options{}, mode, func(string, ...any) {}); err != nil {
			t.Fatalf(
				"seed %d, mode %d: %v\nreplay: go test ./internal/autograd/backwardcore -run TestSimulation -backward.seed %d -v",
				seed, mode, err, seed)
		}
	}
	t.Logf("count: backward simulation: %d seeds", ran)
}

func TestMain(m *testing.M) { os.Exit(mutation.Main(m)) }

// TestMutants leaves one rule of the protocol out at a time: the tests must notice.
func TestMutants(t *testing.T) {
	t.Parallel()
	mutation.Found(t)
}

// TestFastWaitsForAnUnusedSend: a send whose value does not enter the loss keeps a Fast pass waiting, and is named; a Smart pass
// does not wait for it.
func TestFastWaitsForAnUnusedSend(t *testing.T) {
	for _, mode := range []Mode{Fast, Smart} {
		w := newWorld(1, Options{}, mode, t.Logf)
		w.lossy, w.crashes, w.breaks = false, false, false
		w.ctx = w.origin.m.Open()
		other := w.workers[1]
		leaf := w.record(w.origin)
		w.transfer(w.origin, other, leaf)
		back := w.record(other, other.values[0])
		w.transfer(other, w.origin, back)
		w.transfer(other, w.origin, back) // unused
		used := w.origin.values[1]
		pass, _ := w.origin.m.Backward(w.ctx, map[Node]int64{used: 1}, mode)
		w.settle(w.origin)
		ended := w.until(20*time.Second, func() bool { return len(w.ended) > 0 })
		if ended != (mode == Smart) {
			t.Errorf("mode %d: ended is %v", mode, ended)
		}
		if missing := other.m.Missing(w.ctx, pass); (len(missing) == 1) != (mode == Fast) {
			t.Errorf("mode %d: missing are %v", mode, missing)
		}
	}
}

// TestReplay: a seed gives the same run every time.
func TestReplay(t *testing.T) {
	for seed := range uint64(50) {
		var logs [2][]string
		for i := range logs {
			_ = simulate(seed+1, Options{}, Mode(seed%2),
				func(format string, args ...any) { logs[i] = append(logs[i], fmt.Sprintf(format, args...)) })
		}
		if !slices.Equal(logs[0], logs[1]) {
			t.Fatalf("seed %d: two runs differ", seed+1)
		}
	}
}

// TestHostileMessages: whatever a member of a context sends, nothing breaks and nothing grows without bound.
func TestHostileMessages(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	m := New(0, sum, Options{})
	ctx := m.Open()
	leaf, _ := m.Record(ctx)
	call, _ := m.RecordSend(ctx, 1, leaf)
	for range 15_000 {
		msg := Message[int64]{
			Kind: Kind(rng.IntN(12)), From: Worker(1 + rng.IntN(3)), Context: ctx, Pass: PassID{Worker(rng.IntN(3)), rng.Uint64N(5000)},
			Mode: Mode(rng.IntN(3)), Wave: Kind(rng.IntN(4)), Call: call, Gradient: 1,
		}
		if rng.IntN(3) == 0 {
			msg.Call = Call{Worker(rng.IntN(3)), rng.Uint64N(4)}
		}
		if msg.Kind == Cleanup || rng.IntN(10) == 0 {
			msg.Context.N = 2 + rng.Uint64N(1000)
		}
		m.Receive(msg)
		m.Take()
	}
	if n := len(m.contexts[ctx].passes); n > maxPasses {
		t.Errorf("%d passes are remembered", n)
	}
	if contexts, unanswered := m.Contexts(); contexts != 1 || unanswered > 0 {
		t.Errorf("%d contexts, %d clean-ups", contexts, unanswered)
	}
}
