// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestCallbacksOfAGroup: a hook, a profiler or the receiver of a dump that panics or ends its goroutine takes nothing
// with it, also where the group calls it from its own goroutine: operations without a waiter go on, a failure reaches
// every rank, and Close ends.
func TestCallbacksOfAGroup(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(){"panic": func() { panic("a bug") }, "exit": runtime.Goexit} {
		ends := func(observe.Event) { end() }
		for where, opt := range map[string]Option{
			"dump": WithDump(func(string, []byte) { end() }), "hook": WithHook(ends), "profiler": WithProfiler(func(*Work) { end() }),
		} {
			t.Run(how+" in a "+where, func(t *testing.T) {
				t.Parallel()
				for _, transport := range transports {
					groups := newWorld(t, 2, WithTransport(transport), opt, WithDump(func(string, []byte) { end() }))
					ctx := ctxOf(t)
					for range 3 { // no goroutine is in Wait, only at Done
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
					var err error
					for n := 0; err == nil && n < 2; n++ { // what rank 0 has given up may have been sent
						err = groups[1].AllReduce(ctx, from(int64(1)), Sum).Wait(ctx)
					}
					if err == nil {
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

// TestCallbacksWithoutALogger: a panic in a callback is logged also where the group has no logger, and in its sub-groups.
func TestCallbacksWithoutALogger(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	g := newWorld(t, 1, WithProfiler(func(*Work) { panic("profiler") }), WithHook(func(e observe.Event) { panic("hook of " + e.Group) }))[0]
	sub, err := g.NewGroup(ctxOf(t), []cohort.Rank{0}, WithName("part"))
	must(t, err)
	for _, g := range []*Group{sub, g} {
		must(t, g.AllReduce(ctxOf(t), from(int64(1)), Sum).Wait(ctxOf(t)))
		must(t, g.Close())
	}
	for want, times := range map[string]int{`panic="hook of ` + g.Name() + `"`: 2, `panic="hook of part"`: 2, "panic=profiler": 2} {
		if n := strings.Count(log.String(), want); n != times {
			t.Errorf("%s: logged %d times, want %d: %s", want, n, times, log.String())
		}
	}
}

// TestWhoClosedAfterAFailureIsNotBlamed: rank 2 died, which rank 1 has found and recorded before it closed its group. Rank 0 has seen only
// that, and waits for a message of rank 1. It names the rank that went first.
func TestWhoClosedAfterAFailureIsNotBlamed(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			groups := newWorld(t, 3, WithTransport(transport))
			ctx := ctxOf(t)
			message := groups[0].Recv(ctx, from(int64(0)), 1, 0)
			lost := &cohort.Error{Op: "test", Code: cohort.PeerLost, Rank: 2, Detail: "it died"}
			must(t, names2(groups[1].formed.Failure.Judge(lost)))
			must(t, groups[1].Close())
			must(t, names2(message.Wait(ctx)))
		})
	}
}

// TestWhoClosedIsNotBlamedWithoutAStore: the store dies, then rank 2, which rank 1 sees before it closes its group.
// Rank 0 has seen only that, and waits for a message of rank 1. It names the rank that went first, because the goodbye
// of rank 1 says so.
func TestWhoClosedIsNotBlamedWithoutAStore(t *testing.T) {
	t.Parallel()
	ctx := ctxOf(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	s, err := tcpstore.Dial(ctx, server.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	groups := newWorldOver(t, s, 3, WithTransport(TCP))
	must(t, server.Close())
	message := groups[0].Recv(ctx, from(int64(0)), 1, 0)
	mesh, ok := groups[1].mesh.(interface{ Cut(rank int) })
	if !ok {
		t.Fatalf("connections of %T cannot be cut", groups[1].mesh)
	}
	mesh.Cut(2)
	must(t, names2(groups[1].Recv(ctx, from(int64(0)), 2, 0).Wait(ctx)))
	must(t, groups[1].Close())
	must(t, names2(message.Wait(ctx)))
}
