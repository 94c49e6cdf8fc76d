// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// script is a board on which ranks appear at given times.
type script struct {
	start time.Time
	come  []arrival
	fail  error

	mu    sync.Mutex
	shown []string
}

type arrival struct {
	after time.Duration
	rank  cohort.Rank // NoRank for a PyTorch client
}

func (s *script) Joined(ctx context.Context) (int64, error) {
	if s.fail != nil {
		return 0, s.fail
	}
	var n int64
	for _, a := range s.come {
		if time.Since(s.start) >= a.after {
			n++
		}
	}
	return n, ctx.Err()
}

func (s *script) Known(ctx context.Context, size int) (map[cohort.Rank]identity, error) {
	known := map[cohort.Rank]identity{}
	for _, a := range s.come {
		if a.rank != cohort.NoRank && int(a.rank) < size && time.Since(s.start) >= a.after {
			known[a.rank] = identity{Host: "node" + string(rune('a'+a.rank)), PID: 100 + int(a.rank)}
		}
	}
	return known, ctx.Err()
}

// Watch cannot tell, so the host has to poll.
func (s *script) Watch(context.Context, func()) {}

func (s *script) Show(ctx context.Context, who string) {
	s.mu.Lock()
	s.shown = append(s.shown, who)
	s.mu.Unlock()
	<-ctx.Done()
}

var silent = slog.New(slog.DiscardHandler)

// A user who gave nothing but a logger is told as well.
func TestAwaitWorldLogsWhoIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := &script{start: time.Now(), come: []arrival{{0, 0}, {1500 * time.Millisecond, 1}}}
		var out strings.Builder
		if err := awaitWorld(t.Context(), board, 2, nil, slog.New(slog.NewTextHandler(&out, nil))); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), `joined=1 size=2 waited=1s who="missing: rank 1"`) {
			t.Errorf("the log says %q", out.String())
		}
	})
}

func TestAwaitWorldTellsWhoIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := &script{start: time.Now(), come: []arrival{
			{0, 0}, {500 * time.Millisecond, 3}, {2 * time.Second, 1}, {12500 * time.Millisecond, cohort.NoRank}, {13 * time.Second, 2},
		}}
		var mu sync.Mutex
		var told []string
		err := awaitWorld(t.Context(), board, 5, func(e observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Kind != EventWait || e.Rank != 0 {
				t.Errorf("event %+v", e)
			}
			told = append(told, e.Detail)
		}, silent)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(board.start); took < 13*time.Second || took > 13*time.Second+pollEvery {
			t.Errorf("waited %v", took)
		}
		want := []string{
			"2/5 clients joined after 1s, missing: ranks 1, 2 and 4",
			"3/5 clients joined after 2s, missing: ranks 2 and 4",
			"3/5 clients joined after 7s, missing: ranks 2 and 4",
			"3/5 clients joined after 12s, missing: ranks 2 and 4",
			"4/5 clients joined after 13s, 1 of ranks 2 and 4 is missing (1 client joined without giving a rank, as PyTorch clients do)",
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Error(diff)
		}
	})
}

// TCPStoreTest.test_store_timeout_on_missing_clients.
func TestAwaitWorldTimesOutWithNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 61*time.Second)
		defer cancel()
		board := &script{start: time.Now(), come: []arrival{{0, 0}, {time.Second, 2}}}
		err := awaitWorld(ctx, board, 4, nil, silent)
		if !errors.Is(err, cohort.DeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		for _, words := range []string{
			"Timed out after 61 seconds waiting for clients. 2/4 clients joined.", "missing: ranks 1 and 3",
			"here: rank 0 on nodea pid 100, rank 2 on nodec pid 102",
		} {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("the error lacks %q: %v", words, err)
			}
		}
	})
}

func TestAwaitWorldNamesTheLastMissingRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(3 * time.Second)
			cancel()
		}()
		err := awaitWorld(ctx, &script{start: time.Now(), come: []arrival{{0, 0}, {0, 1}}}, 3, nil, silent)
		var e *cohort.Error
		if !errors.As(err, &e) || e.Rank != 2 || e.Code != cohort.Canceled || !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		if !strings.Contains(err.Error(), "Cancelled after 3 seconds waiting for clients. 2/3 clients joined. missing: rank 2") {
			t.Error(err)
		}
	})
}

func TestAwaitWorldPassesAFailureOn(t *testing.T) {
	fail := cohort.New("test", cohort.PeerLost, "gone")
	if err := awaitWorld(t.Context(), &script{start: time.Now(), fail: fail}, 3, nil, silent); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("got %v", err)
	}
}

func TestRosterWords(t *testing.T) {
	id := identity{Host: "h", PID: 1}
	for _, c := range []struct {
		r    roster
		want string
	}{
		{roster{size: 2, joined: 2}, "no rank is missing"},
		{roster{size: 2, joined: 5}, "no rank is missing"},
		{roster{size: 3}, "missing: ranks 0-2"},
		{roster{size: 3, joined: 1, known: map[cohort.Rank]identity{0: id}}, "missing: ranks 1 and 2"},
		{roster{size: 2, joined: 1, known: map[cohort.Rank]identity{0: id}}, "missing: rank 1"},
		// A rank that announced itself and is not counted yet is not missing.
		{roster{size: 3, joined: 1, known: map[cohort.Rank]identity{0: id, 1: id}}, "missing: rank 2"},
		{
			roster{size: 9, joined: 6, known: map[cohort.Rank]identity{0: id, 4: id}},
			"3 of ranks 1-3 and 5-8 are missing (4 clients joined without giving a rank, as PyTorch clients do)",
		},
		{
			roster{size: 3, joined: 2, known: map[cohort.Rank]identity{0: id, 2: {Host: "h", PID: 2, Gone: true}}},
			"missing: rank 1; joined and left again: rank 2",
		},
		{roster{size: 3, joined: 2}, "1 of ranks 0-2 is missing (2 clients joined without giving a rank, as PyTorch clients do)"},
	} {
		if got := c.r.absent(); got != c.want {
			t.Errorf("%+v\n got %s\nwant %s", c.r, got, c.want)
		}
	}
}

func TestRosterListsAreBounded(t *testing.T) {
	r := roster{size: 100000, known: map[cohort.Rank]identity{}}
	for rank := cohort.Rank(0); rank < 100000; rank += 2 {
		r.known[rank] = identity{Host: "h", PID: int(rank)}
	}
	r.joined = int64(len(r.known))
	if got := r.absent(); got != "missing: ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 and more" {
		t.Error(got)
	}
	if got := r.present(); !strings.HasSuffix(got, "rank 14 on h pid 14, 49992 more") {
		t.Error(got)
	}
}

func TestIdentityText(t *testing.T) {
	for _, id := range []identity{
		{Host: "nodea", PID: 7},
		{Host: "nodea", PID: 7, Tag: "1.2"},
		{Host: "a pid b", PID: 7, Tag: "1.2", Counted: true},
		{Host: "", PID: 7, Counted: true},
	} {
		if back := parseIdentity(id.text()); back != id {
			t.Errorf("%q became %+v, want %+v", id.text(), back, id)
		}
	}
	if id := parseIdentity("another rank"); id.Host != "another rank" || id.PID != 0 {
		t.Errorf("%+v", id)
	}
	if n := len(identity{Host: strings.Repeat("h", 5000), PID: 3}.text()); n > 300 {
		t.Errorf("a text of %d bytes", n)
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add("nodea pid 7 #1.2, joined")
	f.Add(" pid  #, joined")
	f.Fuzz(func(t *testing.T, text string) {
		id := parseIdentity(text)
		if len(id.Host) > 256 || strings.Contains(id.Host, tagMark) {
			return
		}
		if again := parseIdentity(id.text()); !again.sameProcess(id) && id.PID != 0 {
			t.Fatalf("%q: %+v, then %+v", text, id, again)
		}
	})
}
