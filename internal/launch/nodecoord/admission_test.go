// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"bufio"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
)

// newHost starts the rendezvous of a job for a number of nodes.
func newHost(t *testing.T, cfg Config) *Host {
	t.Helper()
	cfg.JoinTimeout, cfg.Silence = time.Hour, time.Hour
	h, err := Listen(cfg, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// dial connects to a host.
func dial(t *testing.T, h *Host) *Wire {
	t.Helper()
	c, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return NewWire(c, time.Hour)
}

func send(t *testing.T, w *Wire, all ...Message) {
	t.Helper()
	for _, m := range all {
		if err := w.Send(m); err != nil {
			t.Fatal(err)
		}
	}
}

// joining is the request of a node with two workers.
func joining(id string) Message {
	return Message{Join: &Join{RunID: id, Host: "node", PID: 7, Wish: -1, Roles: []launchcore.Role{{Name: "default", Workers: 2}}}}
}

// until receives until a message is as wanted.
func until(t *testing.T, w *Wire, wanted func(Message) bool) Message {
	t.Helper()
	for {
		m, err := w.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if wanted(m) {
			return m
		}
	}
}

// TestWrongID: a client that does not know the id gets a fixed refusal, has one guess for each connection, and can neither ask the nodes
// nor end the job. Everything that it receives is looked at.
func TestWrongID(t *testing.T) {
	t.Parallel()
	const id = "secretjob_8c1f"
	others := make(chan string, 8)
	h := newHost(t, Config{
		RunID: id, Rules: Rules{MinNodes: 1234, MaxNodes: 1234, MaxRestarts: 5678},
		OnRefused: func(_ Refusal, addr string) { others <- addr },
	})
	node := dial(t, h)
	send(t, node, joining(id))
	until(t, node, func(m Message) bool { return m.Waiting != nil && m.Waiting.Here == 1 })

	c, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	w := NewWire(c, time.Hour)
	send(t, w,
		Message{Examine: &Question{ID: 1}}, Message{Examine: &Question{ID: 2, What: Presence}},
		Message{Failed: &Failed{Attempt: -1, Failure: launchcore.Failure{Sentence: "ended by a stranger"}}},
		joining("none"), joining(id), // the second guess
		Message{Examine: &Question{ID: 3}}, Message{Leave: &Leave{Reason: "goes"}},
	)
	if err = c.(*net.TCPConn).CloseWrite(); err != nil { //nolint:errcheck // it was dialled with "tcp"
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	var got []string
	for lines := bufio.NewScanner(c); lines.Scan(); {
		got = append(got, lines.Text())
	}
	refused, err := json.Marshal(Message{Dismiss: &refusal})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"alive":true}`, string(refused)}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("a stranger receives\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if addr := <-others; addr != c.LocalAddr().String() {
		t.Errorf("%s is reported in place of %s", addr, c.LocalAddr())
	}

	// The node was asked nothing, and is not alone because of it: the next message is about the node that comes now.
	second := dial(t, h)
	send(t, second, joining(id))
	m, err := node.Receive()
	if err != nil || m.Waiting == nil || m.Waiting.Here != 2 {
		t.Errorf("the node receives %+v, %v", m, err)
	}
}

// TestNodesSpeakForThemselves: a node can neither report the failure of a rank of another node, nor show or answer for one.
func TestNodesSpeakForThemselves(t *testing.T) {
	t.Parallel()
	h := newHost(t, Config{RunID: "job", Rules: Rules{MinNodes: 2, MaxNodes: 2}, StoreAddr: "127.0.0.1"})
	var nodes [2]*Wire
	var begun [2]*Begin
	for i := range nodes {
		nodes[i] = dial(t, h)
		m := joining("job")
		m.Join.Wish, m.Join.Watches = i, i == 0
		send(t, nodes[i], m)
	}
	for i := range nodes {
		begun[i] = until(t, nodes[i], func(m Message) bool { return m.Begin != nil }).Begin
	}
	if begun[1].Base != 2 {
		t.Fatalf("the second node begins with rank %d", begun[1].Base)
	}

	send(t, nodes[0], Message{Examine: &Question{ID: 9}})
	q := until(t, nodes[1], func(m Message) bool { return m.Examine != nil }).Examine
	said, err := json.Marshal(verdict.Job{
		Ranks: []verdict.Rank{{Rank: 0}, {Rank: 2}, {Rank: 3}, {Rank: 4}},
		Polls: []verdict.Wait{{Rank: 1, Key: "k"}, {Rank: 2, Key: "own"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	send(t, nodes[1], Message{Seen: &Answer{Question: *q, Job: said, First: 0, Workers: 99}})
	a := until(t, nodes[0], func(m Message) bool { return m.Seen != nil }).Seen
	var job verdict.Job
	if err = json.Unmarshal(a.Job, &job); err != nil {
		t.Fatal(err)
	}
	job = a.OwnRanks(job)
	if len(job.Ranks) != 2 || job.Ranks[0].Rank != 2 || job.Ranks[1].Rank != 3 || len(job.Polls) != 1 || job.Polls[0].Key != "own" {
		t.Errorf("the second node answers for ranks %+v and polls %+v", job.Ranks, job.Polls)
	}

	send(t, nodes[1], Message{Shown: &Shown{Node: 0, Ranks: []ShownRank{{Rank: 0}, {Rank: 3}}, Waits: []ShownWait{{Rank: 1}}}})
	view := until(t, nodes[0], func(m Message) bool { return m.View != nil }).View
	if n := view.Nodes[0]; len(view.Nodes) != 1 || n.Node != 1 || len(n.Ranks) != 1 || n.Ranks[0].Rank != 3 || len(n.Waits) != 0 {
		t.Errorf("the second node shows %+v", n)
	}

	send(t, nodes[1], Message{Failed: &Failed{Failure: launchcore.Failure{Sentence: "rank 0 is guilty", Rank: new(cohort.Rank(0))}}})
	stopped := until(t, nodes[0], func(m Message) bool { return m.Stop != nil }).Stop
	if want := "node node (process 7) reports a failure of rank 0, which is not one of its own"; stopped.Reason != want {
		t.Errorf("the job is stopped because %q, want %q", stopped.Reason, want)
	}
}
