// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// A second Shutdown waits for the first no longer than its own context allows.
func TestMemberSecondShutdownEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		m := NewMember(store.NewMemory(), 0, 1, Release{
			Shutdown: func(context.Context) error { <-closed; return nil },
			Close:    func() error { close(closed); return nil },
		})
		first := make(chan error, 1)
		go func() { first <- m.Shutdown(context.Background()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Shutdown(ctx); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Errorf("the second Shutdown: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// TestFileURLWithAHost: two slashes make the first part of the path a host name. The file that is created is another one
// than the user wrote, so a warning says which.
func TestFileURLWithAHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	var log testkit.Log
	var told []string
	hook := func(e observe.Event) {
		if e.Kind == EventWarning {
			told = append(told, e.Detail)
		}
	}
	m, err := Join(t.Context(), "file://tmp"+path+"?rank=0&world_size=1", WithLogger(log.Logger(slog.LevelWarn)), WithHook(hook))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if !log.Has("names the file "+path) || !log.Has("three slashes") || len(told) != 1 || !strings.Contains(told[0], path) {
		t.Errorf("log %q, events %q", log.String(), told)
	}
	for _, good := range []string{"file://" + path, "file://localhost" + path} {
		if p, err := NewRegistry().Plan(Request{URL: good + "?rank=0&world_size=1", Rank: -1, WorldSize: -1}); err != nil ||
			p.Warning != "" {
			t.Errorf("%s: %q, %v", good, p.Warning, err)
		}
	}
}
