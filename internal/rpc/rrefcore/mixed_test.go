// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
)

// fault is one thing that goes wrong in a world.
type fault struct {
	name string
	cfg  config
	// leaks tells in which mixed worlds something is left over: those in which only a PyTorch worker could prevent it.
	leaks func(c config) bool
}

var mixedFaults = []fault{
	{"nothing", config{}, func(config) bool { return false }},
	{"a control message is repeated", config{dup: 1}, func(c config) bool { return c.isTorch(wO) }},
	{"the creation times out", config{timeout: 1}, func(c config) bool { return c.isTorch(wO) && c.isTorch(wA) }},
	{"a carrier is lost", config{lose: 1}, config.carriesOnAPipe},
	{"a carrier cannot be decoded", config{refuse: 1}, config.carriesOnAPipe},
	{"the creator dies", config{crash: []Worker{wA}, detect: true}, func(c config) bool { return c.isTorch(wO) }},
	{"a user dies", config{crash: []Worker{wC}, detect: true}, func(c config) bool { return c.isTorch(wO) || c.isTorch(wA) }},
}

// carriesOnAPipe reports whether a reference is handed over by PyTorch's protocol, which has no word for taking it back.
func (c config) carriesOnAPipe() bool {
	for share := range strings.SplitSeq(c.shares, "") {
		from, to := map[string]Worker{"C": wA, "D": wC, "P": wA}[share], roleOf[share]
		if c.wire(from, to) == PyTorch {
			return true
		}
	}
	return false
}

// TestMixedWorlds explores every world of Go and PyTorch workers with every fault, and says exactly what is broken in which:
//
//   - never is an object freed under a reference that is confirmed or pending, whichever workers are PyTorch's;
//   - an object splits only at a PyTorch owner that uses it while it is being made;
//   - something is left over only as the table of faults says.
func TestMixedWorlds(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	for _, f := range mixedFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			skipOther(t, f.cfg.dup > 0 || f.cfg.crash != nil)
			if !mutation.With(t, "PyTorch") {
				return
			}
			total := 0
			for bits := 1; bits < 15; bits++ {
				c := f.cfg
				for w := wO; w <= wD; w++ {
					if bits&(1<<w) != 0 {
						c.torch += "OACD"[w : w+1]
					}
				}
				for _, c.shares = range []string{"CD", "CP"} {
					if c.shares == "CP" && c.isTorch(wD) {
						continue // D is not given anything
					}
					var want []string
					if f.leaks(c) {
						want = append(want, "LEAK")
					}
					if c.isTorch(wO) && c.shares == "CP" {
						want = append(want, "SPLIT")
					}
					broken, states := c.explore(t, nil)
					total += states
					if found := slices.Sorted(maps.Keys(broken)); !slices.Equal(found, want) {
						t.Errorf("PyTorch workers %s, shares %s: found %v, want %v", c.torch, c.shares, found, want)
						for v, trace := range broken {
							if !slices.Contains(want, v) {
								t.Errorf("%s:\n  %s", v, strings.Join(trace, "\n  "))
							}
						}
					}
				}
			}
			t.Logf("count: reference checker: mixed worlds, %s: %d states", f.name, total)
		})
	}
}

// TestMixedWorldsNeedTheGrace: without the grace period the death of a user takes objects from those it has just handed
// them to, PyTorch workers or not.
func TestMixedWorldsNeedTheGrace(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the checker runs one goroutine and takes minutes under the race detector")
	}
	if !mutation.With(t, "NoGrace", "NoRefusal", "PyTorch") {
		return
	}
	for _, torch := range []string{"C", "ACD"} {
		c := config{torch: torch, crash: []Worker{wC}, detect: true, shares: "CD"}
		if broken, _ := c.explore(t, []string{"PENDING"}); broken["PENDING"] == nil {
			t.Errorf("PyTorch workers %s: found %v", torch, slices.Sorted(maps.Keys(broken)))
		}
	}
}

// TestKeyKnowsAllFields fails when a machine gets a field that the key of a state does not hold. What is named here is in
// the key, or does not decide anything while the time stands still.
func TestKeyKnowsAllFields(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{Machine{}, "self epoch opt now next newKey objects handles pins peers formerLives tombs offered early unsettled effects"},
		{object{}, "id root creatorKey ownKey open forks offers local valued called former cancelled since"},
		{fork{}, "life since"},
		{forks{}, "first of one more"},
		{
			handle{},
			"id fork root key owner ownerEpoch parent state code creator held offered accepting deletable unanswered lost children " +
				"doubtful since",
		},
		{peer{}, "id kind epoch stream lease announced session floor endedLives requests lost early"},
		{stream{}, "queue base sent sentAt expect owesAck stamp"},
		{lease{}, "state lastReceivedAt renewedAt lastSentAt departedAt certain expiredTo"},
		{request{}, "msg tries at"},
		{lostCreation{}, "msg at pause"},
		{Message{}, "Kind ID Fork Root Owner OwnerEpoch Code Key"},
		{Wire{}, "ID Fork Root Owner OwnerEpoch Parent Key"},
		{Frame{}, "From To Epoch ToEpoch Session Floor First Ack Stamp Echo Msgs"},
	} {
		var names []string
		for f := range reflect.TypeOf(c.v).Fields() {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%T has %s; the key of a state knows %s", c.v, got, c.want)
		}
	}
}
