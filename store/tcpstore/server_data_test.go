// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storejournal"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/storetest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// listenIn starts a server with a folder, which the test ends.
func listenIn(t *testing.T, dir, addr string, opts ...tcpstore.ServerOption) *tcpstore.Server {
	t.Helper()
	s, err := tcpstore.Listen(addr, append(opts, tcpstore.WithDataDir(dir), tcpstore.WithSmallLog(64<<10, 256<<10))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A store with a folder is a store like any other, for clients of all dialects.
func TestDataSuite(t *testing.T) {
	t.Parallel()
	for _, dialect := range dialects {
		t.Run(dialect.String(), func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) store.Store {
				t.Helper()
				return connect(t, listenIn(t, t.TempDir(), "127.0.0.1:0").Addr().String(), tcpstore.WithDialect(dialect))
			}, storetest.WithEmptyNotANumber())
		})
	}
}

// What was stored is there when the server is started again, and its clients go on.
func TestDataRestart(t *testing.T) {
	t.Parallel()
	dir, ctx := t.TempDir(), t.Context()
	s := listenIn(t, dir, "127.0.0.1:0")
	addr, id := s.Addr().String(), s.Identity()
	c := connect(t, addr)
	for i := range 3 {
		if n, err := c.Add(ctx, "n", 2); err != nil || n != int64(2*i+2) {
			t.Fatal(n, err)
		}
	}
	if err := c.Set(ctx, "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if err := c.QueuePush(ctx, "q", []byte("item")); err != nil {
		t.Fatal(err)
	}
	if _, err := tcpstore.Listen("127.0.0.1:0", tcpstore.WithDataDir(dir)); !errors.Is(err, cohort.AlreadyExists) {
		t.Errorf("two servers with one folder: %v", err)
	}
	_ = s.Close()
	s = listenIn(t, dir, addr)
	if s.Identity() != id {
		t.Errorf("the identity was %v, is %v", id, s.Identity())
	}
	v, err := c.Get(ctx, "key")
	if errors.Is(err, cohort.PeerLost) { // this is how the client learns that its connection has ended
		v, err = c.Get(ctx, "key")
	}
	if err != nil || string(v) != "value" {
		t.Errorf("%q, %v", v, err)
	}
	if n, err := c.Add(ctx, "n", 1); err != nil || n != 7 {
		t.Error(n, err)
	}
	if v, err := c.QueuePop(ctx, "q", false); err != nil || string(v) != "item" {
		t.Errorf("%q, %v", v, err)
	}
	st := s.Stats()
	if st.Data == nil || st.Data.RecoveredChanges != 8 || st.Data.Changes == 0 || st.Data.RecoveredKeys != 3 {
		t.Errorf("%+v", st.Data)
	}
	if n := s.Clear(); n == 0 || s.Identity() == id {
		t.Errorf("cleared %d, the identity is %v, was %v", n, s.Identity(), id)
	}
	id = s.Identity()
	_ = s.Close()
	if s = listenIn(t, dir, addr); s.Identity() != id || s.Stats().Keys != 0 {
		t.Errorf("after clear: identity %v, want %v; %d keys", s.Identity(), id, s.Stats().Keys)
	}
}

// Snapshots are made while clients change the store, they bound the log, and with what follows they hold everything.
func TestDataSnapshots(t *testing.T) {
	t.Parallel()
	dir, ctx := t.TempDir(), t.Context()
	s := listenIn(t, dir, "127.0.0.1:0")
	const clients, keys, rounds = 4, 50, 40
	var workers sync.WaitGroup
	for i := range clients {
		c := connect(t, s.Addr().String())
		workers.Go(func() {
			for round := range rounds {
				for k := range keys {
					value := fmt.Appendf(nil, "%0150d", round)
					if err := c.Set(ctx, fmt.Sprint(i, "/", k), value); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	workers.Wait()
	testkit.Until(t, "there is a snapshot", func() bool { return s.Stats().Data.SnapshotBytes > 0 })
	testkit.Until(t, "the log is short", func() bool { return s.Stats().Data.LogBytes < 1<<20 })
	if d := s.Stats().Data; d.SnapshotError != "" {
		t.Errorf("%+v", d)
	}
	_ = s.Close()
	s = listenIn(t, dir, "127.0.0.1:0")
	if st := s.Stats(); st.Keys != clients*keys || st.Data.RecoveredChanges >= clients*keys*rounds {
		t.Errorf("%d keys, %+v", st.Keys, st.Data)
	}
	c := connect(t, s.Addr().String())
	for i := range clients {
		for k := range keys {
			if v, err := c.Get(ctx, fmt.Sprint(i, "/", k)); err != nil || string(v) != fmt.Sprintf("%0150d", rounds-1) {
				t.Fatalf("%q, %v", v, err)
			}
		}
	}
}

// A backup holds what the store held when it was begun.
func TestBackup(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"memory", "folder"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opts []tcpstore.ServerOption
			if name == "folder" {
				opts = append(opts, tcpstore.WithDataDir(t.TempDir()), tcpstore.WithSmallLog(64<<10, 1<<20))
			}
			s := serve(t, opts...)
			c, ctx := connect(t, s.Addr().String()), t.Context()
			for i := range 100 {
				if err := c.Set(ctx, fmt.Sprint("k", i), bytes.Repeat([]byte{byte(i)}, 10_000)); err != nil {
					t.Fatal(err)
				}
			}
			var backup bytes.Buffer
			changing := &changer{t: t, c: c, to: &backup}
			if n, err := c.Backup(ctx, changing); err != nil || n != int64(backup.Len()) {
				t.Fatal(n, err)
			}
			if changing.changes < 3 {
				t.Errorf("%d changes meanwhile", changing.changes)
			}
			dir := filepath.Join(t.TempDir(), "restored")
			got, err := storejournal.Restore(dir, &backup, true)
			if err != nil || got.Keys != 100 || tcpstore.Identity(got.Identity) != s.Identity() {
				t.Fatal(got, err)
			}
			r := connect(t, listenIn(t, dir, "127.0.0.1:0").Addr().String())
			for i := range 100 {
				if v, err := r.Get(ctx, fmt.Sprint("k", i)); err != nil || !bytes.Equal(v, bytes.Repeat([]byte{byte(i)}, 10_000)) {
					t.Fatalf("key %d: %.9q, %v", i, v, err)
				}
			}
		})
	}
	if _, err := connect(t, serve(t).Addr().String(), tcpstore.WithDialect(tcpstore.DialectV)).Backup(t.Context(), io.Discard); err == nil {
		t.Error("a client of PyTorch's wire backs a store up")
	}
}

// changer changes all keys whenever a part of a backup is written.
type changer struct {
	t       *testing.T
	c       *tcpstore.Client
	to      io.Writer
	changes int
}

func (w *changer) Write(p []byte) (int, error) {
	for i := range 100 {
		if err := w.c.Set(w.t.Context(), fmt.Sprint("k", i), []byte("changed")); err != nil {
			w.t.Error(err)
		}
	}
	w.changes++
	return w.to.Write(p)
}
