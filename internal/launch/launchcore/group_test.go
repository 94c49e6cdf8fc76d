// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launchcore

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

var testLimits = Limits{
	Evidence: 100 * time.Millisecond, Linger: 5 * time.Second, Grace: 30 * time.Second, Interrupt: 2 * time.Second, Kill: 5 * time.Second,
}

// script steps a group of three workers and compares the effects of the last event.
func TestGroup(t *testing.T) {
	t.Parallel()
	all := []Worker{0, 1, 2}
	failed := []Event{Begin{}, Exited{Worker: 1, Code: 7}}
	stopped := append(slices.Clone(failed), EvidenceTaken{})
	asked := []Event{Begin{}, UserSignal{SIGINT}}
	marked := append(slices.Clone(asked), EvidenceTaken{})
	interrupted := append(slices.Clone(marked), Marked{})
	lost := []Event{Begin{}, Exited{Worker: 0, Code: 1, Consequence: true}, EvidenceTaken{}}
	for name, c := range map[string]struct {
		before []Event
		event  Event
		want   []Effect
	}{
		"begin":                          {nil, Begin{}, []Effect{Start{}}},
		"an early success has no effect": {[]Event{Begin{}}, Exited{Worker: 1}, nil},
		"the last success ends": {
			[]Event{Begin{}, Exited{Worker: 1}, Exited{Worker: 0}},
			Exited{Worker: 2},
			[]Effect{Sweep{}, SetTimer{1, 5 * time.Second}},
		},
		"evidence before any signal": {
			[]Event{Begin{}},
			Exited{Worker: 1, Code: 7},
			[]Effect{TakeEvidence{}, SetTimer{1, 100 * time.Millisecond}},
		},
		"then the others are stopped": {
			failed,
			EvidenceTaken{},
			[]Effect{Failing{}, Send{[]Worker{0, 2}, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"evidence that is late": {
			failed,
			TimerFired{1},
			[]Effect{Failing{}, Send{[]Worker{0, 2}, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"who still runs is named": {
			stopped,
			TimerFired{2},
			[]Effect{Waits{[]Worker{0, 2}, 26 * time.Second}, SetTimer{3, 26 * time.Second}},
		},
		"grace ends": {
			append(slices.Clone(stopped), TimerFired{2}),
			TimerFired{3},
			[]Effect{Send{[]Worker{0, 2}, SIGKILL}, SetTimer{4, 5 * time.Second}},
		},
		"an old timer":                {stopped, TimerFired{1}, nil},
		"a consequence is waited for": {lost[:2], EvidenceTaken{}, []Effect{Failing{}, SetTimer{2, 5 * time.Second}}},
		"until the cause shows itself": {
			lost,
			Exited{Worker: 1, Code: 1},
			[]Effect{Send{[]Worker{2}, SIGTERM}, SetTimer{3, 4 * time.Second}},
		},
		"another consequence has no effect": {lost, Exited{Worker: 2, Code: 1, Consequence: true}, nil},
		"nor is a success":                  {lost, Exited{Worker: 2}, nil},
		"waiting for the cause ends":        {lost, TimerFired{2}, []Effect{Send{[]Worker{1, 2}, SIGTERM}, SetTimer{3, 4 * time.Second}}},
		"a signal: evidence first": {
			[]Event{Begin{}},
			UserSignal{SIGTERM},
			[]Effect{TakeEvidence{}, SetTimer{1, 100 * time.Millisecond}},
		},
		"SIGTERM is passed on": {
			[]Event{Begin{}, UserSignal{SIGTERM}},
			EvidenceTaken{},
			[]Effect{Send{all, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"SIGINT: where the workers are": {asked, EvidenceTaken{}, []Effect{Mark{all}, SetTimer{2, 2 * time.Second}}},
		"then it is passed on":          {marked, Marked{}, []Effect{Send{all, SIGINT}, SetTimer{3, 2 * time.Second}}},
		"which must not take long":      {marked, TimerFired{2}, []Effect{Send{all, SIGINT}, SetTimer{3, 2 * time.Second}}},
		"which a stop does not change":  {marked, Stop{}, nil},
		"and which is done all the same": {
			append(slices.Clone(marked), Stop{}),
			Marked{},
			[]Effect{Send{all, SIGINT}, SetTimer{3, 2 * time.Second}},
		},
		"who does not react is found": {interrupted, TimerFired{3}, []Effect{FindStuck{all}, SetTimer{4, 2 * time.Second}}},
		"and sent SIGTERM": {
			append(slices.Clone(interrupted), TimerFired{3}),
			Stuck{[]Worker{2}},
			[]Effect{Send{[]Worker{2}, SIGTERM}},
		},
		"who reacts to none is named": {
			append(slices.Clone(interrupted), TimerFired{3}),
			TimerFired{4},
			[]Effect{Waits{all, 26 * time.Second}, SetTimer{5, 26 * time.Second}},
		},
		"a second SIGINT kills": {interrupted, UserSignal{SIGINT}, []Effect{Send{all, SIGKILL}, SetTimer{4, 5 * time.Second}}},
		"at once, too": {
			marked,
			UserSignal{SIGINT},
			[]Effect{Send{all, SIGINT}, SetTimer{3, 2 * time.Second}, Send{all, SIGKILL}, SetTimer{4, 5 * time.Second}},
		},
		"and during the look": {
			asked,
			UserSignal{SIGINT},
			[]Effect{Send{all, SIGINT}, SetTimer{2, 2 * time.Second}, Send{all, SIGKILL}, SetTimer{3, 5 * time.Second}},
		},
		"unless no worker is left": {
			append(slices.Clone(asked), Exited{Worker: 0}, Exited{Worker: 1}, Exited{Worker: 2}),
			UserSignal{SIGINT},
			nil,
		},
		"a signal after a failure": {
			append(slices.Clone(failed), UserSignal{SIGTERM}),
			EvidenceTaken{},
			[]Effect{Send{[]Worker{0, 2}, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"SIGINT while stopping kills": {
			stopped,
			UserSignal{SIGINT},
			[]Effect{Send{[]Worker{0, 2}, SIGKILL}, SetTimer{3, 5 * time.Second}},
		},
		"SIGUSR1 is only passed on":     {[]Event{Begin{}, Exited{Worker: 1}}, PassedSignal{10}, []Effect{Pass{[]Worker{0, 2}, 10}}},
		"another node failed: evidence": {[]Event{Begin{}}, Stop{}, []Effect{TakeEvidence{}, SetTimer{1, 100 * time.Millisecond}}},
		"these are stopped, too": {
			[]Event{Begin{}, Stop{}},
			EvidenceTaken{},
			[]Effect{Send{all, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"another node lost a peer": {[]Event{Begin{}, Stop{Linger: true}}, EvidenceTaken{}, []Effect{SetTimer{2, 5 * time.Second}}},
		"which was the cause": {
			[]Event{Begin{}, Stop{Linger: true}, EvidenceTaken{}},
			Exited{Worker: 1, Code: 1},
			[]Effect{Send{[]Worker{0, 2}, SIGTERM}, SetTimer{3, 4 * time.Second}},
		},
		"or at the same time": {
			[]Event{Begin{}, Stop{Linger: true}, Exited{Worker: 1, Code: 1}},
			EvidenceTaken{},
			[]Effect{Send{[]Worker{0, 2}, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"a hang is looked at": {[]Event{Begin{}}, Hung{}, []Effect{TakeEvidence{Hung: true}, SetTimer{1, 100 * time.Millisecond}}},
		"and stopped": {
			[]Event{Begin{}, Hung{}},
			EvidenceTaken{},
			[]Effect{Failing{Hung: true}, Send{all, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"who was never started is not": {
			[]Event{Begin{}, Refused{Worker: 1, Rest: true}},
			EvidenceTaken{},
			[]Effect{Failing{}, Send{[]Worker{0}, SIGTERM}, SetTimer{2, 4 * time.Second}},
		},
		"nor waited for": {
			[]Event{Begin{}, Refused{Worker: 0, Rest: true}},
			EvidenceTaken{},
			[]Effect{Failing{}, Sweep{}, SetTimer{2, 5 * time.Second}},
		},
		"a signal before the start": {nil, UserSignal{SIGINT}, []Effect{Ended{Outcome{Signal: SIGINT}}}},
		"a worker that does not end after SIGKILL": {
			append(slices.Clone(stopped), TimerFired{2}, TimerFired{3}, Exited{Worker: 0, Code: -9}, TimerFired{4}),
			TimerFired{5},
			[]Effect{Ended{Outcome{Immortal: []Worker{2}, Exits: []Exit{{Worker: 1, Code: 7}, {Worker: 0, Code: -9, AfterSignal: true}}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewGroup(3, testLimits)
			for _, ev := range c.before {
				g.Step(ev)
			}
			if diff := cmp.Diff(c.want, g.Step(c.event)); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpares: so many workers may fail while the others go on.
func TestSpares(t *testing.T) {
	t.Parallel()
	limits := testLimits
	limits.Spares = 1
	spared := []Event{Begin{}, Exited{Worker: 1, Code: -9}}
	exits := []Exit{{Worker: 1, Code: -9, Spared: true}, {Worker: 0}, {Worker: 2}}
	for name, c := range map[string]struct {
		before []Event
		event  Event
		want   []Effect
	}{
		"the others go on": {spared[:1], spared[1], []Effect{GoOn{Worker: 1}}},
		"one too many": {
			spared,
			Exited{Worker: 0, Code: 1},
			[]Effect{TakeEvidence{}, SetTimer{1, 100 * time.Millisecond}},
		},
		"a consequence of one too many": {
			append(slices.Clone(spared), Exited{Worker: 0, Code: 1, Consequence: true}),
			EvidenceTaken{},
			[]Effect{Failing{}, SetTimer{2, 5 * time.Second}},
		},
		"the others succeed": {
			append(slices.Clone(spared), Exited{Worker: 0}),
			Exited{Worker: 2},
			[]Effect{Sweep{}, SetTimer{1, 5 * time.Second}},
		},
		"which is a success": {
			append(slices.Clone(spared), Exited{Worker: 0}, Exited{Worker: 2}),
			Swept{},
			[]Effect{Ended{Outcome{Exits: exits}}},
		},
		"the last one is spared too": {
			[]Event{Begin{}, Exited{Worker: 0}, Exited{Worker: 2}},
			Exited{Worker: 1, Code: 1},
			[]Effect{GoOn{Worker: 1}, Sweep{}, SetTimer{1, 5 * time.Second}},
		},
		"a program that cannot start":    {spared[:1], Refused{Worker: 0}, []Effect{TakeEvidence{}, SetTimer{1, 100 * time.Millisecond}}},
		"those that are stopped are not": {[]Event{Begin{}, UserSignal{SIGTERM}}, Exited{Worker: 1, Code: -15}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewGroup(3, limits)
			for _, ev := range c.before {
				g.Step(ev)
			}
			if diff := cmp.Diff(c.want, g.Step(c.event)); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
		})
	}
	if o := (Outcome{Exits: exits}); !o.Succeeded() {
		t.Errorf("%+v is a failure", o)
	}
}

// simulated is a group among workers that end, ignore signals or cannot be killed, with events in any order.
type simulated struct {
	t         *testing.T
	r         *rand.Rand
	g         *Group
	seed      uint64
	now       time.Duration
	timer     SetTimer
	due       time.Duration
	answers   []Event
	dead      []bool
	known     []bool // the group was told
	stubborn  []bool // ignores everything but SIGKILL
	immortal  []bool
	asked     bool // the group was told to end
	failed    bool
	looked    bool
	signalled time.Duration
	killed    bool
	ends      []Ended
}

func (s *simulated) step(ev Event) {
	switch ev := ev.(type) {
	case Exited:
		s.failed = s.failed || ev.Code != 0
		s.known[ev.Worker] = true
	case Refused:
		s.failed = true
	case Stop, UserSignal, Hung:
		s.asked = true
	}
	for _, e := range s.g.Step(ev) {
		s.perform(e)
	}
}

func (s *simulated) perform(e Effect) {
	if len(s.ends) > 0 {
		s.t.Fatalf("seed %d: %#v after the end", s.seed, e)
	}
	switch e := e.(type) {
	case TakeEvidence:
		s.looked = true
		if s.r.IntN(4) > 0 {
			s.answers = append(s.answers, EvidenceTaken{})
		}
	case SetTimer:
		s.timer, s.due = e, s.now+e.After
	case Send:
		if len(e.Workers) == 0 {
			s.t.Fatalf("seed %d: a signal to no worker", s.seed)
		}
		if e.Signal != 10 && !s.asked && !s.failed {
			s.t.Fatalf("seed %d: signal %d though nothing happened", s.seed, e.Signal)
		}
		if e.Signal != 10 && !s.looked {
			s.t.Fatalf("seed %d: signal %d without a look at the workers before", s.seed, e.Signal)
		}
		if e.Signal == SIGKILL {
			s.killed = true
		} else if s.signalled == 0 {
			s.signalled = s.now
		}
		for _, w := range e.Workers {
			if s.known[w] {
				s.t.Fatalf("seed %d: signal %d to worker %d, which has ended", s.seed, e.Signal, w)
			}
			if e.Signal == 10 || s.dead[w] || (s.stubborn[w] && e.Signal != SIGKILL) || (s.immortal[w] && e.Signal == SIGKILL) {
				continue
			}
			s.dead[w] = true
			s.answers = append(s.answers, Exited{Worker: w, Code: -int(e.Signal)})
		}
	case Mark:
		if s.r.IntN(4) > 0 {
			s.answers = append(s.answers, Marked{})
		}
	case FindStuck:
		s.answers = append(s.answers, Stuck(e))
	case Sweep:
		s.answers = append(s.answers, Swept{})
	case Ended:
		s.ends = append(s.ends, e)
	case Start, Failing, Waits:
	}
}

// TestGroupSimulation runs many groups with random deaths, signals and delays. Whatever happens, a group ends within the
// sum of its limits after it was first disturbed, says so once, and names all ends and all that did not end.
func TestGroupSimulation(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(20000) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 1 + r.IntN(5)
		s := &simulated{
			t: t, r: r, seed: seed, g: NewGroup(n, testLimits), dead: make([]bool, n), known: make([]bool, n),
			stubborn: make([]bool, n), immortal: make([]bool, n),
		}
		for w := range n {
			s.stubborn[w] = r.IntN(3) == 0
			s.immortal[w] = r.IntN(40) == 0
		}
		s.step(Begin{})
		disturbed := time.Duration(-1)
		for turn := 0; len(s.ends) == 0; turn++ {
			if turn > 2000 {
				t.Fatalf("seed %d: no end", seed)
			}
			s.now += time.Duration(r.IntN(50)) * time.Millisecond
			switch r.IntN(8) {
			case 0:
				if w := r.IntN(n); !s.dead[w] && !s.immortal[w] {
					s.dead[w] = true
					s.answers = append(s.answers, Exited{Worker: Worker(w), Code: r.IntN(3) - 1, Consequence: r.IntN(2) == 0})
				}
			case 1:
				if r.IntN(20) == 0 {
					s.answers = append(s.answers,
						[]Event{Stop{}, Stop{Linger: true}, Hung{}, UserSignal{SIGINT}, UserSignal{SIGTERM}, PassedSignal{10}}[r.IntN(6)])
				}
			default:
				if len(s.answers) > 0 {
					i := 0
					if r.IntN(3) == 0 {
						i = r.IntN(len(s.answers))
					}
					ev := s.answers[i]
					s.answers = slices.Delete(s.answers, i, i+1)
					s.step(ev)
				} else if s.timer.ID != 0 && (s.now >= s.due || r.IntN(3) == 0) {
					s.now = max(s.now, s.due)
					s.step(TimerFired{s.timer.ID})
				}
			}
			if disturbed < 0 && (s.asked || s.failed) {
				disturbed = s.now
			}
		}
		limit := testLimits.Evidence + testLimits.Linger + testLimits.Grace + 3*testLimits.Kill + 100*time.Second // and the turns
		if disturbed >= 0 && s.now-disturbed > limit {
			t.Fatalf("seed %d: it took %v to end", seed, s.now-disturbed)
		}
		o := s.ends[0].Outcome
		if len(o.Exits)+len(o.Immortal) != n {
			t.Fatalf("seed %d: %d ends and %d immortal of %d workers", seed, len(o.Exits), len(o.Immortal), n)
		}
		if o.Succeeded() && (s.failed || s.asked && s.signalled > 0) {
			t.Fatalf("seed %d: a success after a failure", seed)
		}
		if s.killed && s.signalled == 0 {
			t.Fatalf("seed %d: SIGKILL without a warning", seed)
		}
	}
}

// TestEvidenceFirst: whatever the order of events, a failure is looked at before any worker is signalled.
func TestEvidenceFirst(t *testing.T) {
	t.Parallel()
	g := NewGroup(2, testLimits)
	g.Step(Begin{})
	effects := g.Step(Exited{Worker: 0, Code: 1})
	effects = append(effects, g.Step(Exited{Worker: 1, Code: 1, Consequence: true})...)
	for _, e := range effects {
		if _, sent := e.(Send); sent {
			t.Errorf("%#v before the evidence", e)
		}
	}
	want := []Effect{Failing{}, Sweep{}, SetTimer{2, 5 * time.Second}}
	if diff := cmp.Diff(want, g.Step(EvidenceTaken{})); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}
