// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// TestRankIsTakenAfterACrash: one worker after the other of a dynamic world ends without a word, and the next comes with its name and
// rank, in either protocol. The worker that stays must not take it for the one before, which it may know to be dead.
func TestRankIsTakenAfterACrash(t *testing.T) {
	t.Run("noticed", func(t *testing.T) { takeAfterCrash(t, true) })
	t.Run("perhaps not", func(t *testing.T) { takeAfterCrash(t, false) })
}

func takeAfterCrash(t *testing.T, noticed bool) {
	t.Parallel()
	ctx := testContext(t)
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	reg := NewRegistry().MustHandle("t.seven", func() int { return 7 })
	join := func(name string, opts ...Option) *Agent {
		t.Helper()
		opts = append(opts, WithAddr("127.0.0.1:0"), WithHandlers(reg), WithLogger(testLogger()), WithLease(100*time.Millisecond, 10*time.Second, time.Millisecond))
		a, err := Join(ctx, st, name, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	create := func(from *Agent, to string) error {
		ref, err := Remote[int](ctx, from, to, "t.seven")
		if err == nil {
			_, err = ref.Fetch(ctx)
			_ = ref.Close()
		}
		return err
	}
	stays := join("stays", WithRank(0))
	torch, both := WithTransports(TransportUV), WithTransports(TransportCohort, TransportUV)
	for life, transports := range []Option{torch, torch, both, both, torch} {
		w := join("w1", WithRank(1), transports)
		for range 2 { // the second after both have called
			if err := create(w, "stays"); err != nil {
				t.Errorf("life %d creates: %v", life, err)
			}
			if err := create(stays, "w1"); err != nil {
				t.Errorf("creation at life %d: %v", life, err)
			}
		}
		_ = w.Close()
		for noticed && !errors.Is(create(stays, "w1"), ErrPeerDead) {
			if ctx.Err() != nil {
				t.Fatalf("the end of life %d is not noticed", life)
			}
			time.Sleep(time.Millisecond)
		}
		join(fmt.Sprintf("c%d", life)) // finds the dead one, and takes it off the list
	}
}
