// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package group

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// wrongAddress is a store that tells a rank a wrong address of the shared memory, as if the ranks could not reach each other.
type wrongAddress struct{ store.Store }

func (s wrongAddress) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasSuffix(key, "/shm/0") {
		return []byte("unix 00112233445566778899aabbccddeeff @cohort-shm-unused"), nil
	}
	return s.Store.Get(ctx, key)
}

// TestFallsBackToTCP: where one rank cannot join the shared memory, all ranks use TCP, unless shared memory was asked for.
func TestFallsBackToTCP(t *testing.T) {
	t.Parallel()
	for _, transport := range []Transport{Auto, SharedMemory} {
		s := store.NewMemory()
		t.Cleanup(func() { _ = s.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		groups := make([]*Group, 3)
		err := each(3, func(r int) (err error) {
			mine := store.Store(s)
			if r == 1 {
				mine = wrongAddress{s}
			}
			groups[r], err = New(ctx, mine, cohort.Rank(r), 3, WithTransport(transport))
			return err
		})
		t.Cleanup(func() { closeAll(groups) })
		if transport == SharedMemory {
			if err == nil || ctx.Err() != nil {
				t.Errorf("shared memory that one rank cannot join: %v (%v)", err, ctx.Err())
			}
			continue
		}
		must(t, err)
		for r, g := range groups {
			trace, err := g.Trace()
			must(t, err)
			if g.Transport() != TCP || !strings.Contains(string(trace), `"transport":"tcp"`) &&
				!strings.Contains(string(trace), `"transport": "tcp"`) {
				t.Errorf("rank %d uses %s, its records: %.200s", r, g.Transport(), trace)
			}
		}
		must(t, each(3, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) }))
	}
}
