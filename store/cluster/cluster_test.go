// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/cluster"
)

// counters is a state machine of counters. It answers each session's last request again.
type counters struct {
	mu    sync.Mutex
	state state
}

type state struct {
	Index    uint64
	Counters map[string]int64
	Sessions map[string]last
}

type last struct {
	Seq   int
	Value int64
}

// add is a command.
type add struct {
	Session, Key string
	Seq          int
	By           int64
}

type result struct {
	value int64
	err   error
}

func newCounters() *counters {
	return &counters{state: state{Counters: map[string]int64{}, Sessions: map[string]last{}}}
}

func (c *counters) Apply(entries []cluster.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		var a add
		if err := gob.NewDecoder(bytes.NewReader(e.Data)).Decode(&a); err != nil {
			panic(err)
		}
		c.state.Index = e.Index
		if l := c.state.Sessions[a.Session]; a.Seq > l.Seq {
			c.state.Counters[a.Key] += a.By
			c.state.Sessions[a.Session] = last{a.Seq, c.state.Counters[a.Key]}
		}
		if answer, ok := e.Local.(chan result); ok {
			answer <- result{value: c.state.Sessions[a.Session].Value}
		}
	}
}

func (c *counters) Aborted(which func() []any, reason error) {
	for _, l := range which() {
		l.(chan result) <- result{err: reason} //nolint:errcheck,forcetypeassert // what the clients pass
	}
}

type image struct{ *bytes.Reader }

func (image) Close() error { return nil }

func (c *counters) Capture() (cluster.Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(c.state)
	return image{bytes.NewReader(b.Bytes())}, err
}

func (c *counters) Restore(_ uint64, r io.Reader) error {
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var s state
	if err = gob.NewDecoder(bytes.NewReader(all)).Decode(&s); err != nil {
		return err
	}
	for _, m := range []*map[string]int64{&s.Counters} {
		if *m == nil {
			*m = map[string]int64{}
		}
	}
	if s.Sessions == nil {
		s.Sessions = map[string]last{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
	return nil
}

func (c *counters) value(key string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Counters[key]
}

// node is a member in this process and what is needed to start it again.
type node struct {
	config cluster.Config
	state  *counters
	member *cluster.Member
}

// nodes are the members of a cluster.
type nodes struct {
	t   *testing.T
	mu  sync.Mutex // for all, while there are clients
	all []*node
}

// newNodes starts a cluster.
func newNodes(t *testing.T, n int) *nodes {
	t.Helper()
	ns := &nodes{t: t}
	var listeners []net.Listener
	var peers []cluster.Peer
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		peers = append(peers, cluster.Peer{Name: string(rune('a' + i)), Addr: l.Addr().String()})
	}
	for i, p := range peers {
		ns.all = append(ns.all, &node{config: cluster.Config{
			Dir: filepath.Join(t.TempDir(), p.Name), Name: p.Name, Members: peers, Listener: listeners[i], Log: testLog(t, p.Name),
			SnapshotBytes: 200_000,
		}})
		ns.start(ns.all[i])
	}
	t.Cleanup(ns.close)
	return ns
}

func testLog(t *testing.T, name string) *slog.Logger {
	t.Helper()
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil)).With(slog.String("at", name))
}

func (ns *nodes) start(n *node) {
	ns.t.Helper()
	n.state = newCounters()
	n.config.State = n.state
	member, err := cluster.Start(ns.t.Context(), n.config)
	if err != nil {
		ns.t.Fatal(err)
	}
	ns.mu.Lock()
	n.member = member
	ns.mu.Unlock()
	n.config.Listener = nil
}

func (ns *nodes) close() {
	var wait sync.WaitGroup
	for _, n := range ns.all {
		wait.Go(func() { _ = n.member.Close(ended()) })
	}
	wait.Wait()
}

// ended is a context in which no leader hands over.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// leader waits for one.
func (ns *nodes) leader() *node {
	ns.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, n := range ns.all {
			if n.member.Status().Leading {
				return n
			}
		}
	}
	ns.t.Fatal("no member leads")
	return nil
}

// client adds to counters, at whichever member leads, and repeats what was not done.
type client struct {
	ns      *nodes
	session string
	seq     int
	at      int
	longest time.Duration
}

func (c *client) add(ctx context.Context, key string, by int64) (int64, error) {
	c.seq++
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(add{c.session, key, c.seq, by}); err != nil {
		return 0, err
	}
	begun := time.Now()
	defer func() { c.longest = max(c.longest, time.Since(begun)) }()
	for {
		value, err := c.try(ctx, b.Bytes())
		if err == nil || ctx.Err() != nil {
			return value, err
		}
		if !errors.Is(err, cohort.Unavailable) && !errors.Is(err, cohort.Exhausted) && !errors.Is(err, cohort.Closed) {
			return 0, err
		}
		c.at++
		time.Sleep(2 * time.Millisecond)
	}
}

func (c *client) try(ctx context.Context, command []byte) (int64, error) {
	c.ns.mu.Lock()
	n := c.ns.all[c.at%len(c.ns.all)]
	member := n.member
	c.ns.mu.Unlock()
	answer := make(chan result, 1)
	member.Propose([]cluster.Proposal{{Data: command, Local: answer}})
	select {
	case r := <-answer:
		return r.value, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-member.Done():
		return 0, cohort.Closed
	}
}

// load has clients add until stop is called, which returns how much they have added.
func (ns *nodes) load(clients int) (stop func() (total int64, longest time.Duration)) {
	ctx, cancel := context.WithTimeout(ns.t.Context(), time.Minute)
	var wait sync.WaitGroup
	var total atomic.Int64
	var ended atomic.Bool
	all := make([]*client, clients)
	for i := range all {
		all[i] = &client{ns: ns, session: strconv.Itoa(i)}
		wait.Go(func() {
			for !ended.Load() {
				if _, err := all[i].add(ctx, "n", 1); err != nil {
					ns.t.Errorf("client %d: %v", i, err)
					return
				}
				total.Add(1)
			}
		})
	}
	return func() (int64, time.Duration) {
		ended.Store(true)
		wait.Wait()
		cancel()
		longest := time.Duration(0)
		for _, c := range all {
			longest = max(longest, c.longest)
		}
		return total.Load(), longest
	}
}

// equal waits until all members have the same value.
func (ns *nodes) equal(key string, want int64) {
	ns.t.Helper()
	for _, n := range ns.all {
		end := time.Now().Add(30 * time.Second)
		for n.state.value(key) != want && time.Now().Before(end) {
			time.Sleep(5 * time.Millisecond)
		}
		if got := n.state.value(key); got != want {
			ns.t.Errorf("member %s has %d, want %d: %+v", n.config.Name, got, want, n.member.Status())
		}
	}
}

// TestCluster: three members agree; each of them is stopped and started while clients add; nothing is lost or done twice.
func TestCluster(t *testing.T) {
	t.Parallel()
	ns := newNodes(t, 3)
	ns.leader()
	stop := ns.load(4)
	for _, n := range ns.all {
		time.Sleep(100 * time.Millisecond)
		if err := n.member.Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		ns.start(n)
	}
	time.Sleep(200 * time.Millisecond)
	total, longest := stop()
	t.Logf("%d adds, the longest took %v", total, longest)
	ns.equal("n", total)
	leader := ns.leader()
	if err := leader.member.ReadBarrier(t.Context()); err != nil {
		t.Error(err)
	}
	for _, n := range ns.all {
		if n == leader {
			continue
		}
		if err := n.member.ReadBarrier(t.Context()); !errors.Is(err, cluster.ErrNotLeader) {
			t.Errorf("a follower lets read: %v", err)
		}
	}
}

// TestReplaceMember: a member is added, catches up from a snapshot and gets a vote, and another is removed, while clients add.
func TestReplaceMember(t *testing.T) {
	t.Parallel()
	ns := newNodes(t, 3)
	leader := ns.leader()
	stop := ns.load(4)
	time.Sleep(300 * time.Millisecond)
	addrs := []string{ns.all[0].config.Members[0].Addr, ns.all[1].config.Members[1].Addr, ns.all[2].config.Members[2].Addr}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err = cluster.Add(ctx, addrs, nil, cluster.Peer{Name: "d", Addr: l.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	d := &node{config: cluster.Config{
		Dir: filepath.Join(t.TempDir(), "d"), Name: "d", Join: addrs, Listener: l, Log: testLog(t, "d"), SnapshotBytes: 200_000,
	}}
	ns.start(d)
	ns.mu.Lock()
	ns.all = append(ns.all, d)
	ns.mu.Unlock()
	for {
		s, failed := cluster.Describe(ctx, addrs, nil)
		if failed != nil {
			t.Fatal(failed)
		}
		if len(s.Members) == 4 && !anyLearner(s) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err = cluster.Remove(ctx, addrs, nil, leader.config.Name); err != nil {
		t.Fatal(err)
	}
	total, longest := stop()
	t.Logf("%d adds, the longest took %v", total, longest)
	select {
	case <-leader.member.Done():
	case <-time.After(30 * time.Second):
		t.Error("a member that was removed goes on")
	}
	_ = leader.member.Close(ctx)
	ns.all = slices.DeleteFunc(ns.all, func(n *node) bool { return n == leader })
	ns.equal("n", total)
}

func anyLearner(s cluster.Status) bool {
	for _, m := range s.Members {
		if m.Learner {
			return true
		}
	}
	return false
}

// TestZeroValues: a member or store that Start did not make has a text, as all public types do.
func TestZeroValues(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]fmt.Stringer{"no member": new(cluster.Member), "store of no member": new(cluster.Store)} {
		if got := v.String(); got != want {
			t.Errorf("%T: %q, want %q", v, got, want)
		}
	}
}
