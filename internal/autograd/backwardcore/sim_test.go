// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The simulation builds a random graph over several workers, runs passes over a network that loses, repeats, delays and
// reorders messages, lets functions fail and workers die, and compares the gradients with those of the same graph on one
// worker. A seed gives the same run every time: go test -run 'TestSimulation' -backcore.seed N -v.

var (
	seeds   = flag.Int("backcore.seeds", 2000, "how many seeds TestSimulation runs")
	oneSeed = flag.Uint64("backcore.seed", 0, "run this seed only, and tell what happens")
)

func TestSimulation(t *testing.T) {
	t.Parallel()
	if *oneSeed != 0 {
		for _, mode := range []Mode{Fast, Smart} {
			t.Logf("mode %d: %v", mode, simulate(*oneSeed, Options{NoCarry: (*oneSeed-1)%16 < 2}, mode, t.Logf))
		}
		return
	}
	if raceEnabled {
		*seeds = min(*seeds, 200) // it is one goroutine
	}
	for seed := range uint64(*seeds) {
		mode := Mode(seed % 2)
		if err := simulate(seed+1, Options{NoCarry: seed%16 < 2}, mode, func(string, ...any) {}); err != nil {
			t.Fatalf("seed %d, mode %d: %v", seed+1, mode, err)
		}
	}
	t.Logf("count: backward simulation: %d seeds", *seeds)
}

// TestEveryPartIsNeeded turns one part off at a time: the simulation has to notice.
func TestEveryPartIsNeeded(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("it is one goroutine and takes minutes under the race detector")
	}
	for name, opt := range map[string]Options{
		"repetition": {NoRetry: true}, "each message once": {NoOnce: true}, "remembering cleaned contexts": {NoTombs: true}, "passing the clean-up on": {NoForward: true},
		"waiting for what a message brings about": {NoTree: true}, "telling everybody of a failure": {NoFlood: true}, "noticing deaths": {NoDeath: true}, "asking about a context when a neighbour died": {NoSeen: true},
		"carrying again what an answer has carried": {NoCarryAgain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5000) {
				if err := simulate(seed+1, opt, Smart, func(string, ...any) {}); err != nil {
					t.Logf("seed %d: %v", seed+1, err)
					return
				}
			}
			t.Error("nobody notices that it is missing")
		})
	}
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
		w.transfer(other, w.origin, back) // nobody uses this one
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
			_ = simulate(seed+1, Options{}, Mode(seed%2), func(format string, args ...any) { logs[i] = append(logs[i], fmt.Sprintf(format, args...)) })
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
	for range 50_000 {
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
