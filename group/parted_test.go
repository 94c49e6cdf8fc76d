// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
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
				err := errors.Join(c.call(ctx, groups[0]), groups[0].Barrier(ctx).Wait(ctx)) // a root may be done before it hears of it
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
				return // the peer was told of the receive: withdrawing it takes the connection
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
