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
	"github.com/cohort-dist/cohort/tensor"
)

// endAfter returns a context that ends when the group has posted so many collectives.
func endAfter(t *testing.T, g *Group, posted uint64) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(ctxOf(t))
	t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil && g.Seq() < posted {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	return ctx
}

// TestPartedCallsEndTheGroup: the context of one rank ends in the middle of a call that consists of several operations.
// The other rank goes through all of them, so the two ranks are no longer in sync: the group ends on both, and neither
// waits or takes one operation for another.
func TestPartedCallsEndTheGroup(t *testing.T) {
	buckets := func() []*tensor.Tensor {
		return []*tensor.Tensor{from[int64](1), from[float32](1), from[int32](1), from[float64](1)}
	}
	calls := map[string]struct {
		posted uint64 // before rank 0 comes
		call   func(ctx context.Context, g *Group) error
	}{
		"broadcast": {1, func(ctx context.Context, g *Group) error { return g.BroadcastObjects(ctx, [][]byte{{1, 2}}, 0) }},
		"all-gather": {1, func(ctx context.Context, g *Group) error {
			_, err := g.AllGatherObject(ctx, []byte{1})
			return err
		}},
		"gather": {1, func(ctx context.Context, g *Group) error {
			_, err := g.GatherObject(ctx, []byte{1}, 0)
			return err
		}},
		"scatter": {1, func(ctx context.Context, g *Group) error {
			list := [][]byte{{1}, {2}}
			if g.Rank() != 0 {
				list = nil
			}
			_, err := g.ScatterObjects(ctx, list, 0)
			return err
		}},
		"coalesced": {2, func(ctx context.Context, g *Group) error { return g.BroadcastCoalesced(ctx, buckets(), 1, 0) }},
	}
	for _, transport := range transports {
		for name, c := range calls {
			t.Run(string(transport)+","+name, func(t *testing.T) {
				groups := newWorld(t, 2, WithTransport(transport))
				if err := c.call(endAfter(t, groups[1], c.posted), groups[1]); !errors.Is(err, context.Canceled) {
					t.Fatalf("rank 1, whose context has ended: %v", err)
				}
				if err := groups[1].Barrier(ctxOf(t)).Wait(ctxOf(t)); !errors.Is(err, cohort.Aborted) {
					t.Errorf("rank 1, afterwards: %v", err)
				}
				ctx := ctxOf(t)
				err := errors.Join(c.call(ctx, groups[0]), groups[0].Barrier(ctx).Wait(ctx)) // a root may be done before it learns of it
				var e *cohort.Error
				if !errors.As(err, &e) || !errors.Is(err, cohort.Aborted) || e.Rank != 1 {
					t.Errorf("rank 0: %v", err)
				}
			})
		}
	}
}

// TestPartedCallsGoOn: a context that ends before the first operation is posted, or after the last one was, leaves the ranks in step.
func TestPartedCallsGoOn(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport))
			ctx := ctxOf(t)
			over, cancel := context.WithCancel(ctx)
			cancel()
			if err := groups[1].BroadcastObjects(over, make([][]byte, 1), 0); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			sizes := []int64{0, 0}
			must(t, each(2, func(r int) error {
				if r == 0 {
					return groups[0].AllGather(ctx, parts(sizes, 2), from[int64](1)).Wait(ctx)
				}
				if _, err := groups[1].AllGatherObject(endAfter(t, groups[1], 2), []byte{7}); !errors.Is(err, context.Canceled) {
					return cohort.Newf("rank 1", cohort.Internal, "%v", err)
				}
				return nil
			}))
			must(t, groups[0].AllGather(ctx, []*tensor.Tensor{from[byte](0), from[byte](0)}, from[byte](0)).Wait(ctx))
			must(t, each(2, func(r int) error {
				all, err := groups[r].AllGatherObject(ctx, []byte{byte(r)})
				if err == nil && (len(all) != 2 || string(all[0])+string(all[1]) != "\x00\x01") {
					err = cohort.Newf("gathered", cohort.Internal, "%q", all)
				}
				return err
			}))
			if transport == Gloo {
				return // the peer was notified of the receive: withdrawing it takes the connection
			}
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			if _, err := groups[0].RecvObjects(short, make([][]byte, 1), 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			must(t, each(2, func(r int) error {
				if r == 1 {
					return groups[1].SendObjects(ctx, [][]byte{{1}}, 0)
				}
				_, err := groups[0].RecvObjects(ctx, make([][]byte, 1), 1)
				return err
			}))
		})
	}
}

// soon is long enough for ranks to find out that they can never form a group, and much shorter than their time.
const soon = 15 * time.Second

// given is what a process was given as its place.
type given struct{ rank, size int }

// comeTogether starts processes as they were told, and returns how they ended. A group is an error.
func comeTogether(ctx context.Context, s store.Store, all []given, opts ...Option) []error {
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

// TestSizesDisagree: ranks that were given different sizes of the world all say so at once, each of them both sizes.
func TestSizesDisagree(t *testing.T) {
	t.Parallel()
	for _, transport := range append([]Transport{Auto}, transports...) {
		for _, all := range [][]given{{{0, 2}, {1, 3}, {2, 3}}, {{0, 3}, {1, 3}, {1, 2}}, {{0, 4}, {1, 5}, {3, 6}}} {
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
				for i, err := range comeTogether(ctx, s, []given{{0, 3}, {1, 3}, {2, 3}}, WithTransport(transport)) {
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
		for _, err := range comeTogether(short, s, []given{{1, size}}) { // rank 0 does not come: this one claims its size
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
		for _, all := range [][]given{{{0, 2}, {0, 2}}, {{0, 4}, {1, 4}, {1, 4}}} {
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
	err := comeTogether(short, s, []given{{1, 2}})[0]
	if cohort.CodeOf(err) != cohort.DeadlineExceeded || !strings.Contains(err.Error(), "rank 1 was taken before") {
		t.Error(err)
	}
	ctx := ctxOf(t)
	must(t, each(2, func(r int) error { return sumOf(ctx, groups[r]) }))
}
