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

func gone(rank int) error { return fmt.Errorf("rank %d is lost", rank) }

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

// TestEndWithoutNotice: a rank whose connection ended without a notice gets a moment in which nothing moves, and no more.
func TestEndWithoutNotice(t *testing.T) {
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
	if errs[c] == nil || errs[c].Error() != "rank 3 is lost" || len(losses) != 1 || losses[0].How != transport.Died || losses[0].Rank != 3 {
		t.Fatalf("%v %v", errs, losses)
	}
}

// TestTimeWithoutAProcessor: a process that did not run cannot know that nothing moved.
func TestTimeWithoutAProcessor(t *testing.T) {
	m := New(0, 5)
	c := &Collective{Kind: collective.AllReduce, Tag: 3}
	m.Begin(c)
	m.Ended(&End{Rank: 3, Seen: time.Second, Err: gone(3)})
	now := time.Second
	for range 3 {
		now += PollInterval
		m.Poll(now)
	}
	ends(m)
	now += time.Minute
	m.Poll(now)
	if errs, _ := ends(m); len(errs) != 0 {
		t.Fatal("a minute without a look was taken for one in which nothing moved")
	}
	woken := now
	for now < woken+Grace {
		now += PollInterval
		m.Poll(now)
	}
	if errs, _ := ends(m); errs[c] == nil {
		t.Error("the death was not noticed after the pause")
	}
}

// TestFirstOfSeveral: of ranks that are lost, the one whose connection ended first is the cause.
func TestFirstOfSeveral(t *testing.T) {
	m := New(0, 5)
	c := &Collective{Kind: collective.Barrier}
	m.Begin(c)
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Err: gone(1)}) // read first, but the end of rank 3 is older
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Age: 30 * time.Millisecond, Err: gone(3)})
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is lost" {
		t.Error(err)
	}
	m.Tick(11 * time.Second)
	if errs, _ := ends(m); errs[c] == nil || errs[c].Error() != "rank 3 is lost" {
		t.Errorf("%v", errs)
	}
	m = New(0, 5)
	c = &Collective{Kind: collective.Barrier}
	m.Begin(c)
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Age: 100 * time.Millisecond, Order: 2, Err: gone(1)})
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Undated: true, Order: 1, Err: gone(3)}) // a reset, whose time is not known
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is lost" {
		t.Error(err)
	}
	m.Tick(11 * time.Second)
	if errs, _ := ends(m); errs[c] == nil || errs[c].Error() != "rank 3 is lost" {
		t.Errorf("%v", errs)
	}
	m = New(0, 5)
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Age: 2 * Grace, Order: 1, Err: gone(1)}) // while this process was stopped
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Undated: true, Order: 2, Err: gone(3)})  // a reset
	if err := m.Blame(3, gone(3)); err.Error() != "rank 1 is lost" {
		t.Error(err)
	}
	m.Ended(&End{Rank: 4, Seen: 10 * time.Second, Age: Grace / 2, Order: 3, Err: gone(4)}) // long after rank 1: it has a separate reason
	if err := m.Blame(4, gone(4)); err.Error() == "rank 1 is lost" {
		t.Error(err)
	}
	m = New(0, 5)
	m.Ended(&End{Rank: 1, Seen: time.Second, Err: gone(1)}) // long ago: it finished its program
	m.Ended(&End{Rank: 3, Seen: 10 * time.Second, Err: gone(3)})
	if err := m.Blame(3, gone(3)); err.Error() != "rank 3 is lost" {
		t.Error(err)
	}
}

// TestPromptEndAfterAPause: this process did not run for a while. What it reads without delay afterwards has a time, and is no
// consequence of what happened long before.
func TestPromptEndAfterAPause(t *testing.T) {
	ends := map[string]func(m *Machine){
		"end":     func(m *Machine) { m.Ended(&End{Rank: 3, Seen: 10300 * time.Millisecond, Order: 2, Err: gone(3)}) },
		"goodbye": func(m *Machine) { m.Left(10300*time.Millisecond, 3, 1, gone(3)) },
	}
	for name, end := range ends {
		m := New(0, 5)
		m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Age: 5 * time.Second, Order: 1, Certain: name == "goodbye", Err: gone(1)})
		end(m)
		if err := m.Blame(3, gone(3)); err.Error() != "rank 3 is lost" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGoodbyeIsAReason: a rank that sends a goodbye is the reason also after another that ended without a notice, which
// may have finished its program, but by a death.
func TestGoodbyeIsAReason(t *testing.T) {
	for certain, want := range map[bool]string{false: "rank 1 is lost", true: "rank 2 is lost"} {
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

// TestAbandonedEndsEverything, now and later, with the other rank's reason.
func TestAbandonedEndsEverything(t *testing.T) {
	m := New(0, 3)
	c := &Collective{Kind: collective.Broadcast, Tag: 1}
	m.Begin(c)
	reason := errors.New("rank 2 is lost, by rank 1")
	m.Abandoned(time.Second, 2, reason)
	errs, losses := ends(m)
	if !errors.Is(errs[c], reason) || len(losses) != 1 || losses[0].Rank != 2 || losses[0].How != transport.Died {
		t.Errorf("%v %v", errs, losses)
	}
	m.Begin(&Collective{Kind: collective.Broadcast, Tag: 2})
	if errs, _ := ends(m); len(errs) != 1 {
		t.Error("a later broadcast begins")
	}
}

// TestClosedBecauseCarriesReason: a rank that leaves because of a death is not blamed for it. If it blames itself, or
// the rank that it notifies, it has just left.
func TestClosedBecauseCarriesReason(t *testing.T) {
	reason := errors.New("a rank is lost, by rank 1")
	for dead, want := range map[int]error{-1: reason, 0: gone(1), 1: gone(1), 2: reason} {
		m := New(0, 4)
		running, later := &Collective{Kind: collective.Barrier, Tag: 1}, &Collective{Kind: collective.Barrier, Tag: 2}
		m.Begin(running)
		m.ClosedBecause(time.Second, 1, dead, reason, gone(1))
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

// TestOwnLossCountsMore than the reason in a close notice, for collectives, for messages of the rank that sent it,
// however late, and for those that this rank notifies.
func TestOwnLossCountsMore(t *testing.T) {
	m := New(0, 4)
	running, later := &Collective{Kind: collective.Barrier, Tag: 1}, &Collective{Kind: collective.Broadcast, Tag: 2}
	m.Begin(running)
	m.Ended(&End{Rank: 3, Seen: time.Second, Certain: true, Err: gone(3)})
	m.ClosedBecause(time.Second+2*Grace, 1, 2, errors.New("rank 2 is lost, by rank 1"), gone(1))
	m.Begin(later)
	errs, _ := ends(m)
	for _, err := range []error{errs[running], errs[later], m.Blame(1, gone(1)), m.Reason()} {
		if err == nil || err.Error() != "rank 3 is lost" {
			t.Errorf("rank 0 has lost rank 3, and reports %v", err)
		}
	}
}

// TestFirstCloseReasonCounts: of two with different reasons; and a rank that received one of them does not take it for
// a loss that it saw itself.
func TestFirstCloseReasonCounts(t *testing.T) {
	m := New(0, 5)
	first := errors.New("rank 2 is lost, by rank 1")
	m.ClosedBecause(time.Second, 1, 2, first, gone(1))
	m.ClosedBecause(2*time.Second, 4, 3, errors.New("rank 3 is lost, by rank 4"), gone(4))
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

// TestRandomWorlds plays collectives of ranks that finish, die and are late, and checks the machine of rank 0 against what
// really happened: it must not end a collective that continues to its end, and must not wait for ever for one that cannot.
func TestRandomWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 6).Draw(t, "size")
		kinds := []collective.Kind{
			collective.AllReduce, collective.AllGather, collective.ReduceScatter, collective.AllToAll,
			collective.Barrier,
		}
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
					t.Fatalf("no rank died, yet: %v", errs[c])
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
				t.Fatalf("ranks %v died and no rank detected it", died)
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
	m.Ended(&End{Rank: 3, Seen: time.Second, Order: 1, Err: gone(3)})
	m.Poll(time.Second + PollInterval)
	now := time.Second + 2*Grace
	m.Poll(now) // late, so that the suspicion continues
	m.Ended(&End{Rank: 1, Seen: now, Order: 2, Err: gone(1)})
	if errs, _ := ends(m); len(errs) != 0 {
		t.Fatalf("%v", errs)
	}
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is lost" {
		t.Error(err)
	}
	m.End(c, false)
	if err := m.Blame(1, gone(1)); err.Error() != "rank 1 is lost" { // a message, say: nothing needs rank 3
		t.Error(err)
	}
}

// TestFirstOfSeveralBefore: a rank that starts a collective names the rank that was lost first, and not the one with
// the lowest number, however long the one was lost after the other.
func TestFirstOfSeveralBefore(t *testing.T) {
	m := New(0, 5)
	m.Ended(&End{Rank: 3, Seen: time.Second, Order: 1, Err: gone(3)})
	m.Ended(&End{Rank: 1, Seen: 10 * time.Second, Order: 2, Err: gone(1)})
	c := &Collective{Kind: collective.AllReduce, Tag: 3}
	m.Begin(c)
	if errs, _ := ends(m); errs[c] == nil || errs[c].Error() != "rank 3 is lost" {
		t.Errorf("%v", errs)
	}
	if err := m.Blame(1, gone(1)); err.Error() != "rank 3 is lost" {
		t.Error(err)
	}
}
