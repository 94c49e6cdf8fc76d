// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/frdump"
	"github.com/cohort-dist/cohort/internal/freeport"
	"github.com/cohort-dist/cohort/internal/launchcore"
	"github.com/cohort-dist/cohort/internal/nodehost"
	"github.com/cohort-dist/cohort/internal/pystack"
	"github.com/cohort-dist/cohort/internal/recorder"
	"github.com/cohort-dist/cohort/internal/verdict"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestExamineAllNodes: a launcher learns through the host what the workers of all nodes are doing, and how those that
// have ended did.
func TestExamineAllNodes(t *testing.T) {
	t.Parallel()
	port, release, err := freeport.Take()
	if err != nil {
		t.Fatal(err)
	}
	release()
	cfg := Config{
		RunID: "nodes", Endpoint: "127.0.0.1:" + strconv.Itoa(port), MinNodes: 2, MaxNodes: 2, Silence: time.Minute, JoinTimeout: time.Minute, LastCall: time.Minute,
	}
	h, err := nodehost.Listen((&job{cfg: cfg, screen: newScreen(Screen{})}).forHost(), cfg.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	var members []*member
	for node := range 2 {
		j := &job{cfg: cfg, screen: newScreen(Screen{Out: os.Stderr, Err: os.Stderr}), host: "node" + strconv.Itoa(node), asked: t.Context()}
		conn, refused := j.connect(cfg.Endpoint, time.Minute)
		if refused != nil {
			t.Fatal(refused)
		}
		m := newMember(j, conn, cfg.Endpoint)
		defer m.close()
		a := &attempt{job: j, member: m, place: place{nodes: 2, base: 2 * node, world: 4, addr: "127.0.0.1", port: server.Port()}}
		a.workers = []*worker{{local: 0, rank: dist.Rank(2 * node)}, {local: 1, rank: dist.Rank(2*node + 1)}}
		a.pids, a.ends = make([]atomic.Int64, 2), make([]atomic.Pointer[string], 2)
		a.pids[0].Store(int64(os.Getpid()))
		words := "exited with code 3"
		a.ends[1].Store(&words)
		j.current.Store(a)
		m.say(nodehost.Message{Join: &nodehost.Join{RunID: cfg.RunID, Host: j.host, PID: os.Getpid(), Roles: []launchcore.Role{{Name: "default", Workers: 2}}, Wish: node}})
		members = append(members, m)
	}
	for _, m := range members { // both have joined once the host begins
		for msg := range m.incoming {
			if msg.Begin != nil {
				break
			}
		}
	}
	for _, m := range members {
		seen, failure := m.job.examine(t.Context())
		if failure != nil {
			t.Fatal(failure)
		}
		var ranks []string
		for _, r := range seen.Ranks {
			ranks = append(ranks, strconv.Itoa(r.Rank)+" "+r.Gone)
		}
		slices.Sort(ranks)
		if got := strings.Join(ranks, ", "); got != "0 , 1 exited with code 3, 2 , 3 exited with code 3" || !seen.Local || seen.World != 4 {
			t.Errorf("%s sees %q, local %v, world %d", m.job.host, got, seen.Local, seen.World)
		}
	}

	// A node that says nothing is not waited for for ever, and its ranks are not taken for absent.
	members[1].job.current.Store(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	seen, err := members[0].job.examine(ctx)
	if err != nil || len(seen.Ranks) != 2 || seen.Local || !slices.Contains(seen.Notes, "only 1 of the 2 nodes have answered: ranks that were not seen are on the others") {
		t.Errorf("without the other node: %v, %+v", err, seen)
	}
}

// TestShortened: dumps fit into a message, and say what they have lost.
func TestShortened(t *testing.T) {
	t.Parallel()
	var dumps []recorder.Dump
	for range 8 {
		dumps = append(dumps, recorder.Dump{Groups: []recorder.Group{{Entries: make([]recorder.Entry, 2000)}}})
	}
	b := shortened(dumps)
	var got []recorder.Dump
	if err := json.Unmarshal(b, &got); err != nil || len(b) > maxSeen || len(got) != 8 {
		t.Fatalf("%v: %d bytes, %d dumps", err, len(b), len(got))
	}
	if g := got[7].Groups[0]; len(g.Entries) == 0 || g.Lost+uint64(len(g.Entries)) != 2000 {
		t.Errorf("%d operations and %d lost", len(g.Entries), g.Lost)
	}
}

// TestTrimmed: what a node tells fits into a message, whatever its workers look like.
func TestTrimmed(t *testing.T) {
	t.Parallel()
	var big verdict.Job
	frames := slices.Repeat([]pystack.Frame{{Func: strings.Repeat("f", 100), File: strings.Repeat("x", 100)}}, 100)
	for rank := range 64 {
		r := verdict.Rank{Rank: rank, Threads: slices.Repeat([]pystack.Thread{{Frames: frames}}, 50), Dump: &frdump.Dump{Entries: make([]frdump.Entry, 2000)}}
		r.Main = &r.Threads[0]
		big.Ranks = append(big.Ranks, r)
	}
	b := trimmed(big)
	var got verdict.Job
	if err := json.Unmarshal(b, &got); err != nil || len(b) > maxSeen || len(got.Ranks) != 64 {
		t.Errorf("%v: %d bytes, %d ranks", err, len(b), len(got.Ranks))
	}
	if small := trimmed(verdict.Job{Ranks: big.Ranks[:1]}); len(small) == 0 || !json.Valid(small) {
		t.Errorf("one rank takes %d bytes", len(small))
	}
	if len(big.Ranks[0].Threads) != 50 || len(big.Ranks[0].Dump.Entries) != 2000 {
		t.Error("what was seen has changed")
	}
}

// TestMergeNCCL: what NCCL has told one node is not lost among what the others have seen, and no more is what a kernel has logged and what
// is noted of a host.
func TestMergeNCCL(t *testing.T) {
	t.Parallel()
	got := merge([]verdict.Job{{World: 2, Notes: []string{"a"}}, {NCCL: []string{"first"}, GPUErrors: []verdict.GPUError{{Number: 79}}}, {NCCL: []string{"second"}, Notes: []string{"b", "a"}}})
	if !slices.Equal(got.NCCL, []string{"first"}) || len(got.GPUErrors) != 1 || !slices.Equal(got.Notes, []string{"a", "b"}) {
		t.Errorf("%+v", got)
	}
}
