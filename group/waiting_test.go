// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestSaysWhoIsMissing: a rank that waits says for whom, and so does its error.
func TestSaysWhoIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		var mu sync.Mutex
		var details []string
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := New(ctx, s, 1, 4, WithName("g7"), WithPeers(OnlyGo), WithTransport(Gloo),
			WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithHook(func(e observe.Event) {
				if e.Kind == EventWait {
					mu.Lock()
					defer mu.Unlock()
					details = append(details, e.Detail)
				}
			}))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ranks 0, 2 and 3 of group g7 did not appear") {
			t.Errorf("%v", err)
		}
		want := "rank 1 of group g7 waits for ranks 0, 2 and 3, which have not joined (1 of 4 have joined)"
		if len(details) != 2 || details[0] != want || !strings.Contains(log.String(), want) {
			t.Errorf("hook got %q; logged %s", details, log.String())
		}
	})
}

// TestSaysWhoIsMissingDespiteAPanic: a hook with a bug does not keep a rank from waiting, nor from saying for whom.
func TestSaysWhoIsMissingDespiteAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := New(ctx, s, 1, 4, WithPeers(OnlyGo), WithTransport(Gloo), WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			WithHook(func(observe.Event) { panic("a bug") }))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(log.String(), "a bug") ||
			strings.Count(log.String(), "which have not joined") != 2 {
			t.Errorf("%v; logged %s", err, log.String())
		}
	})
}

// TestWaitingShowsInTheStore: a rank waits in the store, which shows for whom, and asks nothing meanwhile.
func TestWaitingShowsInTheStore(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	defer func() { _ = server.Close() }()
	client, err := tcpstore.Dial(t.Context(), server.Addr().String())
	must(t, err)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithCancel(ctxOf(t))
	ended := make(chan error, 1)
	go func() {
		_, err := New(ctx, client, 0, 3)
		ended <- err
	}()
	awaited := func() string {
		var keys []string
		for _, w := range server.Stats().Waits {
			keys = append(keys, w.Key)
		}
		return strings.Join(keys, " ")
	}
	for !strings.Contains(awaited(), "/rank/1") {
		if ctx.Err() != nil {
			t.Fatalf("the store shows waits for %q", awaited())
		}
		time.Sleep(time.Millisecond)
	}
	before := server.Stats().Requests()
	time.Sleep(200 * time.Millisecond) // what is asked in this time
	if n := server.Stats().Requests() - before; n > 5 {
		t.Errorf("%d requests while nothing happened", n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestPrinting(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP), WithName("mine"))
	ctx := ctxOf(t)
	w := groups[0].Barrier(ctx)
	if text := fmt.Sprint(w); text != "barrier 0 of group mine: running" {
		t.Error(text)
	}
	must(t, groups[1].Barrier(ctx).Wait(ctx))
	must(t, w.Wait(ctx))
	if text := fmt.Sprint(w); !strings.HasPrefix(text, "barrier 0 of group mine: complete in ") {
		t.Error(text)
	}
	if text := fmt.Sprint(groups[1]); text != "group mine: rank 1 of 2 over tcp, 1 collectives" {
		t.Error(text)
	}
	must(t, groups[1].Close())
	if text := fmt.Sprintf("%v %+v", groups[1], groups[1].Barrier(ctx)); !strings.Contains(text, "ended: group mine: closed") ||
		strings.Contains(text, "0x") {
		t.Error(text)
	}
}

func TestGatherAndScatterSlice(t *testing.T) {
	for _, transport := range transports {
		groups := newWorld(t, 3, WithTransport(transport))
		ctx := ctxOf(t)
		must(t, each(3, func(r int) error {
			all, err := GatherSlice(ctx, groups[r], []int64{int64(r), int64(10 * r)}, 1)
			if err != nil {
				return err
			}
			if want := "[0 0 1 10 2 20]"; (r == 1) != (fmt.Sprint(all) == want) || r != 1 && all != nil {
				t.Errorf("rank %d gathered %v", r, all)
			}
			part := make([]int64, 2)
			if err := ScatterSlice(ctx, groups[r], part, all, 1); err != nil {
				return err
			}
			if part[0] != int64(r) || part[1] != int64(10*r) {
				t.Errorf("rank %d got %v", r, part)
			}
			return nil
		}))
	}
}
