// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/cluster"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// stores are the members of a replicated store.
type stores struct {
	t       *testing.T
	configs []cluster.StoreConfig
	all     []*cluster.Store
}

func newStores(t *testing.T, n int) *stores {
	t.Helper()
	s := &stores{t: t, all: make([]*cluster.Store, n)}
	var peers []cluster.Peer
	for i := range n {
		peers = append(peers, cluster.Peer{Name: string(rune('a' + i)), Addr: freeAddr(t)})
	}
	for i, p := range peers {
		s.configs = append(s.configs, cluster.StoreConfig{
			Config: cluster.Config{
				Dir: filepath.Join(t.TempDir(), p.Name), Name: p.Name, Members: peers, Log: testLog(t, p.Name), SnapshotBytes: 50_000,
			},
			Addr: freeAddr(t),
		})
		s.start(i)
	}
	t.Cleanup(func() {
		var wait sync.WaitGroup
		for _, one := range s.all {
			wait.Go(func() { _ = one.Close(ended()) })
		}
		wait.Wait()
	})
	return s
}

func (s *stores) start(i int) {
	s.t.Helper()
	var err error
	if s.all[i], err = cluster.ServeStore(s.t.Context(), s.configs[i]); err != nil {
		s.t.Fatal(err)
	}
}

// leader returns the place of the one that leads.
func (s *stores) leader() int {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for i, one := range s.all {
			if one.Member().Status().Leading {
				return i
			}
		}
	}
	s.t.Fatal("no member leads")
	return 0
}

func (s *stores) client(i int) *tcpstore.Client {
	s.t.Helper()
	<-s.all[i].Ready()
	c, err := tcpstore.Dial(s.t.Context(), s.configs[i].Addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestStore: what a client of the leader has stored is there after the leader is gone, followers refuse, and a member that was away long
// takes over a snapshot and can lead.
func TestStore(t *testing.T) {
	t.Parallel()
	s := newStores(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	first := s.leader()
	c := s.client(first)
	if err := c.Set(ctx, "epoch", []byte("3")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Add(ctx, "count", 2); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	away := (first + 1) % 3
	if err := s.client(away).Set(ctx, "x", nil); !errors.Is(err, cohort.Unavailable) {
		t.Errorf("a follower answers a set with %v", err)
	}
	if err := s.all[away].Close(ctx); err != nil {
		t.Error(err)
	}
	for i := range 1500 { // several snapshots
		if err := c.Set(ctx, fmt.Sprint("key", i), make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	s.start(away)
	for s.all[away].Member().Status().Applied < s.all[first].Member().Status().Applied {
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.all[first].Close(ctx); err != nil {
		t.Error(err)
	}
	s.start(first)
	if err := cluster.Transfer(ctx, s.members(), nil, s.configs[away].Name); err != nil {
		t.Fatal(err)
	}
	c = s.client(away)
	for key, want := range map[string]string{"epoch": "3", "count": "2", "key1499": string(make([]byte, 100))} {
		if got, err := c.Get(ctx, key); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", key, got, err, want)
		}
	}
	if n, err := c.Add(ctx, "count", 1); err != nil || n != 3 {
		t.Error(n, err)
	}
}

func (s *stores) members() (addrs []string) {
	for _, p := range s.configs[0].Members {
		addrs = append(addrs, p.Addr)
	}
	return addrs
}

// TestListenTwice: a store whose address is taken does not start, and leaves nothing behind.
func TestListenTwice(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = cluster.ServeStore(t.Context(), cluster.StoreConfig{
		Config: cluster.Config{
			Dir: t.TempDir(), Name: "a", Members: []cluster.Peer{{Name: "a", Addr: freeAddr(t)}},
		},
		Addr: l.Addr().String(),
	})
	if !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("%v", err)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
