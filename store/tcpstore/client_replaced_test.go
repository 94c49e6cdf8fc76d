// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/faultnet"
)

// TestRestartedServerIsAnotherStore: a client does not go on counting in an empty store as if it were its own.
func TestRestartedServerIsAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, ctx := &faultnet.Network{}, t.Context()
		start := func() *Server {
			l, err := network.Listen("store:1")
			if err != nil {
				t.Fatal(err)
			}
			s, err := Serve(l)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := start()
		c, err := Dial(ctx, "store:1", WithDialer(network.Dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 5 {
			if _, err = c.Add(ctx, "n", 1); err != nil {
				t.Fatal(err)
			}
		}
		network.CutAll() // the same store is still there
		_, _ = c.Add(ctx, "n", 0)
		var n int64
		if n, err = c.Add(ctx, "n", 0); n != 5 || err != nil {
			t.Errorf("after a cut: %d, %v", n, err)
		}
		_ = s.Close()
		s = start()
		defer func() { _ = s.Close() }()
		_, _ = c.Add(ctx, "n", 1) // may find the old connection lost
		for range 3 {
			if n, err = c.Add(ctx, "n", 1); !errors.Is(err, dist.Replaced) || !strings.Contains(err.Error(), "another store") {
				t.Errorf("another store counts %d, %v", n, err)
			}
		}
		if _, err = c.Get(ctx, "n"); !errors.Is(err, dist.Replaced) {
			t.Errorf("get of a key that is gone: %v", err)
		}
		network.CutAll()
		_, _ = c.Check(ctx)
		if err = c.Set(ctx, "k", nil); !errors.Is(err, dist.Replaced) {
			t.Errorf("over a further connection: %v", err)
		}
		id, _, err := c.Hello(ctx)
		if err != nil || id != s.Identity() {
			t.Fatalf("hello: %v, %v", id, err)
		}
		if n, err := c.Add(ctx, "n", 1); n != 1 || err != nil {
			t.Errorf("in the accepted store: %d, %v", n, err)
		}
		network.CutAll()
		_, _ = c.Check(ctx)
		if n, err := c.Add(ctx, "n", 1); n != 2 || err != nil {
			t.Errorf("in the accepted store over a further connection: %d, %v", n, err)
		}
	})
}
