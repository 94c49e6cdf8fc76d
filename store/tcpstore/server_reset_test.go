// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"net"
	"slices"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// requestsOf returns one request of each kind that a dialect has and that changes the store or waits.
func requestsOf(d wire.Dialect) [][]byte {
	all := [][]byte{
		wire.AppendSet(nil, d, "/set", []byte("value")), wire.AppendAdd(nil, d, "/number", 7),
		wire.AppendCompareSet(nil, d, "/compared", nil, []byte("value")), wire.AppendKeys(nil, d, wire.Wait, "/never", "/text"),
		wire.AppendKey(nil, d, wire.DeleteKey, "/text"), wire.AppendKey(nil, d, wire.Get, "/text"),
		wire.AppendKeys(nil, d, wire.Check, "/text"),
	}
	if d == wire.Legacy {
		return append(all, wire.AppendKey(nil, d, wire.WatchKey, "/text"))
	}
	return append(all,
		wire.AppendKeyValue(nil, d, wire.Append, "/text", []byte("more")),
		wire.AppendMultiSet(nil, d, []string{"/a", "/b"}, [][]byte{{1}, {2}}),
		wire.AppendKeys(nil, d, wire.MultiGet, "/text", "/number"), wire.AppendKeyValue(nil, d, wire.QueuePush, "/queue", []byte("item")),
		wire.AppendKey(nil, d, wire.QueueLen, "/queue"), wire.AppendBarrier(nil, d, "/barrier", 2))
}

// TestRequestResetAtEveryByte: a connection is reset within a request, at each of its bytes. Nothing of it is applied, and nothing is kept.
func TestRequestResetAtEveryByte(t *testing.T) {
	noLeaks(t)
	s := startServer(t)
	honest := dialTest(t, s)
	ctx := t.Context()
	if err := honest.Set(ctx, "text", []byte("some text")); err != nil {
		t.Fatal(err)
	}
	before := s.Stats()
	for _, d := range []wire.Dialect{wire.Legacy, wire.V, wire.Native} {
		greeting := wire.AppendValidate(nil)
		switch d {
		case wire.Legacy:
			greeting = nil
		case wire.Native:
			greeting = wire.AppendUpgrade(greeting)
		}
		for _, request := range requestsOf(d) {
			if d == wire.Native {
				request = nativeFrame(1, func(b []byte) []byte { return append(b, request...) })
			}
			for n := range request {
				c, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				write(t, c, slices.Concat(greeting, request[:n]))
				_ = c.(*net.TCPConn).SetLinger(0) //nolint:errcheck // it is one
				_ = c.Close()
			}
		}
	}
	testkit.Until(t, "all connections end", func() bool { return s.Stats().Clients() == before.Clients() })
	after := s.Stats()
	if after.Keys != before.Keys || after.Queues != 0 || after.Bytes != before.Bytes || after.Memory != before.Memory ||
		after.Waiting != 0 {
		t.Errorf("before %+v, afterwards %+v", before, after)
	}
	if v, err := honest.Get(ctx, "text"); string(v) != "some text" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}
