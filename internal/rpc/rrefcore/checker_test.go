// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
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
	torch                      string // the PyTorch workers, of "O", "A", "C", "D"; the others are Go workers
	dup, timeout, lose, refuse int
	crash                      []Worker
	detect                     bool   // Go workers notice a death
	shares                     string // of "C" (A to C), "D" (C to D), "P" (A to the owner)
	forge                      int    // how many messages D makes up, about a reference that it was not given
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

// The states of the explorations come and go by the million, and few are alive at a time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(mutation.Main(m))
}

// explore visits every reachable state and returns the properties that are broken, each with a trace, and the number of
// states. When enough is not nil it stops once these are broken.
func (c config) explore(t *testing.T, enough []string) (broken map[string][]string, states int) {
	t.Helper()
	type origin struct{ from, choice int32 } // how a state was reached: enough to live it again
	type open struct {
		at int32
		s  *state
	}
	first := c.start()
	nodes := []origin{{-1, 0}}
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
	for turn := 0; len(stack) > 0; {
		last := len(stack) - 1
		node, rest := stack[last], stack[:last]
		if turn++; enough != nil && turn%2 == 0 { // what is freed too early is found near the start, leaks at the end
			node, rest = stack[0], stack[1:]
		}
		at, s := node.at, node.s
		stack = rest
		for _, v := range s.violations() {
			if broken[v] == nil {
				broken[v] = trace(at)
			}
		}
		if enough != nil && slices.Equal(slices.Sorted(maps.Keys(broken)), enough) {
			break
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
				nodes = append(nodes, origin{at, int32(i)})
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
	for _, c := range []struct {
		name    string
		cfg     config
		want    string
		mutants []string
	}{
		{"V0 reliable network: the split object", config{torch: allTorch, shares: "CDP"}, "SPLIT", nil},
		{"V0b without pins", config{torch: allTorch, shares: "CDP"}, "LEAK PENDING PREMATURE SPLIT", []string{"NoPins"}},
		{"V1 a repeated control message: the resurrected fork", config{torch: allTorch, shares: "CDP", dup: 1}, "LEAK SPLIT", nil},
		{"V2 remote() times out", config{torch: allTorch, shares: "CDP", timeout: 1}, "LEAK SPLIT", nil},
		{"V3 a carrier is lost", config{torch: allTorch, shares: "CDP", lose: 1}, "LEAK SPLIT", nil},
		{"V4 C crashes", config{torch: allTorch, shares: "CDP", crash: []Worker{wC}}, "LEAK SPLIT", nil},
		{"V4b A crashes", config{torch: allTorch, shares: "CDP", crash: []Worker{wA}}, "LEAK SPLIT", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !mutation.With(t, append(c.mutants, "PyTorch")...) {
				return
			}
			enough := strings.Fields(c.want)
			if *onlyLarge {
				enough = nil // and nothing else is broken
			}
			broken, states := c.cfg.explore(t, enough)
			t.Logf("%d states", states)
			found := slices.Sorted(maps.Keys(broken))
			if strings.Join(found, " ") != c.want {
				t.Errorf("found %v, want %s\n%v", found, c.want, broken)
			}
		})
	}
}

// skipOther skips a large world, or a small one when the large ones were asked for.
func skipOther(t *testing.T, large bool) {
	t.Helper()
	switch {
	case large && !*onlyLarge:
		t.Skip("it takes long: make model runs it")
	case !large && *onlyLarge:
		t.Skip("it is a small world: make test runs it")
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
		{"X6 everything, chain A to C to D", config{
			shares: "CD", dup: 1, timeout: 1, lose: 1, crash: []Worker{wA, wC},
			detect: true,
		}, true},
		{
			"X6 everything, A to C and A to the owner",
			config{shares: "CP", dup: 1, timeout: 1, lose: 1, crash: []Worker{wA, wC}, detect: true},
			true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			skipOther(t, c.large)
			broken, states := c.cfg.explore(t, nil)
			t.Logf("count: reference checker: %s: %d states", c.name, states)
			for v, trace := range broken {
				t.Errorf("%s:\n  %s", v, strings.Join(trace, "\n  "))
			}
		})
	}
}

type violation struct{ kind, text string }

func (s *simulation) fail(kind, format string, args ...any) {
	panic(violation{kind, fmt.Sprintf(format, args...)})
}

// check tests what must hold at every moment.
func (s *simulation) check() {
	for _, w := range s.workers {
		if w.m == nil {
			continue
		}
		for fork, h := range w.m.handles {
			ref, known := w.refs[fork]
			if !known || h.state != confirmed || !h.held || h.offered {
				continue
			}
			owner := s.workers[h.owner]
			if owner.m == nil || owner.epoch != ref.life {
				continue // its process is gone; the reference will learn it
			}
			o := owner.m.objects[h.id]
			if o == nil {
				s.fail("PREMATURE", "worker %d holds a confirmed reference to %v, which its owner %d has freed", w.id, h.id, h.owner)
			}
			if _, registered := o.forks.get(fork); !registered {
				s.fail("UNKNOWN", "worker %d holds a confirmed reference %v that its owner %d does not know", w.id, fork, h.owner)
			}
			if tag, tagged := owner.tags[h.id]; tagged && tag != ref.tag {
				s.fail("WRONG", "worker %d's reference %v leads to another object", w.id, fork)
			}
		}
	}
}

// checkLost tests what must hold for a worker that has just learned of another one's death: no reference to an object of
// the dead one may look alive.
func (s *simulation) checkLost(w *simWorker, gone Worker) {
	for fork, h := range w.m.handles {
		if h.owner == gone && h.state != failed {
			s.fail("DANGLING", "worker %d knows that %d is dead, and its reference %v does not", w.id, gone, fork)
		}
	}
}
