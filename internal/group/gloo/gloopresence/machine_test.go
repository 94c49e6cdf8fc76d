// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloopresence

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

func gone(rank int) error { return fmt.Errorf("rank %d is gone", rank) }

// ends returns the errors that collectives were ended with, and the losses, and forgets them.
func ends(m *Machine) (errs map[*Collective]error, losses []transport.Loss) {
	errs = map[*Collective]error{}
	for _, e := range m.Effects {
		if e.Loss != nil {
			losses = append(losses, *e.Loss)
		} else if errs[e.Collective] == nil {
			errs[e.Collective] = e.Err
		}
	}
	m.Effects = m.Effects[:0]
	return errs, losses
}

// TestWordlessEnd: a rank that is gone without a word gets a moment in which nothing moves, and no more.
func TestWordlessEnd(t *testing.T) {
	m := New(0, 5)
	c := &Collective{Kind: collective.AllReduce, Tag: 3}
	m.Begin(c)
	m.Ended(&End{Rank: 3, Seen: time.Second, Err: gone(3)})
	if errs, losses := ends(m); len(errs) != 0 || len(losses) != 1 || losses[0].How != transport.Ended {
		t.Fatalf("%v %v", errs, losses)
	}
	m.Tick(time.Second + Grace - 1)
	m.Moved(time.Second + Grace - 1)
	m.Tick(time.Second + Grace)
	if errs, _ := ends(m); len(errs) != 0 {
		t.Fatal("ended while messages travelled")
	}
	m.Tick(time.Second + 2*Grace)
	errs, losses := ends(m)
	if errs[c] == nil || errs[c].Error() != "rank 3 is gone" || len(losses) != 1 || losses[0].How != transport.Died || losses[0].Rank != 3 {
		t.Fatalf("%v %v", errs, losses)
	}
}

// TestTimeWithoutAProcessor: a process that did not run cannot say that nothing moved.
func TestTimeWithoutAProcessor(t *testing.T) {
	m := New(0, 5)
	c := &Collective{Kind: collective.AllReduce, Tag: 3}
	m.Begin(c)
	m.Ended(&End{Rank: 3, Seen: time.Second, Err: gone(3)})
	now := time.Second
	for range 3 {
		now += LookEvery
		m.Look(now)
	}
	ends(m)
	now += time.Minute
	m.Look(now)
	if errs, _ := ends(m); len(errs) != 0 {
		t.Fatal("a minute without a look was taken for one in which nothing moved")
	}
	woken := now
	for now < woken+Grace {
		now += LookEvery
		m.Look(now)
	}
	if errs, _ := ends(m); errs[c] == nil {
		t.Error("the death was not noticed after the pause")
	}
}

// TestFirstOfSeveral: of ranks that are gone, the one whose connection ended first is the cause.
func TestFirstOfSeveral(t *testing.T) {
	m := New(0, 5)
	c := &Collective{Kind: collective.Barrier}
	m.Begin(c)
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Err: gone(1)}) // read first, but the end of rank 3 is older
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Age: 30 * time.Millisecond, Err: gone(3)})
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is gone" {
		t.Error(err)
	}
	m.Tick(11 * time.Second)
	if errs, _ := ends(m); errs[c] == nil || errs[c].Error() != "rank 3 is gone" {
		t.Errorf("%v", errs)
	}
	m = New(0, 5)
	c = &Collective{Kind: collective.Barrier}
	m.Begin(c)
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Age: 100 * time.Millisecond, Turn: 2, Err: gone(1)})
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Undated: true, Turn: 1, Err: gone(3)}) // a reset, whose time is not known
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is gone" {
		t.Error(err)
	}
	m.Tick(11 * time.Second)
	if errs, _ := ends(m); errs[c] == nil || errs[c].Error() != "rank 3 is gone" {
		t.Errorf("%v", errs)
	}
	m = New(0, 5)
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Age: 2 * Grace, Turn: 1, Err: gone(1)}) // while this process was stopped
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Undated: true, Turn: 2, Err: gone(3)})  // a reset
	if err := m.Blame(3, gone(3)); err.Error() != "rank 1 is gone" {
		t.Error(err)
	}
	m.Ended(&End{Rank: 4, Seen: 10 * time.Second, Age: Grace / 2, Turn: 3, Err: gone(4)}) // long after rank 1: it has a reason of its own
	if err := m.Blame(4, gone(4)); err.Error() == "rank 1 is gone" {
		t.Error(err)
	}
	m = New(0, 5)
	m.Ended(&End{Rank: 1, Seen: time.Second, Err: gone(1)}) // long ago: it finished its program
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Err: gone(3)})
	if err := m.Blame(3, gone(3)); err.Error() != "rank 3 is gone" {
		t.Error(err)
	}
}

// TestPromptEndAfterAPause: this process did not run for a while. What it reads without delay afterwards has a time, and is no
// consequence of what happened long before.
func TestPromptEndAfterAPause(t *testing.T) {
	ends := map[string]func(m *Machine){
		"end":     func(m *Machine) { m.Ended(&End{Rank: 3, Seen: 10300 * time.Millisecond, Turn: 2, Err: gone(3)}) },
		"goodbye": func(m *Machine) { m.Left(10300*time.Millisecond, 3, 1, gone(3)) },
	}
	for name, end := range ends {
		m := New(0, 5)
		m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Age: 5 * time.Second, Turn: 1, Certain: name == "goodbye", Err: gone(1)})
		end(m)
		if err := m.Blame(3, gone(3)); err.Error() != "rank 3 is gone" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGoodbyeIsAReason: a rank that says goodbye is not excused by another that ended without a word, which may have finished its
// program, but by a death.
func TestGoodbyeIsAReason(t *testing.T) {
	for certain, want := range map[bool]string{false: "rank 1 is gone", true: "rank 2 is gone"} {
		m := New(0, 3)
		m.Ended(&End{Rank: 2, Seen: time.Second, Certain: certain, Err: gone(2)})
		m.Left(time.Second+Grace/2, 1, 1, gone(1))
		if err := m.Blame(1, gone(1)); err.Error() != want {
			t.Errorf("certain %v: %v", certain, err)
		}
	}
}

// TestGoodbye: a Go rank that leaves ends what it took no part in, and nothing else.
func TestGoodbye(t *testing.T) {
	m := New(0, 3)
	before, after := &Collective{Kind: collective.Barrier, Tag: 6}, &Collective{Kind: collective.Barrier, Tag: 7}
	other := &Collective{Kind: collective.Broadcast, Root: 1, Tag: 8}
	m.Begin(before)
	m.Begin(after)
	m.Begin(other)
	m.Left(time.Second, 2, 7, gone(2))
	errs, losses := ends(m)
	if errs[before] != nil || errs[after] == nil || errs[other] != nil || len(losses) != 1 || losses[0].How != transport.Left {
		t.Errorf("%v %v", errs, losses)
	}
	m.Tick(time.Hour)
	if errs, _ := ends(m); len(errs) != 0 {
		t.Errorf("%v", errs)
	}
	later := &Collective{Kind: collective.AllGather, Tag: 9}
	if m.Begin(later); m.Effects == nil || m.Effects[0].Collective != later {
		t.Error("a later collective begins without the rank")
	}
}

// TestToldEndsEverything, now and later, with the other rank's reason.
func TestToldEndsEverything(t *testing.T) {
	m := New(0, 3)
	c := &Collective{Kind: collective.Broadcast, Tag: 1}
	m.Begin(c)
	reason := errors.New("rank 2 is lost, says rank 1")
	m.Told(time.Second, 2, reason)
	errs, losses := ends(m)
	if !errors.Is(errs[c], reason) || len(losses) != 1 || losses[0].Rank != 2 || losses[0].How != transport.Died {
		t.Errorf("%v %v", errs, losses)
	}
	m.Begin(&Collective{Kind: collective.Broadcast, Tag: 2})
	if errs, _ := ends(m); len(errs) != 1 {
		t.Error("a later broadcast begins")
	}
}

// TestFarewellSaysWhy: a rank that leaves because of a death is not named for it. If it blames itself, or the rank that it tells, it has just
// left.
func TestFarewellSaysWhy(t *testing.T) {
	told := errors.New("a rank is lost, says rank 1")
	for dead, want := range map[int]error{-1: told, 0: gone(1), 1: gone(1), 2: told} {
		m := New(0, 4)
		running, later := &Collective{Kind: collective.Barrier, Tag: 1}, &Collective{Kind: collective.Barrier, Tag: 2}
		m.Begin(running)
		m.Farewell(time.Second, 1, dead, told, gone(1))
		m.Begin(later)
		errs, _ := ends(m)
		for _, err := range []error{errs[running], errs[later], m.Blame(1, gone(1))} {
			if err == nil || err.Error() != want.Error() {
				t.Errorf("rank 1 blames rank %d: %v, want %v", dead, err, want)
			}
		}
		left, passedOn := dead == 0 || dead == 1, m.Reason()
		if left != (passedOn == nil) {
			t.Errorf("rank 1 blames rank %d: the reason is %v", dead, passedOn)
		}
	}
}

// TestOwnLossCountsMore than what a farewell says, for collectives, for messages of the rank that said it, however late, and for those that
// this rank tells.
func TestOwnLossCountsMore(t *testing.T) {
	m := New(0, 4)
	running, later := &Collective{Kind: collective.Barrier, Tag: 1}, &Collective{Kind: collective.Broadcast, Tag: 2}
	m.Begin(running)
	m.Ended(&End{Rank: 3, Seen: time.Second, Certain: true, Err: gone(3)})
	m.Farewell(time.Second+2*Grace, 1, 2, errors.New("rank 2 is lost, says rank 1"), gone(1))
	m.Begin(later)
	errs, _ := ends(m)
	for _, err := range []error{errs[running], errs[later], m.Blame(1, gone(1)), m.Reason()} {
		if err == nil || err.Error() != "rank 3 is gone" {
			t.Errorf("rank 0 has lost rank 3, and says %v", err)
		}
	}
}

// TestFirstFarewellCounts: of two that say different things, and who has heard one of them does not take it for a loss that it saw itself.
func TestFirstFarewellCounts(t *testing.T) {
	m := New(0, 5)
	first := errors.New("rank 2 is lost, says rank 1")
	m.Farewell(time.Second, 1, 2, first, gone(1))
	m.Farewell(2*time.Second, 4, 3, errors.New("rank 3 is lost, says rank 4"), gone(4))
	m.Begin(&Collective{Kind: collective.Barrier, Tag: 1})
	errs, _ := ends(m)
	for _, err := range errs {
		if !errors.Is(err, first) {
			t.Error(err)
		}
	}
	if err := m.Reason(); len(errs) != 1 || !errors.Is(err, first) {
		t.Errorf("%v, %d collectives ended", err, len(errs))
	}
}

// TestRandomWorlds plays collectives of ranks that finish, die and come late, and checks the machine of rank 0 against what
// really happened: it must not end a collective that goes on to its end, and must not wait for ever for one that cannot.
func TestRandomWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 6).Draw(t, "size")
		kinds := []collective.Kind{collective.AllReduce, collective.AllGather, collective.ReduceScatter, collective.AllToAll, collective.Barrier}
		c := &Collective{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Tag: 4}
		m := New(0, size)
		native := make([]bool, size)
		entered := make([]bool, size) // the collective
		entered[0] = true
		m.Begin(c)
		now := time.Duration(0)
		ended, complete := false, false
		var died []int
		check := func() {
			errs, _ := ends(m)
			if errs[c] != nil {
				if complete {
					t.Fatalf("a collective that was complete ended with %v", errs[c])
				}
				if len(died) == 0 {
					t.Fatalf("nobody died, yet: %v", errs[c])
				}
				ended = true
			}
		}
		for r := 1; r < size; r++ {
			native[r] = rapid.Bool().Draw(t, "native")
		}
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			now += time.Duration(rapid.IntRange(1, 200).Draw(t, "ms")) * time.Millisecond
			r := rapid.IntRange(1, size-1).Draw(t, "rank")
			all := true
			for _, e := range entered {
				all = all && e
			}
			switch {
			case !entered[r] && rapid.Bool().Draw(t, "enters"):
				entered[r] = true
				m.Moved(now)
			case all && len(died) == 0: // it ends everywhere; ranks leave before this one sees it
				complete = true
				if native[r] {
					m.Left(now, r, c.Tag+1, gone(r))
				} else {
					m.Ended(&End{Rank: r, Seen: now, Err: gone(r)})
				}
			default:
				died = append(died, r)
				m.Ended(&End{Rank: r, Seen: now, Certain: native[r], Err: gone(r)})
			}
			m.Tick(now)
			check()
			if ended || complete {
				break
			}
		}
		if len(died) > 0 && !ended {
			m.Tick(now + Grace)
			m.Tick(now + 2*Grace)
			check()
			if !ended {
				t.Fatalf("ranks %v died and nobody noticed", died)
			}
		}
	})
}

// TestLateConsequence: rank 3 dies, and rank 1 ends because of it, but only after more than Grace: the machine is busy. This process does
// not get to run either, so that rank 3 is still in doubt. As long as a collective waits for rank 3, rank 1 is not to blame.
func TestLateConsequence(t *testing.T) {
	m := New(0, 5)
	c := &Collective{Kind: collective.AllReduce, Tag: 3}
	m.Begin(c)
	m.Ended(&End{Rank: 3, Seen: time.Second, Turn: 1, Err: gone(3)})
	m.Look(time.Second + LookEvery)
	now := time.Second + 2*Grace
	m.Look(now) // late, so that the doubt goes on
	m.Ended(&End{Rank: 1, Seen: now, Turn: 2, Err: gone(1)})
	if errs, _ := ends(m); len(errs) != 0 {
		t.Fatalf("%v", errs)
	}
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is gone" {
		t.Error(err)
	}
	m.End(c, false)
	if err := m.Blame(1, gone(1)); err.Error() != "rank 1 is gone" { // a message, say: nothing needs rank 3
		t.Error(err)
	}
}

// TestFirstOfSeveralBefore: who starts a collective names the rank that went first, and not the one with the lowest number, however long
// the one went after the other.
func TestFirstOfSeveralBefore(t *testing.T) {
	m := New(0, 5)
	m.Ended(&End{Rank: 3, Seen: time.Second, Turn: 1, Err: gone(3)})
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Turn: 2, Err: gone(1)})
	c := &Collective{Kind: collective.AllReduce, Tag: 3}
	m.Begin(c)
	if errs, _ := ends(m); errs[c] == nil || errs[c].Error() != "rank 3 is gone" {
		t.Errorf("%v", errs)
	}
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is gone" {
		t.Error(err)
	}
}
