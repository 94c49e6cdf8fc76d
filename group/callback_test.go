// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/observe"
)

// TestCallbacksOfAGroup: a hook, a profiler or the receiver of a dump that panics or ends its goroutine takes nothing with it, also where the
// group calls it from a goroutine of its own: what nobody waits for goes on, a failure reaches everybody, and Close ends.
func TestCallbacksOfAGroup(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		ends := func(e observe.Event) { // the rest is told in the goroutine of the caller
			if e.Phase == observe.End && strings.HasSuffix(string(e.Kind), "reduce") || e.Kind == "group.failed" {
				end()
			}
		}
		for where, opt := range map[string]Option{
			"dump": WithDump(func(string, []byte) { end() }), "hook": WithHook(ends), "profiler": WithProfiler(func(*Work) { end() }),
		} {
			t.Run(how+" in a "+where, func(t *testing.T) {
				t.Parallel()
				for _, transport := range transports {
					groups := newWorld(t, 2, WithTransport(transport), opt, WithDump(func(string, []byte) { end() }))
					ctx := ctxOf(t)
					for range 3 { // nobody waits, only for what is completed
						works := []*Work{groups[0].AllReduce(ctx, from(int64(1)), Sum), groups[1].AllReduce(ctx, from(int64(1)), Sum)}
						for r, w := range works {
							select {
							case <-w.Done():
							case <-time.After(30 * time.Second):
								t.Fatalf("%s: rank %d does not go on", transport, r)
							}
						}
					}
					groups[0].AllReduce(ctx, from(int64(1)), Sum).Abort()
					if err := groups[1].AllReduce(ctx, from(int64(1)), Sum).Wait(ctx); err == nil {
						t.Errorf("%s: rank 1 knows nothing of the end", transport)
					}
					ended := make(chan struct{})
					go func() { closeAll(groups); close(ended) }()
					select {
					case <-ended:
					case <-time.After(30 * time.Second):
						t.Fatalf("%s: Close does not end", transport)
					}
				}
			})
		}
	}
}
