// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// stopped is a store that answers no client while it is stopped, and then everything that it was asked meanwhile.
type stopped struct {
	store.Store
	gate atomic.Pointer[chan struct{}]
}

func (s *stopped) stop() (start func()) {
	gate := make(chan struct{})
	s.gate.Store(&gate)
	return func() { close(gate) }
}

func (s *stopped) pass() {
	if gate := s.gate.Load(); gate != nil {
		<-*gate
	}
}

func (s *stopped) Add(ctx context.Context, key string, n int64) (int64, error) {
	s.pass()
	return s.Store.Add(ctx, key, n)
}

func (s *stopped) Set(ctx context.Context, key string, value []byte) error {
	s.pass()
	return s.Store.Set(ctx, key, value)
}

// TestStoreStops: a store that stands still for longer than a member may be silent, and answers the coordinator before it takes the signs
// of life, costs no member its place: neither in a round nor while one forms. A member that is gone is left out as before.
func TestStoreStops(t *testing.T) {
	t.Parallel()
	// signs of life come every second
	for _, before := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 990 * time.Millisecond} {
		t.Run(before.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				memory := store.NewMemory()
				inner, outer := &stopped{Store: memory}, &stopped{Store: memory} // of the coordinator, and of the members
				c, err := New(inner, 1, 2)
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				wg.Go(func() { _ = c.Run(ctx) })
				var members []*Member
				defer func() {
					cancel()
					for _, m := range members {
						_ = m.Close()
					}
					wg.Wait()
					_ = memory.Close()
				}()
				outage := func() {
					startInner, startOuter := inner.stop(), outer.stop()
					time.Sleep(5 * time.Minute)
					startInner()
					time.Sleep(500 * time.Millisecond)
					startOuter()
				}
				handles := []string{"a", "b"}
				for range handles {
					m, failed := Join(ctx, outer)
					if failed != nil {
						t.Fatal(failed)
					}
					members = append(members, m)
				}
				form := func(stop bool) {
					t.Helper()
					rounds := make([]Round, len(members))
					var asks sync.WaitGroup
					for i, m := range members {
						asks.Go(func() {
							var failed error
							if rounds[i], failed = m.Next(ctx, handles[i]); failed != nil {
								t.Error(failed)
							}
						})
						time.Sleep(before)
						if i == 0 && stop {
							wg.Go(outage)
							time.Sleep(time.Second)
						}
					}
					asks.Wait()
					for i, r := range rounds {
						if !slices.Equal(r.Handles, handles) || r.UUID != rounds[0].UUID {
							t.Errorf("member %d is in %v", i, r)
						}
					}
				}
				ended := func() bool {
					over, failed := members[0].Over(ctx)
					if failed != nil {
						t.Fatal(failed)
					}
					return over
				}
				form(false)
				time.Sleep(before)
				outage()
				time.Sleep(20 * time.Second)
				if ended() || len(c.Silent()) > 0 {
					t.Errorf("the round is over: %v, silent are %v", ended(), c.Silent())
				}
				form(true)
				_ = members[1].Close()
				time.Sleep(15 * time.Second)
				if !ended() || !slices.Equal(c.Silent(), []ID{1}) {
					t.Errorf("a member is gone: the round is over: %v, silent are %v", ended(), c.Silent())
				}
			})
		})
	}
}
