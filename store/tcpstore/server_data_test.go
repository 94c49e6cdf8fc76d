// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
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
	if st.Data == nil || st.Data.RecoveredChanges != 6 || st.Data.Changes == 0 || st.Data.RecoveredKeys != 3 {
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
