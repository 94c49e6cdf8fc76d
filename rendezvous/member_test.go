// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
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
