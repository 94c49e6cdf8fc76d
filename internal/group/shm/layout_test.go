// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"errors"
	"math"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
)

// TestLayout: nothing overlaps and all of it is in the segment, for every number of ranks, also where an int has 32 bits.
func TestLayout(t *testing.T) {
	t.Parallel()
	for ranks := 1; ranks <= MaxRanks; ranks++ {
		c := Config{Size: ranks, Exchange: newBoard()}
		if err := c.validate(); err != nil {
			t.Fatal(err)
		}
		l, err := newLayout(ranks, c.Slot, c.Area, c.Arena, math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		end := int64(pageSize)
		for _, part := range []struct {
			name    string
			at      int
			n, size int
		}{
			{"control blocks", pageSize, ranks, l.control},
			{"slots", l.slotsAt, ranks * sets, l.slot},
			{"areas", l.areasAt, ranks * 4, l.area},
			{"rings", l.ringsAt, ranks * ranks, shmring.ControlSize + l.ring},
			{"arenas", l.arenasAt, ranks, l.arena},
		} {
			if int64(part.at) < end || part.at%lineSize != 0 {
				t.Errorf("%d ranks: %s begin at %d, and what is before them ends at %d", ranks, part.name, part.at, end)
			}
			end = int64(part.at) + int64(part.n)*int64(part.size)
		}
		if int64(l.totalSize) < end {
			t.Errorf("%d ranks: the segment has %d bytes, and its parts need %d", ranks, l.totalSize, end)
		}
		if rings := int64(ranks) * int64(ranks) * int64(l.ring); l.ring > 4<<10 && rings > 16<<20 {
			t.Errorf("%d ranks: the rings take %d bytes", ranks, rings)
		}
	}
}

// TestDefaultLayoutIsAdopted: what rank 0 makes by default, the other ranks take, also where the arenas have all the room there is.
func TestDefaultLayoutIsAdopted(t *testing.T) {
	t.Parallel()
	for ranks := 1; ranks <= MaxRanks; ranks++ {
		for _, arena := range []int{0, min(maxArena, maxArenas/ranks/pageSize*pageSize)} {
			c := Config{Size: ranks, Exchange: newBoard(), Arena: arena}
			if err := c.validate(); err != nil {
				t.Fatal(err)
			}
			l, err := newLayout(ranks, c.Slot, c.Area, c.Arena, math.MaxInt)
			if err != nil {
				t.Fatal(err)
			}
			var h header
			h.describe(&l)
			if got, err := adopt(&h, int64(l.totalSize), ranks); err != nil || got != l {
				t.Errorf("%d ranks: %+v, want %+v: %v", ranks, got, l, err)
			}
		}
	}
}

// TestLayoutRefusesWhatCannotBeMapped: a process of 32 bits cannot map what one of 64 bits can.
func TestLayoutRefusesWhatCannotBeMapped(t *testing.T) {
	t.Parallel()
	const ranks, slot, arena = 128, 64 << 10, 2 << 20
	l, err := newLayout(ranks, slot, 512<<10, arena, math.MaxInt32)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newLayout(ranks, slot, 512<<10, arena, int64(l.totalSize)); err != nil {
		t.Errorf("a limit of just its size: %v", err)
	}
	for _, area := range []int{4 << 20, maxRoom, 2 * maxRoom} { // 2, 32 and 64 GiB of areas
		if _, err := newLayout(ranks, slot, area, arena, math.MaxInt32); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("areas of %d bytes: %v", area, err)
		}
	}
}
