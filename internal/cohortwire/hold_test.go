// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"net"
	"testing"
	"time"
)

// The types of a request that nobody waits for, and of its answer.
const (
	makes Type = 0x10a
	made  Type = 0x20b
)

// passedOn are the frames that a caller passes on in these tests.
func passedOn(t Type) bool { return t == made || t == FirstAgentType+1 }

// order sends a request that nobody waits for.
func (a *asker) order(t *testing.T) uint64 {
	t.Helper()
	f := &Frame{Type: makes, ID: a.link.NewID(), Hold: true}
	a.link.AddLoad(1)
	if err := a.link.Send(within(t), f); err != nil {
		t.Fatal(err)
	}
	return f.ID
}

// holds reports whether something is queued that nobody writes.
func (a *asker) holds() bool {
	a.link.wmu.Lock()
	defer a.link.wmu.Unlock()
	return !a.link.wq.writing && !a.link.wq.empty()
}

// held sends requests that nobody waits for until one is held back.
func (a *asker) held(t *testing.T) uint64 {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
		if a.link.lend.state.Load() == isLent {
			a.link.wmu.Lock()
			a.link.holding.pairs = holdAfter // a busy machine may never be so quick
			a.link.wmu.Unlock()
			if id := a.order(t); a.holds() {
				return id
			}
		}
		if _, err := a.ask(within(t), &Frame{Payload: []byte("x")}, true); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing was held back in 15 s")
	return 0
}

// TestHolding is about what has to happen before a request is held back.
func TestHolding(t *testing.T) {
	var h holding
	now := time.Unix(1000, 0)
	// pair notes a request that may be held back, and one behind it after a while. It tells whether the first is held back.
	pair := func(gap time.Duration) bool {
		held := h.note(true, now)
		now = now.Add(gap)
		if h.note(false, now) {
			t.Error("a request that somebody waits for is held back")
		}
		now = now.Add(time.Second)
		return held
	}
	series := func(n int, want bool) {
		t.Helper()
		for i := range n {
			if held := pair(holdGap); held != want {
				t.Fatalf("pair %d of %d: held back %v, want %v", i, n, held, want)
			}
		}
	}
	series(holdAfter, false)
	series(3*holdAfter, true)
	pair(holdGap + 1)
	series(1, true) // one is forgiven
	pair(holdGap + 1)
	series(holdAfter-1, false)
	series(holdAfter, true)
	for range 3 { // all of them alone
		h.note(true, now)
	}
	h.last = time.Time{}
	series(holdAfter, false)
	series(1, true)
	if !h.note(true, now) || h.overdue(now.Add(holdLate)) {
		t.Fatal("overdue before its time")
	}
	if now = now.Add(holdLate + 1); !h.overdue(now) || h.overdue(now) {
		t.Fatal("it is overdue once")
	}
	series(holdPenalty, false)
	pair(holdGap + 1)
	series(holdAfter, false)
	series(1, true)
}

// TestHeldRequest does something right behind a request that was held back. It must arrive, first.
func TestHeldRequest(t *testing.T) {
	type arrival struct {
		f        *Frame
		together bool // the next one came along
	}
	for name, c := range map[string]struct {
		behind func(t *testing.T, a *asker)
		next   Type // what has to come next, and together
		ends   bool
	}{
		"a call": {behind: func(t *testing.T, a *asker) {
			t.Helper()
			if _, err := a.ask(within(t), &Frame{Payload: []byte("x")}, true); err != nil {
				t.Error(err)
			}
		}, next: 0x102},
		"a call that does not read": {behind: func(t *testing.T, a *asker) {
			t.Helper()
			if _, err := a.ask(within(t), &Frame{Payload: []byte("x")}, false); err != nil {
				t.Error(err)
			}
		}, next: 0x102},
		"another one": {behind: func(t *testing.T, a *asker) {
			t.Helper()
			a.order(t)
		}, next: makes},
		"something else": {behind: func(t *testing.T, a *asker) {
			t.Helper()
			if err := a.link.Send(within(t), &Frame{Type: FirstAgentType}); err != nil {
				t.Error(err)
			}
		}, next: FirstAgentType},
		"nothing":                           {behind: func(*testing.T, *asker) {}},
		"somebody who waits for its answer": {behind: func(_ *testing.T, a *asker) { a.link.Recall() }},
		"the end":                           {behind: func(_ *testing.T, a *asker) { _ = a.link.Close() }, next: Goodbye, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			var arrivals chan arrival
			connect := func() *asker {
				arrivals = make(chan arrival, 1<<16)
				seen := arrivals
				return peered(t, func(conn net.Conn, r *frameReader, f *Frame) {
					if f.Type != Ping {
						seen <- arrival{f, r.whole()}
					}
					switch f.Type {
					case makes:
						_, _ = conn.Write((&Frame{Type: made, ID: f.ID}).AppendHead(nil))
					case 0x102:
						_, _ = conn.Write(answerTo(f, f.Payload))
					}
				})
			}
			a := connect()
			for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
				id := a.held(t)
				c.behind(t, a)
				together := false
				for found := false; !found; {
					select {
					case x := <-arrivals:
						if found = x.f.Type == makes && x.f.ID == id; found {
							together = x.together
						}
					case <-within(t).Done():
						t.Fatal("what was held back did not arrive")
					}
				}
				if c.next != 0 {
					select {
					case x := <-arrivals:
						if x.f.Type != c.next {
							t.Fatalf("behind it comes %#x, want %#x", x.f.Type, c.next)
						}
					case <-within(t).Done():
						t.Fatalf("%#x did not arrive behind it", c.next)
					}
				}
				for answered := c.ends; !answered; {
					select {
					case f := <-a.made:
						answered = f.ID == id
					case <-within(t).Done():
						t.Fatal("the answer was not heard")
					}
				}
				if together || c.next == 0 {
					return
				}
				if c.ends { // the guard was faster
					a = connect()
				}
			}
			t.Fatal("nothing has left in one write with what was held back, in 15 s")
		})
	}
}
