// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/freeport"
	"github.com/cohort-dist/cohort/internal/testlog"
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
			url := fmt.Sprintf("tcp://127.0.0.1:%d", freeport.Get(t))
			var wg sync.WaitGroup
			joined := [2]bool{}
			for r := range 2 {
				wg.Go(func() {
					m, err := rendezvous.Join(ctx, url, noEnv(), rendezvous.WithRank(dist.Rank(r)), rendezvous.WithWorldSize(2),
						rendezvous.WithHook(func(observe.Event) { end() }), rendezvous.WithLogger(testlog.Bad(end)))
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
