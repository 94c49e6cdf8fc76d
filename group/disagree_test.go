// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// soon is long enough for ranks to find out that they can never form a group, and much shorter than their time.
const soon = 15 * time.Second

// told is what a process was told about its place.
type told struct{ rank, size int }

// comeTogether starts processes as they were told, and returns how they ended. A group is an error.
func comeTogether(ctx context.Context, s store.Store, all []told, opts ...Option) []error {
	errs := make([]error, len(all))
	_ = each(len(all), func(i int) error {
		g, err := New(ctx, s, cohort.Rank(all[i].rank), all[i].size, opts...)
		if errs[i] = err; err == nil {
			_ = g.Close()
		}
		return nil
	})
	return errs
}

// TestSizesDisagree: ranks that were told different sizes of the world all say so at once, each of them both sizes.
func TestSizesDisagree(t *testing.T) {
	t.Parallel()
	for _, transport := range append([]Transport{Auto}, transports...) {
		for _, all := range [][]told{{{0, 2}, {1, 3}, {2, 3}}, {{0, 3}, {1, 3}, {1, 2}}, {{0, 4}, {1, 5}, {3, 6}}} {
			t.Run(fmt.Sprintf("%s %v", transport, all), func(t *testing.T) {
				t.Parallel()
				s := store.NewMemory()
				defer func() { _ = s.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
				defer cancel()
				began := time.Now()
				for i, err := range comeTogether(ctx, s, all, WithTransport(transport)) {
					if cohort.CodeOf(err) != cohort.Mismatch || !strings.Contains(err.Error(), " has "+strconv.Itoa(all[i].size)) ||
						!strings.Contains(err.Error(), fmt.Sprintf("(process %d on", os.Getpid())) {
						t.Errorf("rank %d of %d: %v", all[i].rank, all[i].size, err)
					}
				}
				if took := time.Since(began); took > soon {
					t.Errorf("it took %v", took)
				}
				// Started again as they should be, they form a group.
				for i, err := range comeTogether(ctx, s, []told{{0, 3}, {1, 3}, {2, 3}}, WithTransport(transport)) {
					if err != nil {
						t.Errorf("rank %d afterwards: %v", i, err)
					}
				}
			})
		}
	}
}

// TestSizesChange: jobs of other sizes that have ended, with or without a group, are no reason to fail.
func TestSizesChange(t *testing.T) {
	t.Parallel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	for _, size := range []int{3, 2, 4, 2} {
		short, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		for _, err := range comeTogether(short, s, []told{{1, size}}) { // rank 0 does not come: this one claims its size
			if !errors.Is(err, cohort.DeadlineExceeded) {
				t.Errorf("alone of %d: %v", size, err)
			}
		}
		cancel()
		var late atomic.Int32
		must(t, each(size, func(r int) error {
			if late.Add(1) == 1 {
				time.Sleep(1500 * time.Millisecond) // the others claim theirs meanwhile
			}
			g, err := New(ctxOf(t), s, cohort.Rank(r), size)
			if err != nil {
				return err
			}
			return g.Close()
		}))
	}
}

// TestRankComesTwice: two processes with the same rank both fail at once, and so do the others, and each names both.
func TestRankComesTwice(t *testing.T) {
	t.Parallel()
	for _, transport := range append([]Transport{Auto}, transports...) {
		for _, all := range [][]told{{{0, 2}, {0, 2}}, {{0, 4}, {1, 4}, {1, 4}}} {
			t.Run(fmt.Sprintf("%s %v", transport, all), func(t *testing.T) {
				t.Parallel()
				s := store.NewMemory()
				defer func() { _ = s.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
				defer cancel()
				began := time.Now()
				for i, err := range comeTogether(ctx, s, all, WithTransport(transport)) {
					want := fmt.Sprintf("two processes are rank %d of group", all[len(all)-1].rank)
					if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.AlreadyExists ||
						int(e.Rank) != all[len(all)-1].rank || strings.Count(e.Error(), want) != 1 {
						t.Errorf("rank %d of %d: %v", all[i].rank, all[i].size, err)
					}
				}
				if took := time.Since(began); took > soon {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// TestRankOfAGroupComesTwice: a process that comes with the rank of a member of a group that is in use says, when its time is over, which
// process has that rank. The group is not harmed.
func TestRankOfAGroupComesTwice(t *testing.T) {
	t.Parallel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	groups := newWorldOver(t, s, 2)
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := comeTogether(short, s, []told{{1, 2}})[0]
	if cohort.CodeOf(err) != cohort.DeadlineExceeded || !strings.Contains(err.Error(), "rank 1 was taken before") {
		t.Error(err)
	}
	ctx := ctxOf(t)
	must(t, each(2, func(r int) error { return sumOf(ctx, groups[r]) }))
}
