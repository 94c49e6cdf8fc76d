// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
)

// TestSlices: what a slice is sent with or reduced into is the slice itself, whether a collective or a message.
func TestSlices(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			const size, root = 3, 1
			groups := newWorld(t, size, WithTransport(transport))
			ctx := context.Background()
			must(t, each(size, func(r int) error {
				data := []float32{float32(r), 10}
				if err := ReduceSlice(ctx, groups[r], data, Sum, root); err != nil {
					return err
				}
				if r == root && !slices.Equal(data, []float32{3, 30}) {
					t.Errorf("rank %d has %v after reduce", r, data)
				}

				got := make([]int64, 2)
				next, before := cohort.Rank((r+1)%size), cohort.Rank((r+size-1)%size)
				sent := groups[r].Send(ctx, from(int64(r), int64(r*r)), next, 7)
				if err := RecvSlice(ctx, groups[r], got, before, 7); err != nil {
					return err
				}
				if want := []int64{int64(before), int64(before * before)}; !slices.Equal(got, want) {
					t.Errorf("rank %d received %v, want %v", r, got, want)
				}
				return sent.Wait(ctx)
			}))
		})
	}
}

// TestFlightRecorderSize: the recorder remembers as many operations as asked for, the latest.
func TestFlightRecorderSize(t *testing.T) {
	t.Parallel()
	const kept, done = 3, 8
	groups := newWorld(t, 2, WithTransport(TCP), WithFlightRecorder(kept))
	ctx := context.Background()
	must(t, each(2, func(r int) error {
		for range done {
			if err := groups[r].Barrier(ctx).Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}))
	data, err := groups[0].Trace()
	must(t, err)
	dump, err := flightrec.Parse(data)
	must(t, err)
	entries := dump.Groups[0].Entries
	if len(entries) != kept || entries[kept-1].Seq != done-1 {
		t.Errorf("%d entries, want %d: %+v", len(entries), kept, entries)
	}
}
