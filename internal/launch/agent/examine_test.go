// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestExamineAllNodes: a launcher learns through the host what the workers of all nodes are doing, and how those that
// have ended did.
func TestExamineAllNodes(t *testing.T) {
	t.Parallel()
	port, release, err := testkit.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	release()
	cfg := Config{
		RunID: "nodes", Endpoint: "127.0.0.1:" + strconv.Itoa(port), MinNodes: 2, MaxNodes: 2, Silence: time.Minute,
		JoinTimeout: time.Minute, LastCall: time.Minute,
	}
	h, err := nodecoord.Listen((&Job{cfg: cfg, screen: newScreen(Screen{})}).forHost(), cfg.Endpoint)
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
		j := &Job{
			cfg: cfg, screen: newScreen(Screen{Out: os.Stderr, Err: os.Stderr}), host: "node" + strconv.Itoa(node),
			asked: t.Context(),
		}
		conn, refused := j.connect(cfg.Endpoint, time.Minute, false, j.secured(""))
		if refused != nil {
			t.Fatal(refused)
		}
		m := newMember(j, conn, cfg.Endpoint)
		defer m.close()
		roster := []nodecoord.Node{{Host: "alpha", Workers: 2}, {Host: "beta", Base: 2, Workers: 2}}
		a := &attempt{job: j, member: m, place: place{
			nodes: 2, base: 2 * node, world: 4, addr: "127.0.0.1", port: server.Port(),
			roster: roster,
		}}
		a.workers = []*worker{{local: 0, rank: cohort.Rank(2 * node)}, {local: 1, rank: cohort.Rank(2*node + 1)}}
		a.workers[0].running.Store(int64(os.Getpid()))
		words := "exited with code 3"
		a.workers[1].endText.Store(&words)
		j.current.Store(a)
		m.send(nodecoord.Message{Join: &nodecoord.Join{
			RunID: cfg.RunID, Host: j.host, PID: os.Getpid(),
			Roles: []launchcore.Role{{Name: "default", Workers: 2}}, Wish: node,
		}})
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

	// A silent node is not waited for for ever, and its ranks are not reported as absent.
	members[1].job.current.Store(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	seen, err := members[0].job.examine(ctx)
	if err != nil || len(seen.Ranks) != 2 || seen.Local || !slices.ContainsFunc(seen.Notes, func(note string) bool {
		return strings.HasPrefix(note,
			fmt.Sprintf(
				"only 1 of the 2 nodes have answered, and nothing is known of node 1 on beta (ranks 2,3), whose launcher (process "+
					"%d) ", os.Getpid()))
	}) {
		t.Errorf("without the other node: %v, %+v", err, seen)
	}
}

// TestLastContact: what is reported of a node depends on when the host last received from it.
func TestLastContact(t *testing.T) {
	t.Parallel()
	contacts := []nodecoord.Contact{{Node: 2, PID: 7, Ago: 90 * time.Second}, {Node: 1, PID: 8, Ago: silentFrom}}
	for node, want := range []string{
		"", ", whose launcher (process 8) responds",
		", whose launcher (process 7) has not responded for 90 s",
	} {
		if got := lastContact(contacts, node); got != want {
			t.Errorf("node %d%s, want %s", node, got, want)
		}
	}
}

// TestSilentNode: a node that has said nothing for some time is not waited for.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	cfg := Config{
		RunID: "nodes", Endpoint: "127.0.0.1:0", MinNodes: 2, MaxNodes: 2, Silence: time.Hour, JoinTimeout: time.Minute,
		LastCall: time.Minute,
	}
	cfg.Endpoint = "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	h, err := nodecoord.Listen((&Job{cfg: cfg, screen: newScreen(Screen{})}).forHost(), cfg.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	j := &Job{cfg: cfg, screen: newScreen(Screen{}), host: "alpha", asked: t.Context()}
	connect := func() net.Conn {
		conn, refused := j.connect(cfg.Endpoint, time.Minute, false, j.secured(""))
		if refused != nil {
			t.Fatal(refused)
		}
		return conn
	}
	join := func(node int) nodecoord.Message {
		return nodecoord.Message{Join: &nodecoord.Join{
			RunID: cfg.RunID, Host: "node" + strconv.Itoa(node), PID: os.Getpid(),
			Roles: []launchcore.Role{{Name: "default", Workers: 1}}, Wish: node,
		}}
	}
	m, silent := newMember(j, connect(), cfg.Endpoint), nodecoord.NewWire(connect(), time.Hour)
	defer m.close()
	defer func() { _ = silent.Close() }()
	m.send(join(0))
	if err = silent.Send(join(1)); err != nil {
		t.Fatal(err)
	}
	for msg := range m.incoming { // both have joined once the host begins
		if msg.Begin != nil {
			break
		}
	}
	a := &attempt{job: j, member: m, place: place{
		nodes: 2, world: 2,
		roster: []nodecoord.Node{{Host: "alpha", Workers: 1}, {Host: "beta", Base: 1, Workers: 1}},
	}}
	a.workers = []*worker{{}}
	words := "exited with code 3"
	a.workers[0].endText.Store(&words)
	j.current.Store(a)
	// The host may answer late where much else runs: then all nodes are waited for.
	testkit.Until(t, "the other node is not waited for", func() bool {
		if a.answering(t.Context()) != 1 { // not silent for long enough
			return false
		}
		ctx, cancel := context.WithTimeout(t.Context(), nodesTime)
		defer cancel()
		seen, err := j.examine(ctx)
		return err == nil && ctx.Err() == nil && !seen.Local && len(seen.Ranks) == 1 &&
			slices.ContainsFunc(seen.Notes, func(note string) bool {
				return strings.HasPrefix(note,
					fmt.Sprintf(
						"only 1 of the 2 nodes have answered, and nothing is known of node 1 on beta (rank 1), whose launcher "+
							"(process %d) has not responded for ", os.Getpid()))
			})
	})
}

// TestSilentHost: a node whose host says nothing does not wait for the others, and looks at its own workers at once. More nodes than the
// roster holds are counted.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	conn, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	j := &Job{cfg: Config{RunID: "silent", Silence: time.Hour}, screen: newScreen(Screen{}), host: "alpha", asked: t.Context()}
	m := newMember(j, conn, "the host")
	defer m.close()
	a := &attempt{job: j, member: m, place: place{
		nodes: 70, world: 70,
		roster: []nodecoord.Node{{Host: "alpha", Workers: 1}, {Host: "beta", Base: 1, Workers: 1}},
	}}
	a.workers = []*worker{{}}
	words := "exited with code 3"
	a.workers[0].endText.Store(&words)
	j.current.Store(a)
	if got, want := a.missing(t.Context(), []verdict.Rank{{}}, 1),
		"only 1 of the 70 nodes have answered, and nothing is known of node 1 on beta (rank 1); and 68 more"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for m.wire.Quiet() <= silentFrom {
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), nodesTime, errors.New("it waits for the others"))
	defer cancel()
	seen, err := j.examine(ctx)
	if err != nil || ctx.Err() != nil || seen.Local || len(seen.Ranks) != 1 || len(seen.Notes) == 0 ||
		!strings.HasPrefix(seen.Notes[len(seen.Notes)-1], "the launcher that hosts the rendezvous at the host has not responded for ") {
		t.Errorf("%v, %v, %+v", err, context.Cause(ctx), seen)
	}
}
