// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"slices"
	"testing"
)

// TestRepeatedQuestion: a question that is repeated while its answer is on the way is answered with the same round. One that the
// coordinator sees for the first time says that the round has failed, even if it is a repetition of one that was never seen.
func TestRepeatedQuestion(t *testing.T) {
	t.Parallel()
	form := func() (*desk, int64) {
		c := newConfig(nil)
		c.low, c.high = 2, 2
		d := newDesk(1, c)
		d.start()
		d.asked(1, question{Member: 0, Handle: "a"})
		e := d.asked(2, question{Member: 1, Handle: "b"})
		if len(e.answers) != 2 || e.answers[1].Round == nil || e.answers[2].Round == nil {
			t.Fatalf("the round does not begin: %+v", e)
		}
		return d, e.answers[1].UUID
	}

	d, uuid := form()
	for number := int64(3); number < 6; number++ { // any number of times
		e := d.asked(number, question{Member: 0, Handle: "a", First: 1})
		if a := e.answers[number]; a.Round == nil || a.UUID != uuid || !slices.Equal(a.Handles, []string{"a", "b"}) || len(e.over) > 0 {
			t.Fatalf("question %d, which repeats 1: %+v", number, e)
		}
	}
	if e := d.asked(6, question{Member: 0, Handle: "a"}); !slices.Equal(e.over, []int64{uuid}) {
		t.Errorf("a question of a member whose group has failed: %+v", e)
	}
	if e := d.asked(7, question{Member: 1, Handle: "b", First: 2}); len(e.answers) != 2 || e.answers[7].Round == nil || e.answers[7].UUID == uuid {
		t.Errorf("a repetition after the round: %+v", e)
	}

	d, uuid = form()
	if e := d.asked(9, question{Member: 1, Handle: "b", First: 8}); !slices.Equal(e.over, []int64{uuid}) {
		t.Errorf("the repetition of a question that was never seen: %+v", e)
	}
}
