// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// calm returns a world without faults that has a leader and clients at work.
func calm(t *testing.T, seed uint64) (w *world, leader *host) {
	t.Helper()
	w = newWorld(seed, options{members: 3, clients: 3})
	w.lastAsk, w.jitter = time.Hour, time.Millisecond
	for _, h := range w.hosts {
		h.slow = 0
	}
	w.run(5*time.Second, func() bool { return false })
	if leader = w.leader(); leader == nil || w.failed != "" {
		t.Fatalf("seed %d: it has no leader after %v: %s", seed, w.clock, w.failed)
	}
	return w, leader
}

// wait lets time pass for so long, and fails the test if something goes wrong.
func (w *world) wait(t *testing.T, d time.Duration, enough func() bool) time.Duration {
	t.Helper()
	begun := w.clock
	w.run(begun+d, enough)
	if w.failed != "" {
		t.Fatal(w.failed)
	}
	return w.clock - begun
}

func never() bool { return false }

// cut cuts a member off, or connects it again.
func (w *world) cut(h *host, off bool) {
	for _, other := range w.hosts {
		w.blocked[[2]uint64{h.id, other.id}] = off
		w.blocked[[2]uint64{other.id, h.id}] = off
	}
}

// TestReturn: a member that was cut off for a long time does not depose the leader when it comes back.
//
//nolint:paralleltest // raft draws from the random source of the process
func TestReturn(t *testing.T) {
	for seed := range seeds.Range(6) {
		w, leader := calm(t, seed)
		term := leader.machine.Status().Term
		other := w.hosts[leader.id%3]
		w.cut(other, true)
		w.wait(t, 5*time.Second, never)
		w.cut(other, false)
		w.wait(t, 5*time.Second, never)
		if now := w.leader(); now == nil || now.machine.Status().Term != term {
			t.Fatalf("seed %d: the leader of term %d was deposed: %s", seed, term, w.describe())
		}
	}
}

// TestCutOffLeader: a leader that was cut off notices it, and clients get their answers from the next one.
//
//nolint:paralleltest // as above
func TestCutOffLeader(t *testing.T) {
	for seed := range seeds.Range(6) {
		w, leader := calm(t, seed)
		w.cut(leader, true)
		w.wait(t, 5*time.Second, never)
		if self, _ := leader.machine.Leading(); self {
			t.Fatalf("seed %d: a leader that was cut off still leads", seed)
		}
		if next := w.leader(); next == nil {
			t.Fatalf("seed %d: the others have no leader: %s", seed, w.describe())
		}
	}
}

// TestFailover: a new leader is there soon after the connections of the old one have broken, and within two seconds if it fell silent.
//
//nolint:paralleltest // as above
func TestFailover(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  time.Duration
		silent bool
	}{{"broken", 400 * time.Millisecond, false}, {"silent", 2 * time.Second, true}} {
		var longest time.Duration
		for seed := range seeds.Range(12) {
			w, leader := calm(t, seed)
			if c.silent {
				w.cut(leader, true)
			} else {
				leader.up = false
				for _, h := range w.hosts {
					h.later(w.upTo(20*time.Millisecond), func() {
						h.machine.PeerBroken(leader.id)
						h.effects()
					})
				}
			}
			took := w.wait(t, 10*time.Second, func() bool { next := w.leader(); return next != nil && next != leader })
			if longest = max(longest, took); took > c.limit {
				t.Fatalf("%s, seed %d: a new leader after %v, want %v", c.name, seed, took, c.limit)
			}
		}
		t.Logf("%s: a new leader after at most %v", c.name, longest)
	}
}

// TestFullLeader: a leader whose disk is full hands over, and everything goes on.
//
//nolint:paralleltest // as above
func TestFullLeader(t *testing.T) {
	for seed := range seeds.Range(6) {
		w, leader := calm(t, seed)
		leader.disk.full = true
		w.wait(t, 3*time.Second, never)
		done := len(w.history)
		w.wait(t, 2*time.Second, never)
		if len(w.history) == done {
			t.Fatalf("seed %d: nothing goes on while the disk of one member is full: %s", seed, w.describe())
		}
		leader.disk.full = false
		w.lastAsk = w.clock
		w.wait(t, 10*time.Second, func() bool { return w.idle() && w.converged() })
		if !w.converged() {
			t.Fatalf("seed %d: it does not heal: %s", seed, w.describe())
		}
	}
}

// TestMutants: the simulation finds every safeguard that is missing.
func TestMutants(t *testing.T) {
	t.Parallel()
	mutation.Found(t)
}
