// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/store"
)

// membersOf says which world ranks a group consists of, by asking them.
func membersOf(ctx context.Context, tb testing.TB, g *Group, own int32) []int32 {
	tb.Helper()
	got, err := AllGatherSlice(ctx, g, []int32{own})
	must(tb, err)
	return got
}

func TestSplit(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			world := newWorld(t, 4, WithTransport(transport))
			for range 3 { // a name may be used again among Go ranks
				must(t, each(4, func(r int) error {
					half, err := world[r].Split(ctx, [][]cohort.Rank{{2, 0}, {3, 1}})
					if err != nil {
						return err
					}
					want := [][]int32{{2, 0}, {3, 1}}[r%2]
					if got := membersOf(ctx, t, half, int32(r)); !slices.Equal(got, want) || half.GlobalRanks()[0] != cohort.Rank(want[0]) {
						return errors.New("wrong members")
					}
					inner, err := half.Split(ctx, [][]cohort.Rank{{1, 0}})
					if err != nil {
						return err
					}
					if got := membersOf(ctx, t, inner, int32(r)); got[0] != want[1] || got[1] != want[0] {
						return errors.New("wrong order")
					}
					return half.Close() // and the inner one with it
				}))
			}
			must(t, each(4, func(r int) error {
				part, err := world[r].Split(ctx, [][]cohort.Rank{{1, 2}}, WithName("part"))
				if err == nil && (part != nil) != (r == 1 || r == 2) {
					err = errors.New("who is a member?")
				}
				return err
			}))
		})
	}
}

// TestSplitWithOneName: the groups of a split may have one name. Their ranks do not meet, however they come.
func TestSplitWithOneName(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			world := newWorld(t, 4, WithTransport(transport))
			for range 3 {
				for _, lists := range [][][]cohort.Rank{{{0, 1}, {2, 3}}, {{2, 0}, {1, 3}}, {{0}, {1}, {2}, {3}}} {
					must(t, each(4, func(r int) error {
						part, err := world[r].Split(ctx, lists, WithName("part"))
						if err != nil {
							return err
						}
						own := slices.IndexFunc(lists, func(list []cohort.Rank) bool { return slices.Contains(list, cohort.Rank(r)) })
						for i, got := range membersOf(ctx, t, part, int32(r)) {
							if cohort.Rank(got) != lists[own][i] {
								return fmt.Errorf("rank %d of %v is %d", i, lists[own], got)
							}
						}
						return nil
					}))
				}
			}
		})
	}
}

func TestSplitRefuses(t *testing.T) {
	world := newWorld(t, 3)
	for want, lists := range map[string][][]cohort.Rank{
		"no lists":                   {},
		"no ranks":                   {{0, 1}, {}},
		"rank 3: the group":          {{0, 3}},
		"rank 1 is given twice":      {{1, 1}},
		"rank 1 is in lists 0 and 1": {{0, 1}, {1, 2}},
	} {
		_, err := world[0].Split(ctxOf(t), lists)
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", lists, err, want)
		}
	}
}

// TestSplitOrder: PyTorch sorts the ranks of a split before 2.14, so that a list in another order would give ranks other numbers there.
func TestSplitOrder(t *testing.T) {
	for _, known := range []torchcaps.Peers{
		torchcaps.Exactly(torchcaps.V2_12),
		{Low: torchcaps.V2_12, High: torchcaps.V2_14},
		{Low: torchcaps.V2_9, High: torchcaps.V2_14, Several: true},
	} {
		g := newWorld(t, 2)[0]
		g.args.Peers = known
		if _, err := g.Split(ctxOf(t), [][]cohort.Rank{{1, 0}}); !errors.Is(err, cohort.NotSupported) ||
			!strings.Contains(err.Error(), "give them in order") {
			t.Errorf("%v: %v", known, err)
		}
	}
}

// TestSplitEndsWithItsContext: a member that does not come is named, and a later split of the same ranks works.
func TestSplitEndsWithItsContext(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			world := newWorld(t, 3, WithTransport(transport))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := world[0].Split(ctx, [][]cohort.Rank{{0, 2}})
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 1 of group") {
				t.Fatalf("%v", err)
			}
			must(t, each(3, func(r int) error {
				sub, err := world[r].Split(ctxOf(t), [][]cohort.Rank{{0, 2}})
				if sub != nil {
					membersOf(ctxOf(t), t, sub, int32(r))
				}
				return err
			}))
		})
	}
}

func TestMerge(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			left, right := newWorld(t, 2, WithTransport(transport)), newWorld(t, 3, WithTransport(transport), WithPeers(OnlyGo))
			meet := store.NewMemory()
			defer func() { _ = meet.Close() }()
			all := slices.Concat(left, right)
			merged := make([]*Group, 5)
			must(t, each(5, func(i int) (err error) {
				merged[i], err = all[i].Merge(ctx, store.Prefix("first", meet), 5)
				return err
			}))
			must(t, each(5, func(i int) error {
				if got := membersOf(ctx, t, merged[i], int32(i)); got[merged[i].Rank()] != int32(i) {
					return errors.New("wrong order")
				}
				return nil
			}))
			closeAll(all) // the merged group has a life of its own
			must(t, each(5, func(i int) error {
				membersOf(ctx, t, merged[i], int32(i))
				return nil
			}))
			closeAll(merged)
		})
	}
}

func TestMergeRefuses(t *testing.T) {
	world := newWorld(t, 1)
	meet := store.NewMemory()
	defer func() { _ = meet.Close() }()
	for _, size := range []int{0, -1} {
		if _, err := world[0].Merge(ctxOf(t), meet, size); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	if _, err := world[0].Merge(ctxOf(t), nil, 1); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("no store: %v", err)
	}
	if _, err := world[0].Merge(ctxOf(t), meet, 2, WithPeers(Torch26)); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("PyTorch 2.6: %v", err)
	}
	alone, err := world[0].Merge(ctxOf(t), meet, 1)
	must(t, err)
	defer func() { _ = alone.Close() }()
	if _, err := world[0].Merge(ctxOf(t), meet, 1); !errors.Is(err, cohort.InvalidArgument) ||
		!strings.Contains(err.Error(), "prefix of its own") {
		t.Errorf("a store that was used: %v", err)
	}
}

// TestMergeIsGivenUp: when one rank gives up, the others end at once instead of waiting for a rank that cannot come again.
func TestMergeIsGivenUp(t *testing.T) {
	world := newWorld(t, 2)
	meet := store.NewMemory()
	defer func() { _ = meet.Close() }()
	began := time.Now()
	err := each(2, func(r int) error {
		ctx := ctxOf(t)
		if r == 0 {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			ctx = short
		}
		_, err := world[r].Merge(ctx, meet, 3)
		if err == nil || r == 1 && !errors.Is(err, bootstrap.ErrGaveUp) {
			t.Errorf("rank %d: %v", r, err)
		}
		return nil
	})
	must(t, err)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
