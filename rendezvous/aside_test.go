// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rendezvous"
)

// TestFunctionsGivenToAJoin: a hook or a handler of logs that panics or ends its goroutine does not end a join, nor the process.
func TestFunctionsGivenToAJoin(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			url := fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t))
			var wg sync.WaitGroup
			joined := [2]bool{}
			for r := range 2 {
				wg.Go(func() {
					m, err := rendezvous.Join(ctx, url, noEnv(), rendezvous.WithRank(cohort.Rank(r)), rendezvous.WithWorldSize(2),
						rendezvous.WithHook(func(observe.Event) { end() }), rendezvous.WithLogger(testkit.BadLogger(end)))
					if err != nil {
						t.Error(err)
						return
					}
					joined[r] = true
					set(t, m.Store(), strconv.Itoa(r), "here")
					checkGet(t, m.Store(), strconv.Itoa(1-r), "here")
					if err := m.Shutdown(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if !joined[0] || !joined[1] {
				t.Errorf("joined: %v", joined)
			}
		})
	}
}

// TestPanicOfAHook is told to the logger, in whatever order the two are given; other hooks are called all the same.
func TestPanicOfAHook(t *testing.T) {
	t.Parallel()
	var log testkit.Log
	hook, logger := rendezvous.WithHook(func(observe.Event) { panic("a bug") }), rendezvous.WithLogger(log.Logger(slog.LevelInfo))
	for n, opts := range [][]rendezvous.Option{{hook, logger}, {logger, hook}} {
		calls := 0
		opts = append(opts, noEnv(), rendezvous.WithRank(0), rendezvous.WithWorldSize(1),
			rendezvous.WithHook(func(observe.Event) { calls++ }))
		m, err := rendezvous.Join(t.Context(), fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t)), opts...)
		if err != nil {
			t.Fatal(err)
		}
		if told := strings.Count(log.String(), "panic in a callback"); calls == 0 || told != calls*(n+1) {
			t.Errorf("%d events, %d panics are told: %s", calls, told, &log)
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
