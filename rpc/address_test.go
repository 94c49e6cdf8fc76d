// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// TestAddresses publishes what others can dial, and an address rather than a name.
func TestAddresses(t *testing.T) {
	for _, listen := range []string{":0", "0.0.0.0:0", "127.0.0.1:0", "localhost:0"} {
		st := store.NewMemory()
		a, err := Join(testContext(t), st, "x", WithAddr(listen))
		if err != nil {
			t.Fatalf("%s: %v", listen, err)
		}
		at, err := netip.ParseAddrPort(a.Addr())
		if err != nil || at.Addr().IsUnspecified() || at.Port() == 0 {
			t.Errorf("%s is published as %s", listen, a.Addr())
		}
		c, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Errorf("%s is published as %s: %v", listen, a.Addr(), err)
		} else {
			_ = c.Close()
		}
		_ = a.Close()
		_ = st.Close()
	}
	for advertise, ok := range map[string]bool{
		"localhost:99": true, "10.1.2.3:99": true, "[fe80::1]:99": true,
		"localhost": false, "localhost:0": false, "0.0.0.0:99": false, "[::]:99": false, "": true,
	} {
		st := store.NewMemory()
		a, err := Join(testContext(t), st, "x", WithAddr("127.0.0.1:0"), WithAdvertise(advertise))
		if (err == nil) != ok || err != nil && cohort.CodeOf(err) != cohort.InvalidArgument {
			t.Errorf("advertise %q: %v", advertise, err)
		}
		if err == nil {
			if _, err := netip.ParseAddrPort(a.Addr()); err != nil {
				t.Errorf("%q is published as %q", advertise, a.Addr())
			}
			_ = a.Close()
		}
		_ = st.Close()
	}
}

// TestLookupEnds: the lookup of the name to publish ends with the context of Join, and says so.
func TestLookupEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Join(ctx, store.NewMemory(), "x", WithRank(0), WithWorldSize(2), WithAddr("127.0.0.1:0"), WithAdvertise("worker.invalid:99"))
	if cohort.CodeOf(err) != cohort.Canceled {
		t.Errorf("a name that is looked up in vain: %v", err)
	}
}
