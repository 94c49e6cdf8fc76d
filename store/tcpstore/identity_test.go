// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestClearedStoreIsAnother shows both drivers what Clear does to clients that used the store before.
func TestClearedStoreIsAnother(t *testing.T) {
	eachDriver(t, func(t *testing.T, opts ...ServerOption) {
		t.Helper()
		noLeaks(t)
		ctx := t.Context()
		s := startServer(t, opts...)
		old, operator := dialTest(t, s), dialTest(t, s)
		if err := old.Set(ctx, "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- old.Wait(ctx, "never") }()
		testkit.Until(t, "the wait is open", func() bool { return s.Stats().Waiting == 1 })
		torch := dialV(t, s)
		write(t, torch, wire.AppendAdd(nil, wire.V, "/n", 1))
		read(t, torch, 8)

		id, left, err := operator.Hello(ctx)
		if err != nil || left != 0 || id != s.Identity() {
			t.Fatalf("hello: %v, %d, %v", id, left, err)
		}
		if _, err = operator.Clear(ctx, Identity{1}); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("a clear of another store: %v", err)
		}
		var n int
		n, err = operator.Clear(ctx, id)
		if n != 2 || err != nil {
			t.Errorf("clear: %d, %v", n, err)
		}
		if err = <-waited; !errors.Is(err, cohort.Replaced) {
			t.Errorf("a wait for the old store's key: %v", err)
		}
		if err := old.Set(ctx, "k", nil); !errors.Is(err, cohort.Replaced) {
			t.Errorf("a set of an old client: %v", err)
		}
		expectClosed(t, torch)
		if s.Identity() == id {
			t.Error("a cleared store has its old identity")
		}
		if n, err := operator.NumKeys(ctx); n != 0 || err != nil {
			t.Errorf("%d keys, %v", n, err)
		}
		// Server.Clear reaches those that wait, too, without any event on their sockets.
		if err := operator.Set(ctx, "k", nil); err != nil {
			t.Fatal(err)
		}
		go func() { waited <- operator.Wait(ctx, "never") }()
		testkit.Until(t, "the wait is open", func() bool { return s.Stats().Waiting == 1 })
		if n := s.Clear(); n != 1 {
			t.Errorf("Clear took %d keys", n)
		}
		if err := <-waited; !errors.Is(err, cohort.Replaced) {
			t.Errorf("a wait that Server.Clear ended: %v", err)
		}
		if stats, err := operator.Stats(ctx); err != nil || stats.Keys != 0 || stats.Identity != s.Identity().String() {
			t.Errorf("statistics after Clear: %+v, %v", stats, err)
		}
	})
}

func dialTest(t *testing.T, s *Server, opts ...ClientOption) *Client {
	t.Helper()
	c, err := Dial(t.Context(), s.Addr().String(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRestartedServerIsAnother(t *testing.T) {
	s := startServer(t)
	addr, before := s.Addr().String(), s.Identity()
	if err := s.Close(); err != nil || s.Identity() != before || s.Clear() != 0 {
		t.Errorf("after Close: %v, identity %v", err, s.Identity())
	}
	again, err := Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Identity() == before || again.Identity() == (Identity{}) {
		t.Errorf("identities %v and %v", before, again.Identity())
	}
}

func TestServerTellsOfAnEarlierRun(t *testing.T) {
	ctx := t.Context()
	s := startServer(t)
	first := dialTest(t, s)
	if err := first.Set(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	testkit.Until(t, "the run is over", func() bool { return s.Stats().LeftBehind == 1 })
	if at := s.Stats().LeftAt; at.Before(s.started) {
		t.Errorf("the run ended at %v, before the server started", at)
	}
	if _, left, err := dialTest(t, s).Hello(ctx); left != 1 || err != nil {
		t.Errorf("hello: %d keys left behind, %v", left, err)
	}
	s.Clear()
	if st := s.Stats(); st.LeftBehind != 0 || !st.LeftAt.IsZero() {
		t.Errorf("after Clear: %+v", st)
	}
}

func TestForgettingServer(t *testing.T) {
	ctx := t.Context()
	s := startServer(t, WithForget())
	id := s.Identity()
	c := dialTest(t, s)
	if err := c.Set(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	testkit.Until(t, "the keys are gone", func() bool { return s.Stats().Keys == 0 && s.Identity() != id })
}
