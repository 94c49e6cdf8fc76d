// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// claimant is a rank in a simulation of the claims.
type claimant struct {
	*claims
	next   time.Duration // when it looks
	until  time.Duration // when its process ends
	text   []byte        // what it saw last
	failed time.Duration // when it found a conflict
	late   bool          // others had failed before it looked for the first time
}

// claimSim is a store with one key and ranks that look at it.
type claimSim struct {
	rng   *rand.Rand
	text  []byte
	ranks []*claimant
	now   time.Duration
}

func (w *claimSim) add(rank, size int, from, until time.Duration) *claimant {
	c := &claimant{claims: newClaims(claim{Size: size, Rank: rank, Host: "h", PID: rank}), next: from, until: until}
	c.word = func() string { return strconv.FormatUint(w.rng.Uint64(), 36) }
	w.ranks = append(w.ranks, c)
	return c
}

// step lets the next rank look, as sizeWatch does, where others may look between its question and its claim.
func (w *claimSim) step() bool {
	var c *claimant
	for _, x := range w.ranks {
		if x.failed == 0 && x.next < x.until && (c == nil || x.next < c.next) {
			c = x
		}
	}
	if c == nil {
		return false
	}
	w.now = c.next
	c.next += claimEvery + time.Duration(w.rng.Int64N(int64(50*time.Millisecond)))
	var conflict *claim
	if c.seen == nil {
		conflict, _ = c.look(w.text)
		c.text = w.text
		c.late = slices.ContainsFunc(w.ranks, func(x *claimant) bool { return x.failed > 0 })
	}
	if bytes.Equal(c.text, w.text) {
		w.text = c.renewed(w.text, conflict)
	} else {
		other, renew := c.look(w.text)
		if conflict = other; conflict != nil || renew {
			w.text = c.renewed(w.text, conflict)
		}
	}
	if c.text = w.text; conflict != nil {
		c.failed = w.now
	}
	return true
}

// TestClaimsSimulation: ranks that wait at the same time and were given different sizes all find that out within two seconds. What ended
// jobs left does not count, nor does a rank of another size that ends soon after the others come.
func TestClaimsSimulation(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(500) {
		w := &claimSim{rng: rand.New(rand.NewPCG(seed, 0))}
		within := func(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }
		for range w.rng.IntN(4) { // jobs before
			size := 1 + w.rng.IntN(12)
			for r := range 1 + w.rng.IntN(size) {
				w.add(r, size, within(time.Second), time.Second+within(20*time.Second))
			}
			for w.step() {
			}
			w.ranks = nil
		}
		start := 60 * time.Second
		late := start + within(5*time.Second)
		differ := w.rng.IntN(2) == 0
		size := 2 + w.rng.IntN(6)
		for r := range size {
			w.add(r, size, start+within(3*time.Second), 5*time.Minute)
		}
		last := late
		if differ {
			for r := range 1 + w.rng.IntN(3) {
				last = max(last, w.add(r, size+1+w.rng.IntN(2), late+within(300*time.Millisecond), 5*time.Minute).next)
			}
		} else { // one whose time is over when the others come
			w.add(0, size+1, start-5*time.Second, start+within(claimEvery))
		}
		for w.now < 2*time.Minute && w.step() {
		}
		last = max(last, start+3*time.Second)
		for _, c := range w.ranks {
			switch {
			case c.until < 5*time.Minute:
			case differ && c.failed == 0 && c.late: // the others had failed before it looked: it says so when its time is over
				if c.earlier(w.text) == "" {
					t.Errorf("seed %d: rank %d of %d says nothing of the others", seed, c.me.Rank, c.me.Size)
				}
			case differ && (c.failed == 0 || c.failed > last+2*time.Second):
				t.Errorf("seed %d: rank %d of %d found the conflict at %v, the last came at %v", seed, c.me.Rank, c.me.Size, c.failed, last)
			case !differ && c.failed != 0:
				t.Errorf("seed %d: rank %d of %d found a conflict where there is none", seed, c.me.Rank, c.me.Size)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestClaimsAreBounded: what stands under the key is small, also when other processes wrote what they like, and is not shown as it is.
func TestClaimsAreBounded(t *testing.T) {
	t.Parallel()
	list := make([]claim, 0, 1000)
	for size := range 1000 {
		list = append(list, claim{Size: size + 1, Host: "h", Word: "w"})
	}
	many, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "x", "[{}]", `[{"size":2,"rank":7,"word":"w"}]`, string(many)} {
		c := newClaims(claim{Size: 3, Rank: 1})
		if conflict, renew := c.look([]byte(text)); conflict != nil || !renew {
			t.Errorf("%.20q: %v, %v", text, conflict, renew)
		}
		if all := parseClaims(c.renewed([]byte(text), nil)); len(all) > maxClaims || all[3].Rank != 1 {
			t.Errorf("%.20q: %v", text, all)
		}
	}
	hostile := disagree(claim{Size: 2, Host: "\x1b[2J"}, claim{Size: 3, Host: strings.Repeat("h", 1000)})
	if strings.Contains(hostile, "\x1b") || len(hostile) > 300 {
		t.Errorf("%q", hostile)
	}
}
