// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/world"
)

// TestMain runs the tests, or one rank when a test started this binary again.
func TestMain(m *testing.M) {
	if transport := os.Getenv(recoveryEnv); transport != "" {
		os.Exit(recoveringRank(transport))
	}
	goleak.VerifyTestMain(m)
}

func TestWorld(t *testing.T) {
	url := fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t))
	const size = 4
	var ranks sync.WaitGroup
	var mu sync.Mutex
	kinds := map[observe.Kind]int{}
	for rank := range cohort.Rank(size) {
		ranks.Go(func() {
			w, err := world.Join(t.Context(), url, world.WithRank(rank), world.WithWorldSize(size), world.WithTimeout(20*time.Second),
				world.WithLogger(slog.New(slog.DiscardHandler)), nil,
				world.WithRendezvous(rendezvous.WithEnv(func(string) (string, bool) { return "", false })),
				world.WithHook(func(e observe.Event) {
					mu.Lock()
					kinds[e.Kind]++
					mu.Unlock()
				}))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = w.Close() }()
			if w.Rank() != rank || w.Size() != size || w.Store().Timeout() != 20*time.Second {
				t.Errorf("rank %d of %d, timeout %v", w.Rank(), w.Size(), w.Store().Timeout())
			}
			if err := w.Store().Set(t.Context(), fmt.Sprint(rank), []byte{byte(rank)}); err != nil {
				t.Error(err)
			}
			for other := range size {
				if value, err := w.Store().Get(t.Context(), strconv.Itoa(other)); err != nil || !bytes.Equal(value, []byte{byte(other)}) {
					t.Errorf("get: %v, %v", value, err)
				}
			}
			if err := w.Shutdown(t.Context()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
			if err := w.Close(); err != nil {
				t.Errorf("close after shutdown: %v", err)
			}
			if _, err := w.Store().Get(t.Context(), "0"); !errors.Is(err, store.ErrClosed) {
				t.Errorf("after shutdown: %v", err)
			}
		})
	}
	ranks.Wait()
	if kinds[rendezvous.EventHost] != 1 || kinds[rendezvous.EventJoin] != 2*size {
		t.Errorf("events %v", kinds)
	}
}

func TestJoinRefusesBadURL(t *testing.T) {
	_, err := world.Join(context.Background(), "nosuch://")
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), "No rendezvous handler for nosuch://") {
		t.Errorf("got %v", err)
	}
}
