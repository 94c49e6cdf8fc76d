// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
)

// forgery is a message that D makes up. D is a member of the world, knows every id, and was given no reference.
type forgery struct {
	to  Worker
	msg Message
}

func (f forgery) send(s *state) {
	s.mut(wD).send(f.to, f.msg)
	s.drain(wD)
}

// forgeries lists what D may make up: every kind of message, to everybody, about every fork that there may be.
func (c config) forgeries(s *state) []forgery {
	var all []forgery
	epoch := func(w Worker) Epoch {
		if c.isTorch(w) {
			return 0
		}
		return Epoch(100 + w)
	}
	of := func(w Worker, n uint64) ID { return ID{On: w, N: n, Epoch: epoch(w)} }
	root := of(wA, 1)
	theirs := []ID{root, of(wA, 2), of(wA, 3), of(wC, 0)}
	add := func(to Worker, m Message) {
		if s.m[to] != nil {
			m.ID, m.Root, m.Owner, m.OwnerEpoch = s.object, root, wO, epoch(wO)
			all = append(all, forgery{to, m})
		}
	}
	for _, key := range []Key{{}, {9}} {
		for _, fork := range append(theirs, of(wD, 50)) {
			add(wO, Message{Kind: ForkRequest, Fork: fork, Key: key})
		}
		add(wO, Message{Kind: Announce, Fork: root, Key: key})
		add(wO, Message{Kind: Handoff, Fork: of(wD, 50), Key: key})
	}
	for _, fork := range theirs {
		for _, kind := range []Kind{Delete, Cancel, Withdraw} {
			add(wO, Message{Kind: kind, Fork: fork})
		}
		for _, user := range []Worker{wA, wC} {
			for _, kind := range []Kind{ChildAccept, Created, Withdraw} {
				add(user, Message{Kind: kind, Fork: fork})
			}
			add(user, Message{Kind: ForkReply, Fork: fork})
			add(user, Message{Kind: ForkReply, Fork: fork, Code: Gone})
		}
	}
	return all
}

// stolen reports whether the owner lets D use the object, although D was not given it.
func (s *state) stolen() bool {
	if s.m[wO] == nil || strings.Contains(s.shared, "D") {
		return false
	}
	o := s.m[wO].objects[s.object]
	if o == nil {
		return false
	}
	for _, f := range o.forks.all() {
		if f.worker == wD {
			return true
		}
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(o.offers)), func(l life) bool { return l.worker == wD })
}

// TestForger lets a Go worker that was given nothing make up any control message at any moment. It gets nothing, and takes
// nothing from any worker: no early end, no leak, no object that splits.
func TestForger(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	for _, c := range []struct {
		name    string
		cfg     config
		want    string
		mutants []string
		large   bool
	}{
		{"among Go workers", config{shares: "C", forge: 1}, "", nil, false},
		{"among Go workers, the owner gets it back", config{shares: "P", forge: 1}, "", nil, false},
		{"two messages", config{forge: 2}, "", nil, true},
		{"the creation times out", config{forge: 1, timeout: 1}, "", nil, false},
		{"the creator dies", config{shares: "C", forge: 1, crash: []Worker{wA}, detect: true}, "", nil, true},
		{"a PyTorch worker that was given nothing", config{torch: "C", shares: "P", forge: 1}, "", []string{"PyTorch"}, false},
		// What PyTorch's wire cannot prevent: D says that it got the reference from the PyTorch worker which holds one. The leak
		// is what D keeps.
		{"a PyTorch worker made the object", config{torch: "A", shares: "C", forge: 1}, "LEAK THEFT", []string{"PyTorch"}, false},
		{"a PyTorch worker holds the reference", config{torch: "C", shares: "C", forge: 1}, "LEAK THEFT", []string{"PyTorch"}, false},
		// The switch shows what the proof is for.
		{"without proof", config{shares: "C", forge: 1}, "LEAK THEFT", []string{"NoKeys"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			skipOther(t, c.large)
			if c.mutants != nil && !mutation.With(t, c.mutants...) {
				return
			}
			broken, states := c.cfg.explore(t, nil)
			t.Logf("count: reference checker: a forger, %s: %d states", c.name, states)
			if found := strings.Join(slices.Sorted(maps.Keys(broken)), " "); found != c.want {
				t.Errorf("found %q, want %q", found, c.want)
				for v, trace := range broken {
					t.Errorf("%s:\n  %s", v, strings.Join(trace, "\n  "))
				}
			}
		})
	}
}
