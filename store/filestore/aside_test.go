// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/filestore"
)

// TestFunctionsGivenToAStore: a hook or a handler of logs that panics or ends its goroutine does not end an operation, and leaves no lock
// behind.
func TestFunctionsGivenToAStore(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			s, err := filestore.Open(ctx, filepath.Join(t.TempDir(), "f"),
				filestore.WithHook(func(observe.Event) { end() }), filestore.WithLogger(testkit.BadLogger(end)))
			if err != nil {
				t.Fatal(err)
			}
			clone, err := s.Clone(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for n := int64(1); n <= 4; n++ {
				if got, err := s.Add(ctx, "n", 1); err != nil || got != 2*n-1 {
					t.Fatalf("%d, %v", got, err)
				}
				if got, err := clone.Add(ctx, "n", 1); err != nil || got != 2*n {
					t.Fatalf("%d, %v", got, err)
				}
			}
			if err := clone.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPanicOfAHook is told to the store's logger, in whatever order the two are given.
func TestPanicOfAHook(t *testing.T) {
	t.Parallel()
	var log testkit.Log
	calls := 0
	hook, logger := filestore.WithHook(func(observe.Event) { calls++; panic("a bug") }), filestore.WithLogger(log.Logger(slog.LevelInfo))
	for _, opts := range [][]filestore.Option{{hook, logger}, {logger, hook}} {
		s, err := filestore.Open(t.Context(), filepath.Join(t.TempDir(), "f"), opts...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Add(t.Context(), "n", 1); err != nil {
			t.Error(err)
		}
		if told := strings.Count(log.String(), "panic in a callback"); calls == 0 || told != calls {
			t.Errorf("%d events, %d panics are told: %s", calls, told, &log)
		}
		_ = s.Close()
	}
}
