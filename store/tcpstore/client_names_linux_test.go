// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestNameOfTwoServers: the name of a store has two addresses. The first has no listener when the client connects; later another store
// does. All connections of the client go to the store that it has reached, also in the dialects in which stores have no identity.
func TestNameOfTwoServers(t *testing.T) { // not parallel: it changes how names are looked up
	for _, dialect := range []Dialect{DialectLegacy, DialectV, DialectNative} {
		t.Run(dialect.String(), func(t *testing.T) {
			ctx := t.Context()
			s, err := Listen("127.0.0.3:0")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			port := strconv.Itoa(s.Port())
			testkit.ResolveTo(t, net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 0, 3))
			c, err := Dial(ctx, net.JoinHostPort("store.test", port), WithDialect(dialect), WithTimeout(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err = c.Set(ctx, "k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			other, err := Listen(net.JoinHostPort("127.0.0.2", port))
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if v, failed := c.Get(ctx, "k"); string(v) != "v" || failed != nil {
				t.Errorf("get: %q, %v", v, failed)
			}
			clone, err := c.Clone(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer clone.Close()
			if there, failed := clone.Check(ctx, "k"); !there || failed != nil {
				t.Errorf("check of a clone: %v, %v", there, failed)
			}
			if n := other.Stats().Accepted; n != 0 {
				t.Errorf("the other store has got %d connections", n)
			}
		})
	}
}

// TestStoreBehindSilentAddresses: addresses that swallow what is sent to them delay a client but do not keep it from its store.
func TestStoreBehindSilentAddresses(t *testing.T) { // not parallel: it changes how names are looked up
	s, err := Listen("127.0.0.4:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	testkit.SilentServer(t, net.IPv4(127, 0, 0, 2), s.Port())
	testkit.ResolveTo(t, net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 0, 3), net.IPv4(127, 0, 0, 4)) // the second has no listener
	for _, dialect := range []Dialect{DialectLegacy, DialectV, DialectNative} {
		c, failed := Dial(t.Context(), net.JoinHostPort("store.test", strconv.Itoa(s.Port())), WithDialect(dialect))
		if failed != nil {
			t.Fatal(failed)
		}
		defer c.Close()
		if n, lost := c.Add(t.Context(), "n", 1); lost != nil {
			t.Errorf("%v: %d, %v", dialect, n, lost)
		}
	}
}
