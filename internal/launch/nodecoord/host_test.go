// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"bufio"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// TestViewIsBounded: whatever the ranks of all nodes print and wait for, the view of them fits into a message.
func TestViewIsBounded(t *testing.T) {
	t.Parallel()
	evil := strings.Repeat("\x1b[31m\x00<é", 100)
	big := &Shown{Attempt: 3, Node: 7}
	for rank := range cohort.Rank(MaxShown) {
		big.Ranks = append(big.Ranks, ShownRank{
			Rank: rank, Phase: 4, Age: time.Hour, Words: evil[:MaxShownTexts/MaxShown/2], Section: evil[:MaxShownTexts/MaxShown/2],
			Entered: 1<<63 - 1, Steps: 1<<64 - 1,
		})
		big.Waits = append(big.Waits, ShownWait{Rank: rank, Age: time.Hour})
	}
	view := bounded(repeat(big, 2*MaxRoster))
	b, err := json.Marshal(Message{View: &View{Nodes: view}})
	if err != nil || len(b) > MaxMessage || len(view) == 0 {
		t.Errorf("%v: %d bytes for %d nodes", err, len(b), len(view))
	}
	small := &Shown{Ranks: make([]ShownRank, 8)}
	if view = bounded(repeat(small, 2*MaxRoster)); len(view) != MaxRoster {
		t.Errorf("%d small nodes of %d", len(view), MaxRoster)
	}
}

func repeat(m *Shown, n int) []*Shown {
	all := make([]*Shown, n)
	for i := range all {
		all[i] = m
	}
	return all
}

// TestHostPassesViewsOn: those who look are told of all nodes, others are not; a node's state of an earlier attempt is not
// passed on, and one who does not read gets the latest view alone.
func TestHostPassesViewsOn(t *testing.T) {
	t.Parallel()
	h := &Host{nodes: map[launchcore.Node]*conn{}, attempt: 1}
	var conns []*conn
	for n := range 3 {
		c := &conn{
			id: launchcore.Node(n), out: newOutbox(), begun: 1, place: n, base: cohort.Rank(n),
			join: &Join{Watches: n == 2, Roles: []launchcore.Role{{Workers: 1}}},
		}
		h.nodes[c.id] = c
		conns = append(conns, c)
	}
	told := func(c *conn) string {
		m, ok, _ := c.out.next()
		if !ok {
			return "nothing"
		}
		var nodes []string
		for _, n := range m.View.Nodes {
			nodes = append(nodes, strconv.Itoa(n.Node))
		}
		return strings.Join(nodes, " ")
	}
	h.keepShown(conns[0], &Shown{Attempt: 0, Ranks: make([]ShownRank, 1)})
	h.sendView()
	if got := told(conns[2]); got != "nothing" {
		t.Errorf("of an earlier attempt: %s", got)
	}
	h.keepShown(conns[2], &Shown{Attempt: 1, Node: 2, Ranks: make([]ShownRank, MaxShown+1)})
	for n, c := range conns[:2] {
		h.keepShown(c, &Shown{Attempt: 1, Node: n, Ranks: []ShownRank{{Rank: cohort.Rank(n)}}})
		h.sendView()
	}
	for n, want := range []string{"nothing", "nothing", "0 1"} {
		if got := told(conns[n]); got != want {
			t.Errorf("node %d is told %s, want %s", n, got, want)
		}
	}
	h.sendView()
	h.attempt, conns[0].begun = 2, 2
	h.keepShown(conns[0], &Shown{Attempt: 2})
	h.sendView()
	if got := told(conns[2]) + ", " + told(conns[2]); got != "0, nothing" {
		t.Errorf("in the next attempt: %s", got)
	}
}

// TestAnswersOfManyNodes: a node that has asked all others is not cut off because they answer faster than it reads. Its
// host's own words come first, and what waits is bounded.
func TestAnswersOfManyNodes(t *testing.T) {
	t.Parallel()
	h := &Host{nodes: map[launchcore.Node]*conn{}}
	asker := &conn{id: 1, out: newOutbox(), join: &Join{}} // without a wire: cutting it off would panic
	h.nodes[1] = asker
	const nodes = 1000
	seen := &Answer{Question: Question{ID: 1, Asker: 1}, Job: make(json.RawMessage, 1000)}
	for n := range nodes {
		h.take(event{conn: &conn{id: launchcore.Node(n + 2), join: &Join{}}, message: Message{Seen: seen}})
	}
	asker.say(Message{Stop: &stop{}})
	if m, ok, _ := asker.out.next(); !ok || m.Stop == nil {
		t.Errorf("first comes %+v", m)
	}
	got := 0
	for {
		m, ok, _ := asker.out.next()
		if !ok {
			break
		}
		if m.Seen == nil {
			t.Fatalf("%+v", m)
		}
		got++
	}
	if got != nodes {
		t.Errorf("%d answers of %d", got, nodes)
	}
	seen.Job = make(json.RawMessage, MaxMessage)
	for range 2 * maxAnswers / MaxMessage {
		asker.out.answer(Message{Seen: seen})
	}
	if held := len(asker.out.mu.answers) * MaxMessage; held > maxAnswers || held < maxAnswers/2 {
		t.Errorf("%d bytes are held", held)
	}
	asker.out.close()
	if _, ok, closed := asker.out.next(); ok || !closed {
		t.Error("a box that is closed holds back its end")
	}
}

// TestPresence: the host reports when it last received from the nodes of the attempt, the most silent first, and of no others.
func TestPresence(t *testing.T) {
	t.Parallel()
	h := &Host{nodes: map[launchcore.Node]*conn{}, attempt: 3}
	for n, begun := range []int{3, 3, 2} {
		c := &conn{
			id: launchcore.Node(n), wire: NewWire(nil, time.Minute), out: newOutbox(), join: &Join{PID: 100 + n}, place: n,
			begun: begun,
		}
		c.wire.last.Add(-int64(time.Duration(n) * time.Hour))
		h.nodes[c.id] = c
	}
	asker := h.nodes[0]
	h.take(event{conn: asker, message: Message{Examine: &Question{ID: 7, What: Presence}}})
	m, ok, _ := asker.out.next()
	if !ok || m.Seen == nil || m.Seen.ID != 7 {
		t.Fatalf("the answer is %+v", m)
	}
	var contacts []Contact
	if err := json.Unmarshal(m.Seen.Job, &contacts); err != nil || len(contacts) != 2 {
		t.Fatalf("%s: %v", m.Seen.Job, err)
	}
	if a, b := contacts[0], contacts[1]; a.Node != 1 || a.PID != 101 || a.Ago < time.Hour || b.Node != 0 || b.Ago > time.Minute {
		t.Errorf("%+v", contacts)
	}
}

// TestLeave: a host that is ended tells the others even when it has seen its own connection end before, and says whether there are others.
func TestLeave(t *testing.T) {
	t.Parallel()
	for others := range 2 {
		h, err := Listen(Config{RunID: "job", Rules: Rules{MinNodes: 9, MaxNodes: 9}, JoinTimeout: time.Hour, Silence: time.Hour},
			"127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		var wires []*Wire
		for range 1 + others { // the first is the host's own
			c, err := net.Dial("tcp", h.Addr())
			if err != nil {
				t.Fatal(err)
			}
			w := NewWire(c, time.Hour)
			defer func() { _ = w.Close() }()
			if err = w.Send(Message{Join: &Join{RunID: "job", Roles: []launchcore.Role{{Name: "default", Workers: 1}}}}); err != nil {
				t.Fatal(err)
			}
			wires = append(wires, w)
		}
		// until reads what a node is told until it is as wanted.
		until := func(w *Wire, wanted func(Message) bool) {
			t.Helper()
			for {
				if m, err := w.Receive(); err != nil {
					t.Fatalf("with %d others: %v", others, err)
				} else if wanted(m) {
					return
				}
			}
		}
		here := func(n int) func(Message) bool {
			return func(m Message) bool { return m.Waiting != nil && m.Waiting.Here == n }
		}
		until(wires[others], here(1+others))
		if others > 0 {
			_ = wires[0].Close()
			until(wires[others], here(others))
		}
		for range 2 {
			if told := h.Leave("was ended", wires[0].LocalAddr().String()); told != (others > 0) {
				t.Errorf("with %d others it says %v", others, told)
			}
		}
		until(wires[others], func(m Message) bool { return m.Leave != nil && m.Leave.Reason == "was ended" })
	}
}

// TestTextOfOthersIsPrintable: whatever a node says, in any field of any message, reaches the others and the host itself without
// what moves the cursor of a terminal.
func TestTextOfOthersIsPrintable(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\u009b2J\u202e"
	h, err := Listen(Config{RunID: "job", Rules: Rules{MinNodes: 2, MaxNodes: 2}, JoinTimeout: time.Hour, Silence: time.Hour},
		"127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var wires []*Wire
	for range 2 {
		c, err := net.Dial("tcp", h.Addr())
		if err != nil {
			t.Fatal(err)
		}
		w := NewWire(c, time.Hour)
		defer func() { _ = w.Close() }()
		role := launchcore.Role{Name: "r" + evil, Workers: 1}
		if err = w.Send(Message{Join: &Join{RunID: "job", Host: "h" + evil, Roles: []launchcore.Role{role}}}); err != nil {
			t.Fatal(err)
		}
		wires = append(wires, w)
	}
	// raw reads what a node is told, as it travels, up to what the test waits for.
	lines := bufio.NewScanner(wires[1])
	raw := func(wanted string) string {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), wanted) {
				return lines.Text()
			}
		}
		t.Fatalf("no %s: %v", wanted, lines.Err())
		return ""
	}
	clean := func(line string) {
		t.Helper()
		var m any
		if err := json.Unmarshal([]byte(line), &m); err != nil || string(printable.JSON([]byte(line))) != line {
			t.Errorf("a node is told %s (%v)", line, err)
		}
	}
	clean(raw(`"roster"`))
	if err := wires[0].Send(Message{Failed: &Failed{Failure: launchcore.Failure{Sentence: "rank 0 " + evil}}}); err != nil {
		t.Fatal(err)
	}
	clean(raw("rank 0 "))
}
