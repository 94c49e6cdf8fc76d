// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// TestOptions: a store that can do less passes with the options that say so.
func TestOptions(t *testing.T) {
	Run(t, func(t *testing.T) store.Store {
		t.Helper()
		m := store.NewMemory()
		t.Cleanup(func() { _ = m.Close() })
		return lesser{Store: Minimal(m)}
	}, WithLargeValue(lessersLimit), WithoutClose(), WithoutQueues())
}

const lessersLimit = 1 << 14

// lesser takes only small values, says that it has no queues, and does not end with Close.
type lesser struct{ store.Store }

func (l lesser) Set(ctx context.Context, key string, value []byte) error {
	if len(value) > lessersLimit {
		return cohort.Newf("set", cohort.TooLarge, "%d bytes", len(value))
	}
	return l.Store.Set(ctx, key, value)
}

func (lesser) QueuePush(context.Context, string, []byte) error { return store.ErrNotSupported }
func (lesser) QueuePop(context.Context, string, bool) ([]byte, error) {
	return nil, store.ErrNotSupported
}
func (lesser) QueueLen(context.Context, string) (int, error) { return 0, store.ErrNotSupported }
func (lesser) Close() error                                  { return nil }
