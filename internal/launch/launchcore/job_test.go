// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launchcore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

var jobLimits = JobLimits{Min: 2, Max: 3, MaxRestarts: 1, LastCall: 30 * time.Second, Join: 10 * time.Minute, Strikes: 3}

// short returns effects as text.
func say(effects []JobEffect) string {
	var out []string
	for _, e := range effects {
		switch e := e.(type) {
		case OpenStore:
			out = append(out, fmt.Sprintf("store%d", e.Attempt))
		case BeginNode:
			out = append(out, fmt.Sprintf("begin(%d:%d/%d ranks %d.. of %d)", e.Node, e.Assignment.Node, e.Nodes, e.Base, e.World))
		case StopNode:
			out = append(out, fmt.Sprintf("stop(%d)", e.Node))
		case Dismiss:
			out = append(out, fmt.Sprintf("dismiss(%d %v)", e.Node, e.OK))
		case Finished:
			out = append(out, fmt.Sprintf("finished(%v %s)", e.OK, e.Sentence))
		case SetTimer:
			out = append(out, "timer("+e.After.String()+")")
		}
	}
	return strings.Join(out, " ")
}

func join(n Node) Joined { return Joined{Node: n, Roles: []Role{{"default", 2}}, Wish: -1} }

// TestJob follows stories: each event with what it must lead to.
func TestJob(t *testing.T) {
	t.Parallel()
	type turn struct {
		event nodeEvent
		want  string
	}
	two := []turn{{join(1), ""}, {join(2), "timer(30s)"}, {TimerFired{2}, "store0 begin(1:0/2 ranks 0.. of 4) begin(2:1/2 ranks 2.. of 4)"}}
	three := []turn{
		{join(1), ""},
		{join(2), "timer(30s)"},
		{join(3), "store0 begin(1:0/3 ranks 0.. of 6) begin(2:1/3 ranks 2.. of 6) begin(3:2/3 ranks 4.. of 6)"},
	}
	for name, story := range map[string][]turn{
		"success": append(two[:3:3],
			turn{NodeEnded{Node: 1, OK: true}, ""}, turn{NodeEnded{Node: 2, OK: true}, "dismiss(1 true) dismiss(2 true) finished(true )"}),
		"a full house begins at once": three,
		"no other node joins": {
			{join(1), ""},
			{TimerFired{1}, "dismiss(1 false) finished(false 1 of 2 nodes joined within 10m0s)"},
		},
		"a failure restarts all, once": append(two[:3:3],
			turn{Failed{Node: 2, Failure: Failure{Sentence: "rank 3 failed"}}, "stop(1)"}, turn{NodeEnded{Node: 2, OK: false}, ""},
			turn{NodeEnded{Node: 1, OK: false}, "timer(10m0s) store1 begin(1:0/2 ranks 0.. of 4) begin(2:1/2 ranks 2.. of 4)"},
			turn{Failed{Node: 1, Failure: Failure{Sentence: "rank 0 failed"}}, "stop(2)"}, turn{NodeEnded{Node: 2, OK: false}, ""},
			turn{NodeEnded{Node: 1, OK: false}, "dismiss(1 false) dismiss(2 false) finished(false rank 0 failed)"}),
		"a newcomer is taken in, uncounted": append(two[:3:3],
			turn{join(3), "stop(1) stop(2)"}, turn{NodeEnded{Node: 1, OK: false}, ""},
			turn{
				NodeEnded{Node: 2, OK: false},
				"timer(10m0s) store1 begin(1:0/3 ranks 0.. of 6) begin(2:1/3 ranks 2.. of 6) begin(3:2/3 ranks 4.. of 6)",
			},
			turn{Failed{Node: 1, Failure: Failure{Sentence: "x"}}, "stop(2) stop(3)"}, turn{NodeEnded{Node: 2, OK: false}, ""},
			turn{NodeEnded{Node: 3, OK: false}, ""},
			turn{
				NodeEnded{Node: 1, OK: false},
				"timer(10m0s) store2 begin(1:0/3 ranks 0.. of 6) begin(2:1/3 ranks 2.. of 6) begin(3:2/3 ranks 4.. of 6)",
			}),
		"a spare takes a dead node's place": append(three[:3:3],
			turn{join(4), ""}, turn{Left{2, "node 2 is lost"}, "stop(1) stop(3)"}, turn{NodeEnded{Node: 1, OK: false}, ""},
			turn{
				NodeEnded{Node: 3, OK: false},
				"timer(10m0s) store1 begin(1:0/3 ranks 0.. of 6) begin(3:1/3 ranks 2.. of 6) begin(4:2/3 ranks 4.. of 6)",
			}),
		"without a spare there is a last call": append(three[:3:3],
			turn{Left{2, "node 2 is lost"}, "stop(1) stop(3)"}, turn{NodeEnded{Node: 1, OK: false}, ""},
			turn{NodeEnded{Node: 3, OK: false}, "timer(10m0s) timer(30s)"},
			turn{TimerFired{4}, "store1 begin(1:0/2 ranks 0.. of 4) begin(3:1/2 ranks 2.. of 4)"}),
		"too few are left": append(two[:3:3],
			turn{Left{2, "node 2 is lost"}, "stop(1)"}, turn{NodeEnded{Node: 1, OK: false}, "timer(10m0s)"},
			turn{TimerFired{3}, "dismiss(1 false) finished(false node 2 is lost; only 1 of 2 nodes were present 10m0s later)"}),
		"too few are left after a newcomer": append(two[:3:3],
			turn{join(3), "stop(1) stop(2)"}, turn{Left{3, "node 3 is gone"}, ""}, turn{Left{2, "node 2 is lost"}, ""},
			turn{NodeEnded{Node: 1, OK: false}, "timer(10m0s)"},
			turn{TimerFired{3}, "dismiss(1 false) finished(false node 2 is lost; only 1 of 2 nodes were present 10m0s later)"}),
		"a node that is done may leave": append(two[:3:3],
			turn{NodeEnded{Node: 1, OK: true}, ""}, turn{Left{1, "gone"}, ""},
			turn{NodeEnded{Node: 2, OK: true}, "dismiss(2 true) finished(true )"}),
		"all die while stopping": append(two[:3:3],
			turn{Failed{Node: 1, Failure: Failure{Sentence: "x"}}, "stop(2)"}, turn{Left{2, "gone"}, ""},
			turn{Left{1, "gone"}, "timer(10m0s)"}),
		"a node leaves during the last call": {
			{join(1), ""}, {join(2), "timer(30s)"}, {Left{2, "gone"}, ""}, {TimerFired{2}, "timer(10m0s)"}, {join(3), "timer(30s)"},
		},
		"old timers and strangers": append(two[:3:3], turn{TimerFired{1}, ""}, turn{NodeEnded{Node: 9, OK: true}, ""},
			turn{Left{9, ""}, ""}, turn{join(1), ""}),
	} {
		j := NewJob(jobLimits)
		if got := say(j.Start()); got != "timer(10m0s)" {
			t.Errorf("%s: start: %s", name, got)
		}
		for i, turn := range story {
			if got := say(j.Step(turn.event)); got != turn.want {
				t.Errorf("%s, turn %d, %#v:\n got %s\nwant %s", name, i, turn.event, got, turn.want)
				break
			}
		}
	}
}

// TestBlame: the sentence of the cause wins over those of consequences, wherever and whenever it comes.
func TestBlame(t *testing.T) {
	t.Parallel()
	j := NewJob(JobLimits{Min: 2, Max: 2, Join: time.Minute})
	j.Start()
	j.Step(join(1))
	j.Step(join(2))
	zero, two := cohort.Rank(0), cohort.Rank(2)
	lost := Failure{Sentence: "rank 0 lost its connection", Blame: 2, Rank: &zero}
	effects := j.Step(Failed{Node: 1, Failure: lost})
	if stop, ok := effects[0].(StopNode); !ok || !stop.Linger {
		t.Errorf("%#v, want a stop that waits for the cause", effects)
	}
	j.Step(NodeEnded{Node: 2, Failure: Failure{Sentence: "rank 2 raised ValueError", Rank: &two}})
	effects = j.Step(NodeEnded{Node: 1, Failure: lost})
	if got := say(effects); !strings.Contains(got, "finished(false rank 2 raised ValueError)") {
		t.Error(got)
	}
	for _, e := range effects {
		if d, ok := e.(Dismiss); ok && (d.Rank != &two || d.Code != cohort.Remote) {
			t.Errorf("node %d hears of rank %v and %v, want 2 and a remote error", d.Node, d.Rank, d.Code)
		}
	}
}

// TestCodeOfAHang: a failure with a code of its own ends the job with that code.
func TestCodeOfAHang(t *testing.T) {
	t.Parallel()
	j := NewJob(JobLimits{Min: 1, Max: 1, Join: time.Minute})
	j.Start()
	j.Step(join(1))
	effects := j.Step(NodeEnded{Node: 1, Failure: Failure{Sentence: "the job hung", Code: cohort.DeadlineExceeded}})
	if last, ok := effects[len(effects)-1].(Finished); !ok || last.Code != cohort.DeadlineExceeded || last.Rank != nil {
		t.Errorf("%#v", effects)
	}
}

// TestTakeover: a host that takes the place of one that is gone goes on with its count of attempts and restarts, and waits
// for the nodes that took part.
func TestTakeover(t *testing.T) {
	t.Parallel()
	j := NewJob(JobLimits{Min: 2, Max: 3, MaxRestarts: 2, Join: time.Minute, LastCall: time.Second})
	j.Start()
	first, second := join(1), join(2)
	first.Attempt, first.Restarts, second.Attempt, second.Restarts = 4, 2, 4, 1
	j.Step(first)
	var call SetTimer
	for _, e := range j.Step(second) {
		switch e := e.(type) {
		case SetTimer:
			call = e
		case BeginNode:
			t.Error("it begins before the last call is over")
		}
	}
	began := 0
	for _, e := range j.Step(TimerFired{ID: call.ID}) {
		if b, begins := e.(BeginNode); begins {
			began++
			if b.Attempt != 4 || b.Restarts != 2 || b.World != 4 {
				t.Errorf("assignment %+v", b.Assignment)
			}
		}
	}
	if began != 2 {
		t.Errorf("%d nodes begin", began)
	}
	j.Step(Failed{Node: 1, Failure: Failure{Sentence: "x"}})
	j.Step(NodeEnded{Node: 1})
	if got := say(j.Step(NodeEnded{Node: 2})); !strings.Contains(got, "finished(false x)") {
		t.Errorf("the third restart is allowed: %s", got)
	}

	j = NewJob(JobLimits{Min: 2, Max: 2, MaxRestarts: 1, Join: time.Minute})
	j.Start()
	first.Restarts = 2
	if got := say(j.Step(first)); !strings.Contains(got, "has no restarts left") {
		t.Error(got)
	}
}

func TestWishesAndRoles(t *testing.T) {
	t.Parallel()
	j := NewJob(JobLimits{Min: 3, Max: 3, Join: time.Minute})
	j.Start()
	j.Step(Joined{Node: 1, Roles: []Role{{"b", 1}}, Wish: 2})
	j.Step(Joined{Node: 2, Roles: []Role{{"a", 4}}, Wish: 0})
	var places []string
	for _, e := range j.Step(Joined{Node: 3, Roles: []Role{{"a", 2}, {"b", 3}}, Wish: 1}) {
		if b, begins := e.(BeginNode); begins {
			places = append(places, fmt.Sprintf("%d: %d+%d of %d, %v", b.Node, b.Assignment.Node, b.Base, b.World, b.Roles))
		}
	}
	want := "2: 0+0 of 10, [{a 0 6}]; 3: 1+4 of 10, [{a 4 6} {b 0 4}]; 1: 2+9 of 10, [{b 3 4}]"
	if got := strings.Join(places, "; "); got != want {
		t.Errorf("places are %s, want %s", got, want)
	}
}

// simNode is a node in the simulation.
type simNode struct {
	running        bool
	told           bool // dismissed
	next, restarts int  // how far the job had got when it last took part, as it tells a new host
}

// TestJobSimulation: nodes come late, die, fail, are slow to stop, and the host dies so that another node takes its place, in
// every order. The job ends; ranks of an attempt are dense and the same for all; no node is told to begin while it runs, nor an
// attempt that is not newer than its last; at most Max take part; restarts are bounded over all hosts.
func TestJobSimulation(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(10000) {
		r := rand.New(rand.NewPCG(seed, 11))
		limits := JobLimits{
			Min: 1 + r.IntN(3), MaxRestarts: r.IntN(4), LastCall: time.Second, Join: time.Minute, Strikes: 1 + r.IntN(3),
		}
		limits.Max = limits.Min + r.IntN(3)
		j := NewJob(limits)
		nodes := map[Node]*simNode{}
		var queue []nodeEvent
		timer := 0
		ended, sentence := false, ""
		takeovers := 0
		var rejoining []*simNode // nodes that are on their way to the new host
		perform := func(effects []JobEffect) {
			world, total, begun, count := -1, 0, 0, 0
			for _, e := range effects {
				if ended {
					t.Fatalf("seed %d: %#v after the end", seed, e)
				}
				switch e := e.(type) {
				case BeginNode:
					n := nodes[e.Node]
					if n == nil {
						continue // it has just died
					}
					if n.running || n.told {
						t.Fatalf("seed %d: node %d begins twice", seed, e.Node)
					}
					if e.Base != total || world >= 0 && world != e.World || e.Assignment.Node != begun {
						t.Fatalf("seed %d: ranks are not dense: %+v", seed, e)
					}
					// Where others went on without it, their count is the job's.
					if e.Attempt < n.next || e.Attempt == n.next && e.Restarts < n.restarts {
						t.Fatalf("seed %d: attempt %d, restarts %d for a node that has seen %d, %d", seed, e.Attempt, e.Restarts,
							n.next, n.restarts)
					}
					world, begun, count = e.World, begun+1, e.Nodes
					total += 2
					n.running, n.next, n.restarts = true, e.Attempt+1, e.Restarts
				case StopNode:
					if n := nodes[e.Node]; n != nil {
						queue = append(queue, NodeEnded{Node: e.Node, OK: false})
					}
				case Dismiss:
					if n := nodes[e.Node]; n != nil {
						n.told = true
					}
				case Finished:
					ended, sentence = true, e.Sentence
				case SetTimer:
					timer = e.ID
				case OpenStore:
				}
			}
			if begun > limits.Max || begun > 0 && begun < limits.Min || count > 0 && count != begun {
				t.Fatalf("seed %d: %d nodes of %d:%d begin, said to be %d", seed, begun, limits.Min, limits.Max, count)
			}
		}
		step := func(ev nodeEvent) {
			switch ev := ev.(type) {
			case NodeEnded:
				if n := nodes[ev.Node]; n == nil || !n.running {
					return
				}
				nodes[ev.Node].running = false
			case Failed:
				if n := nodes[ev.Node]; n == nil || !n.running {
					return
				}
				queue = append(queue, NodeEnded{Node: ev.Node, OK: false})
			case Left:
				delete(nodes, ev.Node)
			}
			perform(j.Step(ev))
		}
		perform(j.Start())
		next := Node(0)
		// takeover: the host dies with its node. The others end their workers and come to a new host, which knows nothing.
		takeover := func(host Node) {
			takeovers++
			delete(nodes, host)
			for id, n := range nodes {
				if delete(nodes, id); !n.told {
					n.running = false
					if n.next > 0 {
						n.restarts++
					}
					rejoining = append(rejoining, n)
				}
			}
			j, queue = NewJob(limits), nil
			perform(j.Start())
		}
		for turn := 0; !ended; turn++ {
			if turn > 5000 {
				t.Fatalf("seed %d: no end", seed)
			}
			var some Node
			for n := range nodes {
				some = n
				if r.IntN(2) == 0 {
					break
				}
			}
			switch r.IntN(14) {
			case 12:
				if len(nodes) > 0 && takeovers < 3 && turn < 200 && r.IntN(10) == 0 {
					takeover(some)
				}
			case 13:
				if n := len(rejoining); n > 0 {
					back := rejoining[n-1]
					rejoining = rejoining[:n-1]
					next++
					nodes[next] = back
					ev := join(next)
					ev.Attempt, ev.Restarts = back.next, back.restarts
					step(ev)
				}
			case 0, 1:
				if next < 12 && turn < 200 {
					next++
					nodes[next] = &simNode{}
					step(join(next))
				}
			case 2:
				if len(nodes) > 0 && r.IntN(6) == 0 {
					step(Left{some, "gone"})
				}
			case 3:
				if len(nodes) > 0 && r.IntN(3) == 0 {
					step(Failed{Node: some, Failure: Failure{Sentence: "failed"}})
				}
			case 4:
				if n := nodes[some]; n != nil && n.running && r.IntN(3) == 0 {
					step(NodeEnded{Node: some, OK: true})
				}
			case 5:
				if r.IntN(4) == 0 || turn > 200 {
					step(TimerFired{timer})
				}
			default:
				if len(queue) > 0 {
					i := r.IntN(len(queue))
					ev := queue[i]
					queue = append(queue[:i:i], queue[i+1:]...)
					step(ev)
				}
			}
		}
		if j.restarts > limits.MaxRestarts {
			if sentence != "the launcher that hosted the rendezvous is lost, and the job has no restarts left" {
				t.Fatalf("seed %d: %d restarts of %d", seed, j.restarts, limits.MaxRestarts)
			}
		}
		for n, s := range nodes {
			if !s.told {
				t.Fatalf("seed %d: node %d was not told of the end", seed, n)
			}
		}
	}
}
