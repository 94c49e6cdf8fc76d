// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// short returns effects as text.
func (e effects) short() string {
	var out []string
	for range e.over {
		out = append(out, "over")
	}
	for _, n := range slices.Sorted(maps.Keys(e.answers)) {
		switch a := e.answers[n]; {
		case a.Round != nil:
			out = append(out, fmt.Sprintf("%d %v", n, a.Handles))
		case a.Done:
			out = append(out, fmt.Sprintf("%d done", n))
		default:
			out = append(out, fmt.Sprintf("%d %s", n, a.Error))
		}
	}
	if e.ended {
		out = append(out, "ended "+e.why)
	}
	return strings.TrimSpace(strings.Join(out, ", "))
}

// TestDone: members that have finished are in no other round, and when all have, the job ends, whatever else has happened
// meanwhile.
func TestDone(t *testing.T) {
	t.Parallel()
	type turn struct {
		do   func(d *desk) effects
		want string
	}
	asks := func(n int64, member ID, handle string) func(d *desk) effects {
		return func(d *desk) effects { return d.asked(n, question{Member: member, Handle: handle}) }
	}
	done := func(n int64, member ID) func(d *desk) effects {
		return func(d *desk) effects { return d.asked(n, question{Member: member, Done: true}) }
	}
	gone := func(member ID) func(d *desk) effects { return func(d *desk) effects { return d.silent(member) } }
	patience := func(d *desk) effects { return d.fired(rejoinTimer + d.waits) }
	for name, story := range map[string][]turn{ // of members 0 to 2, in a group of 2 to 4
		"all finish": {{done(4, 0), ""}, {done(5, 1), ""}, {done(6, 2), "4 done, 5 done, 6 done, ended"}},
		"all finish before they notice a newcomer": {
			{asks(4, 3, "d"), "over"}, {done(5, 0), "5 done"}, {done(6, 1), "6 done"}, {done(7, 2), "4 done, 7 done, ended"},
		},
		"one finishes before it notices a newcomer": {
			{asks(4, 3, "d"), "over"},
			{done(5, 0), "5 done"},
			{asks(6, 1, "b2"), ""},
			{asks(7, 2, "c2"), ""},
			{func(d *desk) effects { return d.fired(4) }, "4 [b2 c2 d], 6 [b2 c2 d], 7 [b2 c2 d]"},
		},
		"one finishes after another has failed": {
			{asks(4, 0, "a2"), "over"},
			{done(5, 1), "5 done"},
			{asks(6, 2, "c2"), ""},
			{func(d *desk) effects { return d.fired(4) }, "4 [a2 c2], 6 [a2 c2]"},
		},
		"one is gone, the others finish": {{gone(0), "over"}, {done(4, 1), "4 done"}, {done(5, 2), "5 done, ended"}},
		"the last one is gone":           {{done(4, 0), ""}, {done(5, 1), ""}, {gone(2), "4 done, 5 done, ended"}},
		"the last one is gone, with a spare": {
			{done(4, 0), ""},
			{asks(5, 3, "d"), ""},
			{done(6, 1), ""},
			{gone(2), "4 done, 5 done, 6 done, ended"},
		},
		"the last one does not come back": {
			{asks(4, 3, "d"), "over"},
			{done(5, 0), "5 done"},
			{done(6, 1), "6 done"},
			{patience, "4 done, ended"},
		},
		"the last one asks again, and is gone": {
			{done(4, 0), ""}, {done(5, 1), ""}, {asks(6, 2, "c2"), "over, 4 done, 5 done"}, {gone(2), "ended"},
		},
		"a newcomer does not wait": {
			{asks(4, 3, "d"), "over"},
			{done(5, 3), "5 done"},
			{asks(6, 0, "a2"), ""},
			{asks(7, 1, "b2"), ""},
			{asks(8, 2, "c2"), "6 [a2 b2 c2], 7 [a2 b2 c2], 8 [a2 b2 c2]"},
		},
		"one that was declared dead finishes, and the others are gone": {
			{gone(0), "over"},
			{gone(1), ""},
			{gone(2), ""},
			{done(4, 0), "4 done, ended"},
		},
		"none has finished, and all are lost": {{gone(0), "over"}, {gone(1), ""}, {gone(2), ""}},
	} {
		c := newConfig(nil, CoordinatorOption.applyCoordinator)
		c.low, c.high = 2, 4
		d := newDesk(1, c)
		d.start()
		for i, handle := range []string{"a", "b", "c"} {
			d.asked(int64(i+1), question{Member: ID(i), Handle: handle})
		}
		if got := d.fired(2).short(); got != "1 [a b c], 2 [a b c], 3 [a b c]" {
			t.Fatalf("the round does not begin: %s", got)
		}
		for i, turn := range story {
			if got := turn.do(d).short(); got != turn.want {
				t.Errorf("%s, turn %d:\n got %s\nwant %s", name, i, got, turn.want)
				break
			}
		}
	}
}
