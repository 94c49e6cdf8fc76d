// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/schema"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/testing/schematest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClientName(t *testing.T) {
	for claim, want := range map[string]string{
		"": "", "free text": "free text", "rank/2: nodea pid 7": "rank 2, nodea pid 7",
		"attempt/1/rank/12: nodea pid 7 #4026531836.99, joined": "rank 12, nodea pid 7",
	} {
		if got := clientName(claim); got != want {
			t.Errorf("%q: %q, want %q", claim, got, want)
		}
	}
}

func TestTopOf(t *testing.T) {
	start := time.Unix(1000, 0)
	before := tcpstore.Stats{Time: start.Add(time.Second), Started: start, Ops: map[string]uint64{"set": 10, "get": 5}}
	now := tcpstore.Stats{
		Addr: "a:1", Started: start, Time: start.Add(3 * time.Second), Connections: map[string]int{"v": 2}, Keys: 3, Bytes: 9, Queues: 1,
		Ops: map[string]uint64{"set": 30, "get": 5, "wait": 2}, Waiting: 2,
		Claims: map[string]tcpstore.Claim{
			"attempt/1/rank/3": {Held: true}, "attempt/1/rank/0": {Held: true}, "attempt/1/rank/2": {}, "attempt/0/rank/7": {Held: true},
			"rank/9": {Held: true}, "rank/x": {Held: true}, "attempt/x/rank/1": {Held: true}, "other": {Held: true},
		},
		Waits: []tcpstore.Wait{
			{Key: "/a", Waiter: "x:1", Since: start},
			{Key: "/b", Waiter: "x:1", Since: start},
			{Key: "/a", Waiter: "x:2", Since: start.Add(time.Second), Name: "rank/1: h pid 2"},
			{Key: "bar", Waiter: "x:3", Since: start, Barrier: true},
		},
	}
	want := tui.Top{
		Addr: "a:1", Uptime: 3 * time.Second, Conns: map[string]int{"v": 2}, Keys: 3, Bytes: 9, Queues: 1, Ops: 37, Rate: 11,
		Here: []int{0, 3}, Gone: []int{2},
		ByOp: map[string]int64{"set": 30, "get": 5, "wait": 2}, ByOpRate: map[string]float64{"set": 10, "get": 0, "wait": 1}, Waiting: 2,
		Waits: []tui.Wait{
			{Client: "x:1", Keys: []string{"a", "b"}, Since: 3 * time.Second},
			{Client: "x:2", Name: "rank 1, h pid 2", Keys: []string{"a"}, Since: 2 * time.Second},
			{Client: "x:3", Keys: []string{"bar (barrier)"}, Since: 3 * time.Second},
		},
	}
	if diff := cmp.Diff(want, topOf(before, now, false)); diff != "" {
		t.Error(diff)
	}
	if got := topOf(now, before, true); got.Rate != 0 || got.ByOpRate["set"] != 0 {
		t.Errorf("time ran backwards, or the server started anew: %+v", got)
	}
}

func TestMetrics(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	registry := prometheus.NewPedanticRegistry() // checks that what is collected was described
	if err = registry.Register(newStoreCollector(server.Stats)); err != nil {
		t.Fatal(err)
	}
	c, err := tcpstore.Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
	handler := httpHandler(server.Stats)
	for path, words := range map[string]string{
		"/metrics": "cohort_store_keys 1\n", "/healthz": "ok\n", "/stats": `"keys":1`, "/": "/metrics",
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), words) {
			t.Errorf("%s: %d\n%s", path, w.Code, w.Body)
		}
		if path == "/stats" {
			checkStats(t, w.Body.Bytes())
		}
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	if w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

// checkStats checks the answer of /stats, and one with all that a store can tell, by their schema.
func checkStats(t *testing.T, answer []byte) {
	t.Helper()
	text, err := schema.Text("store.stats")
	if err != nil {
		t.Fatal(err)
	}
	form, err := schematest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1e9, 0)
	var all bytes.Buffer
	if err := command.WriteJSON(&all, "store.stats", statsOf(tcpstore.Stats{
		Addr: "a", Started: start, Time: start.Add(time.Hour), Connections: map[string]int{"v": 1}, Ops: map[string]uint64{"get": 2},
		Waits: []tcpstore.Wait{{Key: "k", Waiter: "w", Name: "n", Since: start, Barrier: true}},
		Polls: []tcpstore.Wait{{Key: "k", Waiter: "w", Since: start, Asks: 3, Answer: "1"}}, LeftBehind: 1, LeftAt: start,
		Claims: map[string]tcpstore.Claim{"rank/0": {Text: "x", Held: true}},
	})); err != nil {
		t.Fatal(err)
	}
	for _, document := range [][]byte{answer, all.Bytes()} {
		for _, wrong := range form.Check(document) {
			t.Errorf("/stats: %s\n%s", wrong, document)
		}
	}
}

func TestHealthOfAStoreThatHangs(t *testing.T) {
	release := make(chan struct{})
	handler := httpHandler(func() tcpstore.Stats { <-release; return tcpstore.Stats{} })
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	close(release)
	if w.Code != 503 {
		t.Errorf("status %d", w.Code)
	}
}

// A probe comes every few seconds for as long as the store hangs: each must not leave a question of its own behind.
func TestHealthAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		release := make(chan struct{})
		h := &health{ask: func() { asked.Add(1); <-release }, patience: time.Second}
		probe := func() int {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			return w.Code
		}
		for range 5 {
			if code := probe(); code != 503 {
				t.Errorf("status %d", code)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%d questions are open", n)
		}
		close(release)
		synctest.Wait()
		if code := probe(); code != 200 || asked.Load() != 2 {
			t.Errorf("status %d after %d questions", code, asked.Load())
		}
	})
}

func TestValueFromStandardInputIsBounded(t *testing.T) {
	a := &app{&command.App{IO: command.IO{In: bytes.NewReader(make([]byte, maxInput+1))}}}
	if _, err := a.value(t.Context(), "-"); !errors.Is(err, cohort.TooLarge) {
		t.Errorf("got %v", err)
	}
	a.In = bytes.NewReader(make([]byte, maxInput))
	if v, err := a.value(t.Context(), "-"); err != nil || len(v) != maxInput {
		t.Errorf("%d bytes, %v", len(v), err)
	}
	// A signal ends it although no key is pressed.
	silent, end := io.Pipe()
	defer func() { _ = end.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(command.SignalError{Signal: syscall.SIGINT})
	a.In = silent
	if _, err := a.value(ctx, "-"); err == nil || err.Error() != "interrupted by SIGINT" {
		t.Errorf("got %v", err)
	}
	if kv := newKeyValue("k", []byte{0xff}); kv.Value != nil || *kv.Base64 != "/w==" {
		t.Errorf("%+v", kv)
	}
}

// TestOneAtATimeAsks: the store stands still while it is asked for its numbers, so that those who ask over HTTP wait for each other and not
// the store for all of them. A question for its health waits for none of them.
func TestOneAtATimeAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asking, asked, healthy atomic.Int32
		answer := make(chan struct{})
		handler := httpHandler(func() tcpstore.Stats {
			asking.Add(1)
			defer asking.Add(-1)
			asked.Add(1)
			<-answer
			return tcpstore.Stats{}
		})
		ask := func(ctx context.Context, path string) int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody))
			return w.Code
		}
		get := func(path string) int { return ask(t.Context(), path) }
		for i := range 10 {
			go get([]string{"/stats", "/metrics"}[i%2])
		}
		synctest.Wait()
		if n := asking.Load(); n != 1 {
			t.Errorf("%d ask at the same time", n)
		}
		go func() { healthy.Store(int32(get("/healthz"))) }()
		synctest.Wait()
		if n := asking.Load(); n != 2 {
			t.Errorf("%d ask with one for its health", n)
		}
		gone, leave := context.WithCancel(t.Context())
		var left atomic.Int32
		for _, path := range []string{"/stats", "/metrics"} {
			go func() {
				ask(gone, path)
				left.Add(1)
			}()
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		if n := left.Load(); n != 2 {
			t.Errorf("%d of 2 who are gone do not wait any more", n)
		}
		close(answer)
		synctest.Wait()
		if asked.Load() != 11 || asking.Load() != 0 || healthy.Load() != http.StatusOK {
			t.Errorf("%d asked, %d still do, health %d", asked.Load(), asking.Load(), healthy.Load())
		}
	})
}

func TestNamerAsksOnceForEachClient(t *testing.T) {
	here := netip.MustParseAddrPort("127.0.0.1:4000")
	var asked [][]netip.AddrPort
	n := namer{find: func(addrs []netip.AddrPort) map[netip.AddrPort]portowner.Owner {
		asked = append(asked, addrs)
		return map[netip.AddrPort]portowner.Owner{here: {PID: 8, Command: "/usr/bin/python3 train.py", Rank: "2"}}
	}}
	for range 3 {
		waits := []tui.Wait{
			{Client: "127.0.0.1:4000"},
			{Client: "10.0.0.9:5000"},
			{Client: "127.0.0.1:6000", Name: "rank 1, nodea pid 7"},
			{Client: "in memory"},
			{Client: "127.0.0.1:4000"},
		}
		n.name(waits)
		var names []string
		for _, w := range waits {
			names = append(names, w.Name)
		}
		const process = "rank 2, pid 8 python3 train.py"
		if diff := cmp.Diff([]string{process, "", "rank 1, nodea pid 7", "", process}, names); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if len(asked) != 1 {
		t.Errorf("looked %d times: %v", len(asked), asked)
	}
	n.name(nil)
	if len(n.known) != 0 {
		t.Errorf("%v are kept although there are no waiters", n.known)
	}
}
