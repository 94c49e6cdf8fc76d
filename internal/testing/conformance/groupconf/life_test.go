// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// TestRanks: every rank has a number of its own, in every group, and groups tell which ranks they have.
func TestRanks(t *testing.T) {
	var seen [worldSize]atomic.Int32
	run(t, func(ctx context.Context, world *group.Group) error {
		seen[world.Rank()].Add(1)
		all, err := world.NewGroup(ctx, nil)
		if err != nil {
			return err
		}
		some, err := world.NewGroup(ctx, []cohort.Rank{1, 2})
		if err != nil {
			return err
		}
		if all.Size() != worldSize || all.Rank() != world.Rank() || all.Transport() != world.Transport() {
			return fmt.Errorf("%v beside %v", all, world)
		}
		isMember := world.Rank() == 1 || world.Rank() == 2
		if (some != nil) != isMember {
			return fmt.Errorf("a group of ranks 1 and 2 on rank %d: %v", world.Rank(), some)
		}
		if isMember && (some.Size() != 2 || some.Rank() != world.Rank()-1 || some.Transport() != world.Transport()) {
			return fmt.Errorf("a group of ranks 1 and 2 on rank %d: %v", world.Rank(), some)
		}
		if isMember && (some.GroupRank(2) != 1 || some.GroupRank(0) != cohort.NoRank || some.GlobalRank(0) != 1 ||
			some.GlobalRank(2) != cohort.NoRank || !slices.Equal(some.GlobalRanks(), []cohort.Rank{1, 2})) {
			return fmt.Errorf("ranks of %v", some)
		}
		one, err := world.NewGroup(ctx, []cohort.Rank{1})
		if err != nil || (one != nil) != (world.Rank() == 1) {
			return fmt.Errorf("a group of rank 1 on rank %d: %v, %w", world.Rank(), one, err)
		}
		if one != nil {
			if one.GroupRank(1) != 0 || one.GroupRank(0) != cohort.NoRank || one.GlobalRank(0) != 1 || one.GlobalRank(1) != cohort.NoRank ||
				!slices.Equal(one.GlobalRanks(), []cohort.Rank{1}) {
				return fmt.Errorf("ranks of %v", one)
			}
			if err := one.Close(); err != nil {
				return err
			}
		}
		if err := world.Barrier(ctx).Wait(ctx); err != nil { // no rank closes before all have read
			return err
		}
		if isMember {
			if err := errors.Join(some.Close(), closed(ctx, some)); err != nil {
				return err
			}
		}
		if err := errors.Join(all.Close(), closed(ctx, all)); err != nil {
			return err
		}
		return world.Barrier(ctx).Wait(ctx) // the world goes on
	})
	for r := range seen {
		if seen[r].Load() != 3 { // once per transport
			t.Errorf("rank %d was there %d times", r, seen[r].Load())
		}
	}
}

func closed(ctx context.Context, g *group.Group) error {
	if err := g.Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.Closed) {
		return fmt.Errorf("a barrier in a group that was closed: %w", err)
	}
	return nil
}

// TestMembersOnly: members do collectives; a rank that is not a member has no group to call.
func TestMembersOnly(t *testing.T) {
	run(t, func(ctx context.Context, world *group.Group) error {
		g, err := world.NewGroup(ctx, []cohort.Rank{0, 2})
		if err != nil || (g != nil) != (world.Rank()%2 == 0) {
			return fmt.Errorf("%v, %w", g, err)
		}
		if g == nil {
			return nil
		}
		x := full(float32(1), 2, 2)
		return group.WaitAll(ctx, g.AllGather(ctx, repeat(full(float32(0), 2, 2), 1+1), x), g.AllReduce(ctx, x, group.Sum),
			g.Barrier(ctx), g.Broadcast(ctx, x, 0))
	})
}

// TestBarrier: no rank passes before the last has arrived, whichever that is.
func TestBarrier(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for last := range g.Size() {
			if g.Rank() == cohort.Rank(last) {
				// All others are at the barrier: each has posted it and says so.
				for r := range g.Size() {
					if r == last {
						continue
					}
					passed := full(int8(0), 1)
					if err := g.Recv(ctx, passed, cohort.Rank(r), last).Wait(ctx); err != nil {
						return err
					}
					if err := wantAll(fmt.Sprint("rank ", r, " passed"), passed, int8(0)); err != nil {
						return err
					}
				}
				if err := g.Barrier(ctx).Wait(ctx); err != nil {
					return err
				}
				continue
			}
			w := g.Barrier(ctx)
			passed := full(int8(0), 1)
			if w.Completed() {
				passed = full(int8(1), 1)
			}
			if err := group.WaitAll(ctx, g.Send(ctx, passed, cohort.Rank(last), last), w); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestBarrierTimeout: a rank that waits alone at a barrier gives up in time, and not before.
func TestBarrierTimeout(t *testing.T) {
	const limit = 200 * time.Millisecond
	for _, kind := range kinds {
		for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
			t.Run(kind+"/"+string(transport), func(t *testing.T) {
				over := make(chan struct{})
				runOver(t, transport, worldSize, func(ctx context.Context, world *group.Group) error {
					g, err := member(ctx, world, kind)
					if g == nil || err != nil {
						return err
					}
					g.SetTimeout(limit) // not before it has formed, which may take longer
					if g != world {
						defer func() { _ = g.Close() }()
					}
					if g.Rank() != 0 {
						<-over
						return nil
					}
					defer close(over)
					begin := time.Now()
					err = g.Barrier(ctx).Wait(ctx)
					if took := time.Since(begin); !errors.Is(err, cohort.DeadlineExceeded) || ctx.Err() != nil || took < limit {
						return fmt.Errorf("after %v: %w", took, err)
					}
					return nil
				})
			})
		}
	}
}

// TestSetTimeout: the timeout of a group can be changed and is that of later operations.
func TestSetTimeout(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		if g.Timeout() != 50*time.Second {
			return fmt.Errorf("timeout %v", g.Timeout())
		}
		if err := g.AllReduce(ctx, full(float32(1), 10), group.Sum).Wait(ctx); err != nil {
			return err
		}
		g.SetTimeout(23 * time.Second)
		if g.Timeout() != 23*time.Second {
			return fmt.Errorf("timeout %v", g.Timeout())
		}
		return g.Barrier(ctx).Wait(ctx)
	}, group.WithTimeout(50*time.Second))
}

// TestSequenceNumbers: ranks count collectives alike, in the world and in sub-groups, and one that has left some out lags.
func TestSequenceNumbers(t *testing.T) {
	run(t, func(ctx context.Context, world *group.Group) error {
		for _, ranks := range [][]cohort.Rank{nil, {0, 1, 2, 3}, {0, 1, 2}} { // the world itself first
			g, err := world, error(nil)
			if ranks != nil {
				g, err = world.NewGroup(ctx, ranks)
			}
			if err != nil {
				return err
			}
			other, err := world.NewGroup(ctx, ranks) // numbers are compared in another group, which has its own
			if err != nil {
				return err
			}
			if g == nil {
				continue
			}
			initial := g.Seq()
			for i := range uint64(10) {
				if err = g.AllReduce(ctx, full(float32(1), 1), group.Sum).Wait(ctx); err != nil {
					return err
				}
				all, failure := group.AllGatherSlice(ctx, other, []int64{int64(g.Seq())})
				if failure != nil {
					return failure
				}
				if want := int64(initial + i + 1); slices.Min(all) != want || slices.Max(all) != want {
					return fmt.Errorf("numbers %v, want %d", all, want)
				}
			}
			lags := g.Rank() == 0 || g.Rank() == 2
			var w *group.Work
			if !lags {
				w = g.AllReduce(ctx, full(float32(1), 1), group.Sum)
			}
			all, err := group.AllGatherSlice(ctx, other, []int64{int64(g.Seq())})
			if err != nil {
				return err
			}
			for r, n := range all {
				want := int64(initial) + 10
				if r != 0 && r != 2 {
					want++
				}
				if n != want {
					return fmt.Errorf("numbers %v: rank %d should be at %d", all, r, want)
				}
			}
			if lags {
				w = g.AllReduce(ctx, full(float32(1), 1), group.Sum)
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := errors.Join(other.Barrier(ctx).Wait(ctx), other.Close()); err != nil {
				return err
			}
			if g != world {
				if err := g.Close(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestLocalSync: groups that only their members call for; twice with the same ranks; not for a rank that is not a member.
func TestLocalSync(t *testing.T) {
	run(t, func(ctx context.Context, world *group.Group) error {
		me := world.Rank()
		apart := []cohort.Rank{me, (me + 2) % worldSize}
		if _, err := world.NewGroup(ctx, []cohort.Rank{(me + 1) % worldSize, (me + 3) % worldSize},
			group.WithLocalSync()); !errors.Is(err, cohort.InvalidArgument) {
			return fmt.Errorf("a group without this rank: %w", err)
		}
		g, err := world.NewGroup(ctx, apart, group.WithLocalSync())
		if err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		slices.Sort(apart) // a group's ranks are in increasing order
		if g.GroupRank(me) != cohort.Rank(slices.Index(apart, me)) || g.Rank() != cohort.Rank(slices.Index(apart, me)) ||
			!slices.Equal(g.GlobalRanks(), apart) {
			return fmt.Errorf("ranks %v as %v", apart, g.GlobalRanks())
		}
		pair := me / 2
		var pairs []*group.Group
		for range 2 {
			p, err := world.NewGroup(ctx, []cohort.Rank{2 * pair, 2*pair + 1}, group.WithLocalSync())
			if err != nil {
				return err
			}
			defer func() { _ = p.Close() }()
			pairs = append(pairs, p)
		}
		for _, p := range pairs {
			got, err := group.AllGatherSlice(ctx, p, []int64{int64(pair), int64(me)})
			if err != nil {
				return err
			}
			if want := []int64{int64(pair), int64(2 * pair), int64(pair), int64(2*pair + 1)}; !slices.Equal(got, want) {
				return fmt.Errorf("%v, want %v", got, want)
			}
		}
		return world.Barrier(ctx).Wait(ctx)
	})
}

// TestSubgroups: the world cut into groups, by their size and by lists.
func TestSubgroups(t *testing.T) {
	run(t, func(ctx context.Context, world *group.Group) error {
		me := world.Rank()
		g, err := world.NewSubgroups(ctx, 2)
		if err != nil {
			return err
		}
		if got, failure := group.AllGatherSlice(ctx, g, []int64{int64(me)}); failure != nil ||
			!slices.Equal(got, []int64{int64(me / 2 * 2), int64(me/2*2 + 1)}) {
			return fmt.Errorf("%v, %w", got, failure)
		}
		listed, err := world.NewSubgroupsByEnumeration(ctx, [][]cohort.Rank{{0, 2}, {1, 3}})
		if err != nil {
			return err
		}
		if got, failure := group.AllGatherSlice(ctx, listed, []int64{int64(me)}); failure != nil ||
			!slices.Equal(got, []int64{int64(me % 2), int64(me%2 + 2)}) {
			return fmt.Errorf("%v, %w", got, failure)
		}
		for words, make := range map[string]func() (*group.Group, error){
			"4 ranks cannot be cut into groups of 100": func() (*group.Group, error) { return world.NewSubgroups(ctx, 100) },
			"4 ranks cannot be cut into groups of 3":   func() (*group.Group, error) { return world.NewSubgroups(ctx, 3) },
			"rank 4: the group has ranks 0 to 3": func() (*group.Group, error) {
				return world.NewSubgroupsByEnumeration(ctx, [][]cohort.Rank{{0, 1}, {worldSize, 2}})
			},
			": the group has ranks 0 to 3": func() (*group.Group, error) {
				return world.NewSubgroupsByEnumeration(ctx, [][]cohort.Rank{{-1, -2}, {-3, -4}})
			},
			"rank 1 is in lists 1 and 2": func() (*group.Group, error) {
				return world.NewSubgroupsByEnumeration(ctx, [][]cohort.Rank{{0}, {1, 2}, {1, 3}})
			},
			"no lists of ranks": func() (*group.Group, error) { return world.NewSubgroupsByEnumeration(ctx, nil) },
		} {
			if _, err := make(); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), words) {
				return fmt.Errorf("%w, want a refusal: %s", err, words)
			}
		}
		return errors.Join(world.Barrier(ctx).Wait(ctx), g.Close(), listed.Close())
	})
}

// TestEveryTransport: a world forms without being told how, and with every way it can be told.
func TestEveryTransport(t *testing.T) {
	for _, transport := range []group.Transport{group.Auto, group.TCP, group.SharedMemory, group.Gloo} {
		for _, size := range []int{1, 2} {
			var seen atomic.Int64
			runOver(t, transport, size, func(ctx context.Context, g *group.Group) error {
				seen.Add(1 << (8 * g.Rank()))
				alone := size == 1 && g.Transport() == group.TCP // no rank to share memory with
				if g.Size() != size || g.Transport() == group.Auto || transport != group.Auto && g.Transport() != transport && !alone {
					return fmt.Errorf("asked for %s: %v", transport, g)
				}
				return g.Barrier(ctx).Wait(ctx)
			})
			if want := int64(1)<<(8*(size-1)) | 1; seen.Load() != want { // each rank once
				t.Errorf("%s: ranks %x, want %x", transport, seen.Load(), want)
			}
		}
	}
}

// TestMissingRank: a world of four in which one does not come: the others give up in time and name it, whatever store they use.
func TestMissingRank(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	path := filepath.Join(t.TempDir(), "store")
	memory := store.NewMemory()
	defer func() { _ = memory.Close() }()
	for name, open := range map[string]func() (store.Store, error){
		"file":   func() (store.Store, error) { return filestore.Open(t.Context(), path) },
		"tcp":    func() (store.Store, error) { return tcpstore.Dial(t.Context(), server.Addr().String()) },
		"memory": func() (store.Store, error) { return memory, nil },
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			// on a busy machine one of the three may come late, and is named too
			for limit := time.Second; limit < 30*time.Second; limit *= 5 {
				if err = withoutLast(t, open, limit); err == nil {
					return
				}
			}
			t.Error(err)
		})
	}
}

// withoutLast has all ranks but the last one form a world, and checks how they give up.
func withoutLast(t *testing.T, open func() (store.Store, error), limit time.Duration) error {
	t.Helper()
	return each(worldSize-1, func(r int) error {
		s, err := open()
		if err != nil {
			return err
		}
		if _, shared := s.(*store.Memory); !shared {
			defer func() { _ = s.Close() }()
		}
		g, err := group.New(t.Context(), s, cohort.Rank(r), worldSize, group.WithInitBarrier(), group.WithConnectTimeout(limit),
			group.WithStorePrefix(limit.String()))
		if g != nil {
			_ = g.Close()
		}
		if !errors.Is(err, cohort.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 3") {
			return fmt.Errorf("without rank 3: %w", err)
		}
		return nil
	})
}

// TestFuture: an operation's future goes through callbacks, each with the result of the one before.
func TestFuture(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		apply := func(f *cohort.Future[[]*tensor.Tensor], change func(float32) float32) *cohort.Future[[]*tensor.Tensor] {
			return cohort.Then(f, func(outs []*tensor.Tensor, err error) ([]*tensor.Tensor, error) {
				if err != nil || len(outs) != 1 {
					return nil, fmt.Errorf("%d tensors, %w", len(outs), err)
				}
				values, err := tensor.Copy[float32](outs[0])
				if err != nil {
					return nil, err
				}
				for i, v := range values {
					values[i] = change(v)
				}
				out, err := tensor.From(values, outs[0].Shape()...)
				return []*tensor.Tensor{out}, err
			})
		}
		sum := g.AllReduce(ctx, cube(3, float32(2)), group.Sum).Future()
		tripled := apply(sum, func(v float32) float32 { return v * 3 })
		outs, err := apply(tripled, func(v float32) float32 { return v + 1 }).Await(ctx)
		if err != nil {
			return err
		}
		if err = wantAll("the result", outs[0], float32(2*g.Size()*3+1), 3, 3, 3); err != nil {
			return err
		}
		// The future of an operation that has ended.
		w := g.AllReduce(ctx, cube(3, float32(2)), group.Sum)
		if err = w.Wait(ctx); err != nil {
			return err
		}
		if outs, err = w.Future().Await(ctx); err != nil || len(outs) != 1 {
			return fmt.Errorf("%d tensors after the end, %w", len(outs), err)
		}
		return wantAll("the result after the end", outs[0], float32(2*g.Size()), 3, 3, 3)
	})
}
