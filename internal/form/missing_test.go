// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/muster"
	"github.com/cohort-dist/cohort/store"
)

// stopped is a store that answers no question once its process is stopped.
type stopped struct {
	store.Store
	now atomic.Bool
}

func (s *stopped) Check(ctx context.Context, keys ...string) (bool, error) {
	if s.now.Load() {
		<-ctx.Done()
		return false, dist.FromContext(ctx, "store: check")
	}
	return s.Store.Check(ctx, keys...)
}

// TestSilentStoreIsNamed: a rank that waits for others when the store stops says that the store does not answer, and blames no rank.
func TestSilentStoreIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		defer func() { _ = memory.Close() }()
		s := &stopped{Store: memory}
		p := &Plan{Rank: 0, Globals: []int{0, 1}, Store: s, Options: Options{Name: "g", StoreAddr: "node0:29500"}}
		place, err := muster.Take(t.Context(), s, "g", 0, 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := &attempt{p: p, Formed: &Formed{Place: place}}
		s.now.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		<-ctx.Done()
		err = a.notCome(ctx, 1, ctx.Err())
		if dist.CodeOf(err) != dist.DeadlineExceeded || rankOf(err) != dist.NoRank || !strings.Contains(err.Error(), "the store at node0:29500 does not tell") {
			t.Errorf("the store is stopped: %v", err)
		}
	})
}
