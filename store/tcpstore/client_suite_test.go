// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/storetest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// serve starts a server on loopback.
func serve(tb testing.TB, opts ...tcpstore.ServerOption) *tcpstore.Server {
	tb.Helper()
	s, err := tcpstore.Listen("127.0.0.1:0", opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// connect opens a client on addr.
func connect(tb testing.TB, addr string, opts ...tcpstore.ClientOption) *tcpstore.Client {
	tb.Helper()
	c, err := tcpstore.Dial(tb.Context(), addr, append([]tcpstore.ClientOption{tcpstore.WithTimeout(30 * time.Second)}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

var dialects = []tcpstore.Dialect{tcpstore.DialectNative, tcpstore.DialectV, tcpstore.DialectLegacy}

// TestClientSuite runs the conformance suite over TCP in each dialect, plain and through prefixes.
func TestClientSuite(t *testing.T) {
	t.Parallel()
	for _, dialect := range dialects {
		t.Run(dialect.String(), func(t *testing.T) {
			t.Parallel()
			open := func(t *testing.T) store.Store {
				t.Helper()
				return connect(t, serve(t).Addr().String(), tcpstore.WithDialect(dialect))
			}
			handles := func(t *testing.T, n int) []store.Store {
				t.Helper()
				addr := serve(t).Addr().String()
				all := make([]store.Store, n)
				for i := range all {
					all[i] = connect(t, addr, tcpstore.WithDialect(dialect))
				}
				return all
			}
			t.Run("plain", func(t *testing.T) {
				storetest.Run(t, open, storetest.WithEmptyNotANumber(), storetest.WithHandles(handles))
			})
			t.Run("prefix", func(t *testing.T) {
				storetest.Run(t, func(t *testing.T) store.Store {
					t.Helper()
					return store.Prefix("a", store.Prefix("b", open(t)))
				}, storetest.WithEmptyNotANumber())
			})
		})
	}
}

// TestClientFindsTheDialect: our own server is recognised, and what it can do is told.
func TestClientFindsTheDialect(t *testing.T) {
	addr := serve(t).Addr().String()
	for _, want := range dialects {
		opts := []tcpstore.ClientOption{tcpstore.WithDialect(want)}
		if want == tcpstore.DialectNative {
			opts = nil
		}
		c := connect(t, addr, opts...)
		if c.Dialect() != want {
			t.Errorf("dialect %v, want %v", c.Dialect(), want)
		}
		for _, f := range store.Features() {
			if got, should := store.Supports(c, f), want != tcpstore.DialectLegacy; got != should {
				t.Errorf("%v: supports %v: %v", want, f, got)
			}
		}
		if has, err := c.HasBarrier(t.Context()); has != (want != tcpstore.DialectLegacy) || err != nil {
			t.Errorf("%v: has a barrier: %v, %v", want, has, err)
		}
		if n, err := c.NumKeys(t.Context()); n != 0 || err != nil {
			t.Errorf("%v: %d keys, %v: the greeting left something behind", want, n, err)
		}
	}
}
