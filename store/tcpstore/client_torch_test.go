// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/store/storewire/storecapture"
	"github.com/cohort-dist/cohort/store"
)

// onFake runs test in virtual time with a client on a fake server.
func onFake(t *testing.T, kind fakeKind, on func(n int, conn net.Conn, r *wire.Request) bool,
	test func(t *testing.T, c *Client, f *fakeStore), opts ...ClientOption,
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFake(t, kind, func(n int, conn net.Conn, r *wire.Request) bool {
			if kind == fakeLegacy && r.Op == wire.NumKeys { // the greeting
				_, _ = conn.Write(intReply(0))
				return true
			}
			return on(n, conn, r)
		})
		defer stop()
		c, err := Dial(t.Context(), "fake:1", append([]ClientOption{WithDialer(f.network.Dial)}, opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		test(t, c, f)
	})
}

// TestClientSendsWhatPyTorchSends compares requests with those that were recorded from real PyTorch clients.
func TestClientSendsWhatPyTorchSends(t *testing.T) {
	value300 := []byte(strings.Repeat("x", 300))
	requests := []request{
		{op: wire.Set, key: "k1", value: []byte("v1")},
		{op: wire.Set, key: "empty"},
		{op: wire.Set, key: "", value: []byte("x")},
		{op: wire.Set, key: "p/k", value: []byte("v")},
		{op: wire.Set, key: "big", value: value300},
		{op: wire.Wait, keys: []string{"k1"}},
		{op: wire.Wait, keys: []string{"k1", "k2"}},
		{op: wire.Get, key: "k1"},
		{op: wire.Get, key: "empty"},
		{op: wire.Get, key: "n"},
		{op: wire.Add, key: "n", num: 5},
		{op: wire.Add, key: "n", num: -2},
		{op: wire.Add, key: "n", num: 0},
		{op: wire.Add, key: wire.WorkerCountKey, raw: true, num: 1},
		{op: wire.CompareSet, key: "cs", value: []byte("first")},
		{op: wire.CompareSet, key: "cs_missing", expected: []byte("want"), value: []byte("new")},
		{op: wire.CompareSet, key: "cs", expected: []byte("first"), value: []byte("second")},
		{op: wire.CompareSet, key: "cs", expected: []byte("wrong"), value: []byte("third")},
		{op: wire.CompareSet, key: "empty", value: []byte("filled")},
		{op: wire.NumKeys},
		{op: wire.DeleteKey, key: "k1"},
		{op: wire.Check, keys: []string{"k1"}},
		{op: wire.Check, keys: []string{"k1", "nokey"}},
		{op: wire.Append, key: "app", value: []byte("ab")},
	}
	for version, dialect := range map[string]wire.Dialect{"1.13": wire.Legacy, "2.6": wire.V} {
		blocks, err := storecapture.Load(version)
		if err != nil {
			t.Fatal(err)
		}
		recorded := map[string]bool{}
		for _, b := range blocks {
			for _, item := range b.Items {
				if item.Request {
					recorded[hex.EncodeToString(item.Data)] = true
				}
			}
		}
		matched := 0
		for _, q := range requests {
			if recorded[hex.EncodeToString(q.append(nil, dialect))] {
				matched++
			} else if known := dialect != wire.Legacy || (q.op != wire.Check && q.op != wire.Append); known && q.key != "p/k" &&
				q.key != "big" {
				t.Errorf("PyTorch %s never sent %s %q as %x", version, q.name(), q.subject(), q.append(nil, dialect))
			}
		}
		if matched < 18 {
			t.Errorf("PyTorch %s: only %d requests were recorded", version, matched)
		}
	}
}

// TestWaitTimeoutKeepsTheConnectionInV: the cancel exchange, with and without the key arriving in between.
func TestWaitTimeoutKeepsTheConnectionInV(t *testing.T) {
	for _, late := range []bool{false, true} {
		on := func(_ int, conn net.Conn, r *wire.Request) bool {
			switch r.Op {
			case wire.Wait:
				if key := string(r.List.Next()); key == "/there" {
					_, _ = conn.Write([]byte{wire.StopWaiting})
				}
			case wire.CancelWait:
				if late {
					_, _ = conn.Write([]byte{wire.StopWaiting})
				}
				_, _ = conn.Write([]byte{wire.WaitCanceled})
			case wire.Get:
				_, _ = conn.Write(bytesReply("v"))
			case wire.Check:
				_, _ = conn.Write([]byte{map[bool]byte{true: wire.Ready, false: wire.NotReady}[string(r.List.Next()) == "/there"]})
			default:
			}
			return true
		}
		onFake(t, fakeV1, on, func(t *testing.T, c *Client, f *fakeStore) {
			t.Helper()
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				start := time.Now()
				err := c.Wait(ctx, "missing")
				cancel()
				if !errors.Is(err, store.ErrTimeout) || time.Since(start) != time.Minute || !strings.Contains(err.Error(), `"missing"`) {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				if got, err := c.Get(t.Context(), "there"); string(got) != "v" || err != nil {
					t.Fatalf("get on the same connection: %q, %v", got, err)
				}
			}
			if conns, open := f.counts(); conns != 2 || open != 2 {
				t.Errorf("%d connections, %d open; want one for short operations and one for waits", conns, open)
			}
		})
	}
}

// TestWaitTimeoutReplacesALegacyConnection, because the answer may come later, in the middle of something else.
func TestWaitTimeoutReplacesALegacyConnection(t *testing.T) {
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		switch r.Op {
		case wire.Wait:
			if key := string(r.List.Next()); key == "/there" {
				_, _ = conn.Write([]byte{wire.StopWaiting})
			} else {
				time.AfterFunc(2*time.Second, func() { _, _ = conn.Write([]byte{wire.StopWaiting}) }) // the stray answer
			}
		case wire.Get:
			_, _ = conn.Write(bytesReply("v"))
		case wire.Check:
			_, _ = conn.Write([]byte{map[bool]byte{true: wire.Ready, false: wire.NotReady}[string(r.List.Next()) == "/there"]})
		default:
		}
		return true
	}
	onFake(t, fakeLegacy, on, func(t *testing.T, c *Client, f *fakeStore) {
		t.Helper()
		before, _ := f.counts()
		c.SetTimeout(time.Second)
		if err := c.Wait(t.Context(), "missing"); !errors.Is(err, store.ErrTimeout) ||
			!strings.Contains(err.Error(), "wait timeout after 1000ms, keys: /missing") {
			t.Fatalf("wait: %v", err)
		}
		time.Sleep(5 * time.Second)
		if got, err := c.Get(t.Context(), "there"); string(got) != "v" || err != nil {
			t.Fatalf("get: %q, %v", got, err)
		}
		if conns, open := f.counts(); conns != before+2 || open != 2 {
			t.Errorf("%d connections, %d open", conns-before, open)
		}
	})
}

// TestGetSurvivesADelete between its WAIT and its GET: one server closes the connection, the other answers nothing.
func TestGetSurvivesADelete(t *testing.T) {
	for _, closes := range []bool{true, false} {
		gets, waits := 0, 0
		on := func(_ int, conn net.Conn, r *wire.Request) bool {
			switch r.Op {
			case wire.Wait:
				waits++
				_, _ = conn.Write([]byte{wire.StopWaiting})
			case wire.Get:
				if gets++; gets == 1 {
					if closes {
						return false
					}
					_, _ = conn.Write(bytesReply(""))
					return true
				}
				_, _ = conn.Write(bytesReply("new"))
			case wire.Check:
				_, _ = conn.Write([]byte{map[bool]byte{true: wire.NotReady, false: wire.Ready}[gets == 1]})
			default:
			}
			return true
		}
		onFake(t, fakeV1, on, func(t *testing.T, c *Client, _ *fakeStore) {
			t.Helper()
			if got, err := c.Get(t.Context(), "k"); string(got) != "new" || err != nil || waits != 2 {
				t.Errorf("closes %v: %q, %v after %d waits", closes, got, err, waits)
			}
		})
	}
}

// TestWaitFindsAKeyThatCompareSetCreated on a server that forgets to wake the waiters.
func TestWaitFindsAKeyThatCompareSetCreated(t *testing.T) {
	for _, kind := range []fakeKind{fakeV1, fakeLegacy} {
		var mu sync.Mutex
		created := false
		on := func(_ int, conn net.Conn, r *wire.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			switch r.Op {
			case wire.CancelWait:
				_, _ = conn.Write([]byte{wire.WaitCanceled})
			case wire.Check:
				_, _ = conn.Write([]byte{map[bool]byte{true: wire.Ready, false: wire.NotReady}[created]})
			case wire.Get:
				_, _ = conn.Write(bytesReply("v"))
			default:
			}
			return true
		}
		onFake(t, kind, on, func(t *testing.T, c *Client, _ *fakeStore) {
			t.Helper()
			time.AfterFunc(10*time.Second, func() {
				mu.Lock()
				created = true
				mu.Unlock()
			})
			start := time.Now()
			got, err := c.Get(t.Context(), "k")
			if took := time.Since(start); string(got) != "v" || err != nil || took < 10*time.Second || took > 13*time.Second {
				t.Errorf("%q, %v after %v", got, err, took)
			}
		})
	}
}

// TestWaitsBeyondThePoolPoll: more waits than connections, and none starves.
func TestWaitsBeyondThePoolPoll(t *testing.T) {
	var mu sync.Mutex
	there := map[string]bool{}
	waiting := map[string][]net.Conn{}
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		switch r.Op {
		case wire.Wait:
			key := string(r.List.Next())
			if there[key] {
				_, _ = conn.Write([]byte{wire.StopWaiting})
			} else {
				waiting[key] = append(waiting[key], conn)
			}
		case wire.Check:
			_, _ = conn.Write([]byte{map[bool]byte{true: wire.Ready, false: wire.NotReady}[there[string(r.List.Next())]]})
		case wire.CancelWait: // a look has found the key before the answer to the wait was read
			_, _ = conn.Write([]byte{wire.WaitCanceled})
		case wire.Get:
			_, _ = conn.Write(bytesReply(string(r.Key)))
		case wire.Set:
			there[string(r.Key)] = true
			for _, w := range waiting[string(r.Key)] {
				_, _ = w.Write([]byte{wire.StopWaiting})
			}
		case wire.NumKeys:
			_, _ = conn.Write(intReply(int64(len(there))))
		default:
		}
		return true
	}
	onFake(t, fakeV1, on, func(t *testing.T, c *Client, f *fakeStore) {
		t.Helper()
		const waits = 30
		done := make(chan error, waits)
		for i := range waits {
			go func() {
				got, err := c.Get(t.Context(), strconv.Itoa(i))
				if err == nil && string(got) != "/"+strconv.Itoa(i) {
					err = errors.New("wrong value " + string(got))
				}
				done <- err
			}()
		}
		synctest.Wait()
		for i := range waits { // in the order that is worst for those that wait on connections
			start := time.Now()
			if err := c.Set(t.Context(), strconv.Itoa(waits-1-i), nil); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Fatalf("wait %d ended %v after its key came", waits-1-i, took)
			}
		}
		if conns, _ := f.counts(); conns > shortConns+3 {
			t.Errorf("%d connections", conns)
		}
	}, WithWaitConns(3))
}

// TestSetIsConfirmed: a set that the server cuts is an error, and one that returns has been read.
func TestSetIsConfirmed(t *testing.T) {
	seen := 0
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		switch r.Op {
		case wire.Set:
			seen++
			return string(r.Key) != "/bad"
		case wire.NumKeys:
			_, _ = conn.Write(intReply(int64(seen)))
		default:
		}
		return true
	}
	onFake(t, fakeV1, on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		if err := c.Set(t.Context(), "good", []byte("x")); err != nil || seen != 1 {
			t.Fatalf("set: %v, %d seen", err, seen)
		}
		err := c.Set(t.Context(), "bad", []byte("x"))
		if !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "fake:1") ||
			!strings.Contains(err.Error(), `tcpstore: set "bad"`) {
			t.Fatalf("set: %v", err)
		}
		if err := c.Set(t.Context(), "good", nil); err != nil { // on a new connection
			t.Fatalf("set after it: %v", err)
		}
	})
}

// TestNothingUnknownIsSentToOldServers: on 1.13 only its nine operations, on 2.6 the question for queues goes to a
// connection of its own.
func TestNothingUnknownIsSentToOldServers(t *testing.T) {
	values := map[string]string{}
	var mu sync.Mutex
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		switch r.Op {
		case wire.CompareSet:
			old, found := values[string(r.Key)]
			if found && old == string(r.Expected) || !found && len(r.Expected) == 0 {
				values[string(r.Key)] = string(r.Value)
				old = string(r.Value)
			} else if !found {
				old = string(r.Expected)
			}
			_, _ = conn.Write(bytesReply(old))
		case wire.Set:
			values[string(r.Key)] = string(r.Value)
		case wire.Wait, wire.Check:
			_, _ = conn.Write([]byte{0})
		case wire.Get:
			_, _ = conn.Write(bytesReply(values[string(r.Key)]))
		case wire.NumKeys:
			_, _ = conn.Write(intReply(0))
		default:
			if r.Op != wire.QueueLen && r.Op != wire.ListKeys {
				t.Errorf("the server got %v", r.Op)
			}
			return false
		}
		return true
	}
	for _, kind := range []fakeKind{fakeLegacy, fakeV1} {
		onFake(t, kind, on, func(t *testing.T, c *Client, _ *fakeStore) {
			t.Helper()
			ctx := t.Context()
			if kind == fakeLegacy {
				if err := c.Append(ctx, "a", []byte("x")); err != nil {
					t.Error(err)
				}
				if err := c.MultiSet(ctx, []string{"m", "n"}, [][]byte{[]byte("1"), []byte("2")}); err != nil {
					t.Error(err)
				}
				if got, err := c.MultiGet(ctx, "m", "n"); err != nil || string(got[1]) != "2" {
					t.Errorf("%q, %v", got, err)
				}
			}
			if err := c.QueuePush(ctx, "q", []byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := c.ListKeys(ctx); !errors.Is(err, store.ErrNotSupported) {
				t.Errorf("list keys: %v", err)
			}
			if _, err := c.Stats(ctx); !errors.Is(err, store.ErrNotSupported) {
				t.Errorf("stats: %v", err)
			}
			if store.Supports(c, store.FeatureQueue) || store.Supports(c, store.FeatureListKeys) {
				t.Error("queues or the listing of keys are told to be supported")
			}
		})
		clear(values)
	}
}

// TestHungServerEndsCallsByTheirContext, and the connection with the unanswered request is not used again.
func TestHungServerEndsCallsByTheirContext(t *testing.T) {
	for _, kind := range []fakeKind{fakeLegacy, fakeV1} {
		hung := true
		on := func(_ int, conn net.Conn, r *wire.Request) bool {
			if !hung && r.Op == wire.Add {
				_, _ = conn.Write(intReply(r.Num))
			}
			return true
		}
		onFake(t, kind, on, func(t *testing.T, c *Client, _ *fakeStore) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			if _, err := c.Add(ctx, "n", 1); !errors.Is(err, store.ErrTimeout) || time.Since(start) != time.Second {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			start = time.Now() // without a deadline there is still a bound
			if _, err := c.Add(t.Context(), "n", 1); !errors.Is(err, store.ErrTimeout) || time.Since(start) != store.DefaultTimeout {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			hung = false
			if n, err := c.Add(t.Context(), "n", 5); n != 5 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		})
	}
}

// TestSlowListing: a server that takes long for a listing has the store's timeout for it, also when it is first asked whether
// it can list at all. One that never answers has no more than that.
func TestSlowListing(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Second, time.Hour} {
		on := func(_ int, conn net.Conn, r *wire.Request) bool {
			switch r.Op {
			case wire.NumKeys:
				_, _ = conn.Write(intReply(1))
			case wire.ListKeys:
				time.Sleep(takes)
				_, _ = conn.Write(append(intReply(1), bytesReply("/k")...))
			default:
			}
			return true
		}
		onFake(t, fakeV1, on, func(t *testing.T, c *Client, _ *fakeStore) {
			t.Helper()
			start := time.Now()
			keys, err := c.ListKeys(t.Context())
			switch took := time.Since(start); {
			case takes < store.DefaultTimeout && (err != nil || len(keys) != 1):
				t.Errorf("%q, %v", keys, err)
			case takes > store.DefaultTimeout && (!errors.Is(err, store.ErrTimeout) || took != store.DefaultTimeout):
				t.Errorf("after %v: %v", took, err)
			}
		})
	}
}
