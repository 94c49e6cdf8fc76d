// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// claimer is one native connection to a machine.
type claimer struct {
	t    *testing.T
	m    *storecore.Machine
	conn *storecore.Conn
	id   uint32
}

func newClaimer(t *testing.T, m *storecore.Machine, peer string) *claimer {
	t.Helper()
	c := &claimer{t: t, m: m, conn: m.Open(peer, nil)}
	m.Receive(c.conn, wire.AppendUpgrade(wire.AppendValidate(nil)))
	return c
}

// ask sends a request in a frame and returns the status and the body of the reply.
func (c *claimer) ask(request []byte) (status byte, body []byte) {
	c.t.Helper()
	c.id++
	c.m.Receive(c.conn, wire.EndFrame(append(wire.BeginFrame(nil, c.id), request...), 0, 0))
	out := bytes.Join(c.conn.Pending(nil, math.MaxInt), nil)
	c.m.Sent(c.conn, len(out))
	id, size, err := wire.ParseFrame(out)
	if err != nil || id != c.id || size != len(out) {
		c.t.Fatalf("reply % x: id %d, size %d, %v", out, id, size, err)
	}
	return out[wire.FrameHeader], out[wire.FrameHeader+1:]
}

func (c *claimer) claim(name, expected, text string) string {
	c.t.Helper()
	status, body := c.ask(wire.AppendCompareSet(nil, wire.Native, wire.ClaimPrefix+name, []byte(expected), []byte(text)))
	if status != 0 {
		return cohort.Code(status).String()
	}
	limits := wire.DefaultLimits
	r, _, _, err := wire.ParseReply(wire.Native, wire.CompareSet, 0, body, &limits)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(r.Value)
}

func TestClaims(t *testing.T) {
	limits := storecore.Limits{Limits: wire.DefaultLimits, Memory: 1 << 20, Output: 1 << 20, Waits: 16}
	m := storecore.New(storecore.Config{Limits: limits})
	a, b := newClaimer(t, m, "a"), newClaimer(t, m, "b")
	for i, step := range []struct {
		who                        *claimer
		name, expected, text, want string
	}{
		{a, "rank/0", "", "A", "A"},    // free
		{b, "rank/0", "", "B", "A"},    // taken
		{b, "rank/0", "A", "B", "A"},   // its holder lives
		{a, "rank/0", "A", "A2", "A2"}, // its own
		{a, "rank/0", "A", "A3", "A2"}, // its own, but another text
		{b, "rank/1", "x", "B", "x"},   // never claimed, so the expectation comes back
		{b, "rank/1", "", "B", "B"},    // one connection may claim several
		{b, "rank/2", "", "", "invalid argument"},
		{b, "", "", "B", "invalid argument"},
		{b, strings.Repeat("n", 300), "", "B", "invalid argument"},
		{b, "n", "", strings.Repeat("t", 2000), "invalid argument"},
	} {
		if got := step.who.claim(step.name, step.expected, step.text); got != step.want {
			t.Fatalf("step %d: got %q, want %q", i, got, step.want)
		}
	}
	want := map[string]storecore.Claim{"rank/0": {Text: "A2", Held: true}, "rank/1": {Text: "B", Held: true}}
	if diff := cmp.Diff(want, m.Claims()); diff != "" {
		t.Error(diff)
	}

	// A waiting client is known by its claim.
	m.Receive(b.conn, wire.EndFrame(wire.AppendKeys(wire.BeginFrame(nil, 99), wire.Native, wire.Wait, "/k"), 0, 0))
	if s := m.Snapshot(10); len(s.Waiters) != 1 || s.Waiters[0].Name != "rank/1: B" || s.Keys != 0 {
		t.Errorf("snapshot %+v", s)
	}

	m.Close(a.conn)
	if got := b.claim("rank/0", "", "B"); got != "A2" {
		t.Errorf("a name whose holder is gone was given away without knowing it: %q", got)
	}
	if got := b.claim("rank/0", "A2", "B"); got != "B" {
		t.Errorf("the name of a holder who is gone cannot be taken over: %q", got)
	}
	m.Close(b.conn)
	want = map[string]storecore.Claim{"rank/0": {Text: "B"}, "rank/1": {Text: "B"}}
	if diff := cmp.Diff(want, m.Claims()); diff != "" {
		t.Error(diff)
	}
}

func TestClaimsAreNoKeys(t *testing.T) {
	limits := storecore.Limits{Limits: wire.DefaultLimits, Memory: 64 << 10, Output: 1 << 20, Waits: 16}
	m := storecore.New(storecore.Config{Limits: limits})
	c := newClaimer(t, m, "c")
	c.claim("rank/0", "", "me")
	if s := m.Snapshot(0); s.Keys != 0 || s.Memory == 0 {
		t.Errorf("keys %d, memory %d: a claim is not a key, but takes memory", s.Keys, s.Memory)
	}
	if status, _ := c.ask(wire.AppendSet(nil, wire.Native, wire.ClaimPrefix+"rank/0", []byte("other"))); cohort.Code(status) !=
		cohort.InvalidArgument {
		t.Errorf("a claim was set as a key: status %d", status)
	}
	// The memory limit holds for claims too.
	refused := false
	for i := range 4096 {
		if c.claim("n"+strings.Repeat("x", i%100)+string(rune('a'+i%26))+strings.Repeat("y", i/100), "",
			"text") == cohort.Exhausted.String() {
			refused = true
			break
		}
	}
	if !refused {
		t.Error("claims without end were taken")
	}
	// A PyTorch client cannot reach them, and is cut as for every reserved key.
	v := m.Open("v", nil)
	m.Receive(v, wire.AppendCompareSet(wire.AppendValidate(nil), wire.V, wire.ClaimPrefix+"rank/0", nil, []byte("x")))
	if v.Cut() == nil {
		t.Error("a V client claimed a name")
	}
}

// One client that claims all it can keeps no other from claiming, neither while it is there nor afterwards.
func TestClaimsOfOneDoNotKeepOthersOut(t *testing.T) {
	limits := storecore.Limits{Limits: wire.DefaultLimits, Memory: 64 << 20, Output: 1 << 20, Waits: 16}
	m := storecore.New(storecore.Config{Limits: limits})
	early := newClaimer(t, m, "10.0.0.1:7")
	if got := early.claim("rank/1", "", "early"); got != "early" {
		t.Fatal(got)
	}
	m.Close(early.conn) // its name is to be remembered
	for round := range 100 {
		greedy := newClaimer(t, m, "10.0.0.9:1")
		refused := 0
		for i := range 1400 {
			if got := greedy.claim(fmt.Sprintf("n/%d/%d", round, i), "", "greedy"); got == cohort.Exhausted.String() {
				refused++
			}
		}
		if refused < 1000 {
			t.Fatalf("one client may hold %d names", 1400-refused)
		}
		honest := newClaimer(t, m, "10.0.0.2:7")
		if got := honest.claim(fmt.Sprintf("rank/0/%d", round), "", "me"); got != "me" {
			t.Fatalf("an honest client cannot claim: %s", got)
		}
		m.Close(greedy.conn)
		m.Close(honest.conn)
	}
	all := m.Claims()
	if len(all) > 1<<13 {
		t.Errorf("%d names are remembered", len(all))
	}
	if got := all["rank/1"]; got.Text != "early" || got.Held {
		t.Errorf("another host's claims made the server forget one: %+v", got)
	}
	late := newClaimer(t, m, "10.0.0.3:7")
	if got := late.claim("rank/1", "", "late"); got != "early" {
		t.Errorf("a name that was taken before: %q", got)
	}
	if got := late.claim("rank/1", "early", "late"); got != "late" {
		t.Errorf("a name that was taken before is taken over: %q", got)
	}
}

// Names that come and go for ever take a bounded amount of memory, from many hosts as from one.
func TestClaimsAreBounded(t *testing.T) {
	limits := storecore.Limits{Limits: wire.DefaultLimits, Memory: 1 << 30, Output: 1 << 20, Waits: 16}
	m := storecore.New(storecore.Config{Limits: limits})
	for i := range 72_000 { // more than all hosts together may have
		c := newClaimer(t, m, fmt.Sprintf("10.0.%d.%d:1", i%100, i%7))
		if got := c.claim(fmt.Sprint("n", i), "", "x"); got != "x" {
			t.Fatal(got)
		}
		if i%3 == 0 { // and again
			c.claim(fmt.Sprint("n", i/2), "x", "y")
		}
		m.Close(c.conn)
	}
	if n := len(m.Claims()); n > 1<<16 {
		t.Errorf("%d names are remembered", n)
	}
}
