// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// The checker explores every schedule of a small configuration: one object of owner O, created by A, shared with C, by C
// with D, and by A with the owner itself. It drives the production machine; only the network and the applications are
// modelled: messages arrive in any order (on a stream: in the stream's order), may be repeated or lost as often as the
// configuration says, creations may time out, carriers may be undecodable, workers may crash. Each worker is a PyTorch worker
// or a Go worker; two Go workers use the extended protocol, every other pair PyTorch's. Go workers are driven as the agent
// drives them: Claim for what a link brings, Receive for what a pipe brings, Discard for a frame that cannot be decoded.

const allTorch = "OACD"

const (
	wO Worker = iota
	wA
	wC
	wD
)

// config is one row of the table of configurations.
type config struct {
	torch                      string  // the PyTorch workers, of "O", "A", "C", "D"; the others are Go workers
	opt                        Options // of the Go workers: nothing for production
	torchOpt                   *Options
	dup, timeout, lose, refuse int
	crash                      []Worker
	detect                     bool   // Go workers notice a death
	shares                     string // of "C" (A to C), "D" (C to D), "P" (A to the owner)
	forge                      int    // how many messages D makes up, about a reference that nobody gave it
}

// isTorch reports whether a worker is a PyTorch worker.
func (c config) isTorch(w Worker) bool { return strings.Contains(c.torch, "OACD"[w:w+1]) }

// wire is the protocol between two workers: PyTorch's, unless both are Go workers.
func (c config) wire(a, b Worker) PeerKind {
	if c.isTorch(a) || c.isTorch(b) {
		return PyTorch
	}
	return Cohort
}

// options are what a worker runs with: PyTorch's protocol, or what production uses.
func (c config) options(w Worker) Options {
	switch {
	case !c.isTorch(w):
		return c.opt
	case c.torchOpt != nil:
		return *c.torchOpt
	}
	return pytorch
}

// pytorch turns everything off that PyTorch does not have.
var pytorch = Options{NoRoot: true, NoCancel: true, NoWithdraw: true, NoLease: true, NoGrace: true, NoRefusal: true, NoTombs: true}

// The states of the explorations come and go by the million, and few are alive at a time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// explore visits every reachable state and returns the properties that are broken, each with a trace, and the number of
// states.
func (c config) explore(t *testing.T) (broken map[string][]string, states int) {
	t.Helper()
	type node struct{ from, choice int32 } // how a state was reached: enough to live it again
	type open struct {
		at int32
		s  *state
	}
	first := c.start()
	nodes := []node{{-1, 0}}
	stack := []open{{0, first}}
	var scratch encoder
	seen := map[digest]struct{}{first.key(&scratch): {}}
	broken = map[string][]string{}
	trace := func(at int32) []string {
		var path []int32
		for ; at > 0; at = nodes[at].from {
			path = append(path, nodes[at].choice)
		}
		var labels []string
		for s := c.start(); len(path) > 0; path = path[:len(path)-1] {
			st := c.steps(s)[path[len(path)-1]]
			labels = append(labels, st.label())
			s = s.clone()
			st.do(s)
		}
		return labels
	}
	for len(stack) > 0 {
		at, s := stack[len(stack)-1].at, stack[len(stack)-1].s
		stack = stack[:len(stack)-1]
		for _, v := range s.violations() {
			if broken[v] == nil {
				broken[v] = trace(at)
			}
		}
		steps := c.steps(s)
		if len(steps) == 0 {
			if left := s.leaks(); left != "" && broken["LEAK"] == nil {
				broken["LEAK"] = append(trace(at), left)
			}
		}
		for i, st := range steps {
			next := s.clone()
			st.do(next)
			key := next.key(&scratch)
			if _, known := seen[key]; !known {
				seen[key] = struct{}{}
				stack = append(stack, open{int32(len(nodes)), next})
				nodes = append(nodes, node{at, int32(i)})
			}
		}
		if len(nodes) > 3_000_000 {
			t.Fatal("more states than expected")
		}
	}
	return broken, len(nodes)
}

func TestCheckerFindsThePyTorchBugs(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	noPins := pytorch
	noPins.NoPins = true
	for _, c := range []struct {
		name string
		cfg  config
		want string
	}{
		{"V0 reliable network: the split object", config{torch: allTorch, shares: "CDP"}, "SPLIT"},
		{"V0b without pins", config{torch: allTorch, torchOpt: &noPins, shares: "CDP"}, "LEAK PENDING PREMATURE SPLIT"},
		{"V1 a repeated control message: the resurrected fork", config{torch: allTorch, shares: "CDP", dup: 1}, "LEAK SPLIT"},
		{"V2 remote() times out", config{torch: allTorch, shares: "CDP", timeout: 1}, "LEAK SPLIT"},
		{"V3 a carrier is lost", config{torch: allTorch, shares: "CDP", lose: 1}, "LEAK SPLIT"},
		{"V4 C crashes", config{torch: allTorch, shares: "CDP", crash: []Worker{wC}}, "LEAK SPLIT"},
		{"V4b A crashes", config{torch: allTorch, shares: "CDP", crash: []Worker{wA}}, "LEAK SPLIT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broken, states := c.cfg.explore(t)
			t.Logf("%d states", states)
			found := slices.Sorted(maps.Keys(broken))
			if strings.Join(found, " ") != c.want {
				t.Errorf("found %v, want %s\n%v", found, c.want, broken)
			}
		})
	}
}

// large skips a world that takes long to explore, unless it was asked for.
func large(t *testing.T) {
	t.Helper()
	if !*checkAll {
		t.Skip("it takes long: make model runs it")
	}
}

func TestCheckerFindsNothingInTheExtendedProtocol(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	for _, c := range []struct {
		name  string
		cfg   config
		large bool
	}{
		{"X0 reliable network", config{shares: "CDP"}, false},
		{"X1 a repeated frame", config{shares: "CDP", dup: 1}, true},
		{"X2 the creation times out", config{shares: "CDP", timeout: 1}, false},
		{"X3 a carrier is lost", config{shares: "CDP", lose: 1}, false},
		{"X4 C crashes", config{shares: "CDP", crash: []Worker{wC}, detect: true}, true},
		{"X4b A crashes", config{shares: "CDP", crash: []Worker{wA}, detect: true}, true},
		{"X6 everything, chain A to C to D", config{shares: "CD", dup: 1, timeout: 1, lose: 1, crash: []Worker{wA, wC}, detect: true}, true},
		{"X6 everything, A to C and A to the owner", config{shares: "CP", dup: 1, timeout: 1, lose: 1, crash: []Worker{wA, wC}, detect: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.large {
				large(t)
			}
			broken, states := c.cfg.explore(t)
			t.Logf("count: reference checker: %s: %d states", c.name, states)
			for v, trace := range broken {
				t.Errorf("%s:\n  %s", v, strings.Join(trace, "\n  "))
			}
		})
	}
}
