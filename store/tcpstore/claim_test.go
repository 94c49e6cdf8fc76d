// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func TestClaimNeedsCohortsServer(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for _, dialect := range []tcpstore.Dialect{tcpstore.DialectV, tcpstore.DialectLegacy} {
		c, err := tcpstore.Dial(t.Context(), server.Addr().String(), tcpstore.WithDialect(dialect))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Claim(t.Context(), "n", "", "me"); !errors.Is(err, cohort.NotSupported) {
			t.Errorf("%v: %v", dialect, err)
		}
		_ = c.Close()
	}
}

func TestStatsNameAWaiterByItsClaim(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	c, err := tcpstore.Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got, err := c.Claim(t.Context(), "rank/1", "", "nodea pid 7"); got != "nodea pid 7" || err != nil {
		t.Fatalf("claim: %q, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait(ctx, "never") }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		waits := server.Stats().Waits
		if len(waits) == 1 {
			if waits[0].Name != "rank/1: nodea pid 7" || waits[0].Key != "/never" {
				t.Errorf("wait %+v", waits[0])
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the wait does not show")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRawKeys(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for _, dialect := range []tcpstore.Dialect{tcpstore.DialectNative, tcpstore.DialectV, tcpstore.DialectLegacy} {
		user, err := tcpstore.Dial(t.Context(), server.Addr().String(), tcpstore.WithDialect(dialect))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := tcpstore.Dial(t.Context(), server.Addr().String(), tcpstore.WithDialect(dialect), tcpstore.WithRawKeys())
		if err != nil {
			t.Fatal(err)
		}
		name := dialect.String()
		if err := user.Set(t.Context(), name, []byte("v")); err != nil {
			t.Fatal(err)
		}
		if value, err := raw.Get(t.Context(), "/"+name); string(value) != "v" || err != nil {
			t.Errorf("%v: raw get: %q, %v", dialect, value, err)
		}
		if there, err := raw.Check(t.Context(), name); there || err != nil {
			t.Errorf("%v: raw check: %v, %v", dialect, there, err)
		}
		if _, err := user.JoinWorker(t.Context()); err != nil {
			t.Fatal(err)
		}
		if dialect != tcpstore.DialectLegacy {
			keys, err := raw.ListKeys(t.Context())
			if err != nil || !slices.Contains(keys, "init/") || !slices.Contains(keys, "/"+name) {
				t.Errorf("%v: raw keys %q, %v", dialect, keys, err)
			}
		}
		_ = user.Close()
		_ = raw.Close()
	}
}
