// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// TestRepeatedQuestion: a question that is repeated while its answer is on the way is answered with the same round, once. One of a member
// that has read its answer says that the round has failed.
func TestRepeatedQuestion(t *testing.T) {
	t.Parallel()
	form := func() (*desk, int64) {
		c := newConfig(nil, CoordinatorOption.applyCoordinator)
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
	for number, q := range map[int64]question{3: {Member: 0, Handle: "a", untaken: true}, 4: {Member: 1, Handle: "b", untaken: true}} {
		if d.latest(q.Member) != int64(q.Member)+1 {
			t.Errorf("member %d has asked %d last", q.Member, d.latest(q.Member))
		}
		e := d.asked(number, q)
		if a := e.answers[number]; a.Round == nil || a.UUID != uuid || !slices.Equal(a.Handles, []string{"a", "b"}) || len(e.over) > 0 {
			t.Fatalf("question %d, a repetition: %+v", number, e)
		}
	}
	if e := d.asked(6, question{Member: 0, Handle: "a"}); !slices.Equal(e.over, []int64{uuid}) {
		t.Errorf("a question of a member whose group has failed: %+v", e)
	}
	e := d.asked(7, question{Member: 1, Handle: "b", untaken: true})
	if len(e.answers) != 2 || e.answers[7].Round == nil || e.answers[7].UUID == uuid {
		t.Errorf("a repetition after the round: %+v", e)
	}
	uuid = e.answers[7].UUID
	if e := d.asked(8, question{Member: 1, Handle: "b", untaken: true}); e.answers[8].Round == nil || e.answers[8].UUID != uuid {
		t.Errorf("a repetition in the next round: %+v", e)
	}

	for what, q := range map[string]question{
		"a member that was reconfigured and does not delete answers": {Member: 1, Handle: "b2", untaken: true},
		"a member that has finished and does not delete answers":     {Member: 1, Done: true, untaken: true},
		"a member that has read its answer":                          {Member: 1, Handle: "b"},
	} {
		d, uuid = form()
		if e := d.asked(9, q); slices.Contains(e.over, uuid) == q.Done || e.answers[9].Round != nil {
			t.Errorf("%s: %+v", what, e)
		}
	}
	d, uuid = form()
	d.asked(9, question{Member: 1, Handle: "b", untaken: true})
	if e := d.asked(10, question{Member: 1, Handle: "b", untaken: true}); !slices.Equal(e.over, []int64{uuid}) {
		t.Errorf("a member that never deletes answers, and cannot reconfigure: %+v", e)
	}
	d, _ = form()
	d.asked(9, question{Member: 1, Handle: "b", untaken: true})
	if e := d.asked(8, question{Member: 1, Handle: "b", untaken: true}); e.stale != 0 || len(e.answers)+len(e.over) > 0 {
		t.Errorf("a question that comes after the one that the member asked later: %+v", e)
	}
}

// TestRepeatedQuestionAfterRestart: no member is notified a third time of a round, or again of one that is over,
// because the coordinator was started again meanwhile. A member that does not delete answers shows it.
func TestRepeatedQuestionAfterRestart(t *testing.T) {
	t.Parallel()
	c := newConfig(nil, CoordinatorOption.applyCoordinator)
	c.low, c.high = 2, 2
	first := newDesk(1, c)
	first.start()
	first.asked(1, question{Member: 0, Handle: "a"})
	begun := *first.asked(2, question{Member: 1, Handle: "b"}).record
	e := first.asked(3, question{Member: 0, Handle: "a", untaken: true})
	if e.record == nil || e.stale != 1 || e.answers[3].Round == nil {
		t.Fatalf("a repetition: %+v", e)
	}
	for what, x := range map[string]struct {
		left   record
		over   bool
		untold []int64
	}{
		"told again before":     {left: *e.record},
		"perhaps answered":      {left: begun, untold: []int64{1}},
		"not answered the last": {left: *e.record, untold: []int64{3}},
		"over":                  {left: begun, over: true},
	} {
		d := newDesk(2, c)
		e := d.resume(x.left, x.over, x.untold)
		if len(e.answers) != len(x.untold) || slices.Contains(e.over, begun.UUID) != x.over {
			t.Errorf("%s: the next coordinator begins with %+v", what, e)
		}
		for _, n := range x.untold {
			if e.answers[n].Round == nil || e.answers[n].UUID != begun.UUID || e.record == nil || !slices.Equal(e.record.Again, []ID{0}) {
				t.Errorf("%s: question %d is answered with %+v", what, n, e)
			}
		}
		if e := d.asked(7, question{Member: 0, Handle: "a", untaken: true}); e.answers[7].Round != nil ||
			!slices.Contains(e.over, begun.UUID) && !x.over {
			t.Errorf("%s: the next question is answered with %+v", what, e)
		}
	}
}

// coordinated runs a test beside a coordinator of two members, in virtual time. keys are those of the coordinator.
func coordinated(t *testing.T, test func(ctx context.Context, t *testing.T, keys store.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s := store.NewMemory()
		c, err := New(s, 2, 2)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.Run(ctx) })
		defer func() {
			cancel()
			wg.Wait()
			_ = s.Close()
		}()
		test(ctx, t, store.Prefix(DefaultPrefix, s))
	})
}

// TestRepeatedQuestionInTheStore: a member that gives up waiting, asks again, and says nothing of it, is told of the round that had begun,
// and leaves no answers behind. Python's members before did so, and ended the round.
func TestRepeatedQuestionInTheStore(t *testing.T) {
	t.Parallel()
	coordinated(t, func(ctx context.Context, t *testing.T, keys store.Store) {
		t.Helper()
		ask := func(member int) int64 {
			n, err := keys.Add(ctx, "asks", 1)
			if err == nil {
				err = keys.Set(ctx, askKey(n), fmt.Appendf(nil, `{"member": %d, "handle": "gloo:%d"}`, member, member))
			}
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		take := func(n int64) (a answer) {
			raw, err := keys.Get(ctx, answerKey(n))
			if err == nil {
				err = json.Unmarshal(raw, &a)
			}
			if err != nil || a.Round == nil {
				t.Fatalf("answer %d: %s, %v", n, raw, err)
			}
			if _, err = keys.Delete(ctx, answerKey(n)); err != nil {
				t.Fatal(err)
			}
			return a
		}
		left, right := ask(0), ask(1)
		uuid := take(right).UUID
		time.Sleep(time.Second) // the answer is there, and its member has stopped looking for it
		if a := take(ask(0)); a.UUID != uuid {
			t.Errorf("the repeated question began round %d after %d", a.UUID, uuid)
		}
		time.Sleep(time.Second)
		for _, key := range []string{overKey(uuid), answerKey(left)} {
			if there, err := keys.Check(ctx, key); there || err != nil {
				t.Errorf("%s is there: %v, %v", key, there, err)
			}
		}
		failed := ask(0)
		if a := take(ask(1)); a.UUID == uuid || take(failed).UUID != a.UUID {
			t.Errorf("the next round is %d after %d", a.UUID, uuid)
		}
		if over, err := keys.Check(ctx, overKey(uuid)); !over || err != nil {
			t.Errorf("the failed round is not over: %v", err)
		}
	})
}

// TestLateQuestion: a question that arrives after the next one of its member is removed, before and after that is answered, so that a
// coordinator that is started later does not take it for a new one. The next one stays until it is answered.
func TestLateQuestion(t *testing.T) {
	t.Parallel()
	coordinated(t, func(ctx context.Context, t *testing.T, keys store.Store) {
		t.Helper()
		arrive := func(n int64, member int, handle string) {
			t.Helper()
			if failed := keys.Set(ctx, askKey(n), fmt.Appendf(nil, `{"member": %d, "handle": %q}`, member, handle)); failed != nil {
				t.Fatal(failed)
			}
			time.Sleep(time.Second)
		}
		there := func(n int64) bool {
			t.Helper()
			has, failed := keys.Check(ctx, askKey(n))
			if failed != nil {
				t.Fatal(failed)
			}
			return has
		}
		if _, err := keys.Add(ctx, "asks", 4); err != nil {
			t.Fatal(err)
		}
		arrive(3, 0, "gloo:new")
		arrive(1, 0, "gloo:old")
		if there(1) || !there(3) {
			t.Errorf("not answered: the first question is there: %v, the next: %v", there(1), there(3))
		}
		arrive(4, 1, "gloo:other")
		raw, err := keys.Get(ctx, answerKey(3))
		if err != nil || !strings.Contains(string(raw), "gloo:new") {
			t.Errorf("answer %s, %v", raw, err)
		}
		arrive(2, 0, "gloo:old")
		if there(2) {
			t.Error("answered: a question that came late is there")
		}
	})
}
