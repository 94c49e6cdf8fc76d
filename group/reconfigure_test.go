// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
)

// crew is a set of processes that may be members of reconfigured groups, by the rank that they were made with.
type crew struct {
	tb     testing.TB
	store  store.Store
	groups []*Group
}

func newCrew(tb testing.TB, size int, opts ...Option) *crew {
	tb.Helper()
	s := store.NewMemory()
	c := &crew{tb: tb, store: s, groups: make([]*Group, size)}
	for r := range c.groups {
		c.groups[r] = c.spare(r, size, opts...)
	}
	tb.Cleanup(func() {
		closeAll(c.groups)
		_ = s.Close()
	})
	return c
}

func (c *crew) spare(r, size int, opts ...Option) *Group {
	c.tb.Helper()
	g, err := New(context.Background(), c.store, cohort.Rank(r), size, append(opts, WithReconfigure())...)
	must(c.tb, err)
	return g
}

func (c *crew) handles(members ...int) []string {
	list := make([]string, len(members))
	for i, m := range members {
		list[i] = c.groups[m].Handle()
	}
	return list
}

// reconfigure makes a group of some members and shows that it works.
func (c *crew) reconfigure(uuid int64, members ...int) {
	c.tb.Helper()
	ctx := ctxOf(c.tb)
	handles := c.handles(members...)
	must(c.tb, each(len(members), func(i int) error {
		m := members[i]
		next, err := c.groups[m].Reconfigure(ctx, uuid, handles)
		if err != nil {
			return err
		}
		c.groups[m] = next
		if next.Rank() != cohort.Rank(i) || next.Size() != len(members) || next.Seq() != 0 {
			return fmt.Errorf("rank %d of %d, %d operations", next.Rank(), next.Size(), next.Seq())
		}
		got, err := AllGatherSlice(ctx, next, []int{m})
		if err == nil && !slices.Equal(got, members) {
			err = fmt.Errorf("members %v, want %v", got, members)
		}
		return err
	}))
}

func eachTransport(t *testing.T, f func(t *testing.T, transport Transport)) {
	t.Helper()
	for _, transport := range append([]Transport{Auto}, transports...) {
		t.Run(string(transport), func(t *testing.T) { f(t, transport) })
	}
}

func TestReconfigure(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		c := newCrew(t, 4, WithTransport(transport))
		if got := c.groups[2].Handle(); got != "gloo:2:-1:2:" {
			t.Errorf("first handle %q", got)
		}
		c.reconfigure(7, 2, 0, 1)
		if got := c.groups[0].Handle(); got != "gloo:1:7:0:" {
			t.Errorf("handle %q", got)
		}
		c.reconfigure(8, 0, 2)       // one leaves
		c.reconfigure(9, 3, 2, 0, 1) // one comes back, with its last handle, and one comes first
		c.reconfigure(11, 1)
		c.reconfigure(10, 1, 0)
	})
}

func TestReconfigureBeforeTheFirst(t *testing.T) {
	c := newCrew(t, 2)
	ctx := ctxOf(t)
	for _, w := range []*Work{c.groups[0].AllReduce(ctx, from(1.0), Sum), c.groups[0].Send(ctx, from(1.0), 1, 0)} {
		if err := w.Wait(ctx); !errors.Is(err, cohort.Aborted) || !strings.Contains(err.Error(), "call Reconfigure first") {
			t.Errorf("%v", err)
		}
	}
	plain := newWorld(t, 1)
	if plain[0].Handle() != "" {
		t.Error("a group that cannot be reconfigured has a handle")
	}
	if _, err := plain[0].Reconfigure(ctx, 1, []string{"gloo:0:-1:0:"}); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("%v", err)
	}
	for _, o := range []Option{WithDetail(), WithPeers(Torch26)} {
		if _, err := New(ctx, c.store, 0, 1, WithReconfigure(), o); !errors.Is(err, cohort.NotSupported) {
			t.Errorf("%v", err)
		}
	}
}

// TestReconfigureAfterDeath: the survivors go on without the dead rank, and with another process in its place.
func TestReconfigureAfterDeath(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		c := newCrew(t, 4, WithTransport(transport))
		c.reconfigure(1, 0, 1, 2)
		ctx := ctxOf(t)
		dead := c.groups[1]
		must(t, each(3, func(r int) error {
			if r == 1 {
				return dead.Close()
			}
			if err := c.groups[r].AllReduce(ctx, from(1.0), Sum).Wait(ctx); err == nil {
				return errors.New("the collective succeeded without a rank")
			}
			return nil
		}))
		c.reconfigure(2, 0, 3, 2)
		if _, err := dead.Reconfigure(ctx, 3, []string{dead.Handle()}); !errors.Is(err, cohort.Closed) {
			t.Errorf("a group that was closed: %v", err)
		}
	})
}

// TestReconfigureFails: with a member missing all others fail, their group does not work any more, and the next one does.
func TestReconfigureFails(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		for missing := range 3 {
			c := newCrew(t, 3, WithTransport(transport))
			c.reconfigure(1, 0, 1, 2)
			handles := c.handles(0, 1, 2)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_ = each(3, func(r int) error {
				if r == missing {
					return nil
				}
				_, err := c.groups[r].Reconfigure(ctx, 2, handles)
				if err == nil {
					t.Errorf("rank %d: reconfigured without rank %d", r, missing)
				}
				if err := c.groups[r].Barrier(ctxOf(t)).Wait(ctxOf(t)); err == nil || !strings.Contains(err.Error(), "reconfigure") {
					t.Errorf("rank %d: its group goes on: %v", r, err)
				}
				return nil
			})
			cancel()
			c.reconfigure(3, 2, 1, 0)
			closeAll(c.groups)
		}
	})
}

// TestReconfigureEndsWithClose: the group is closed while others are waited for. The caller's context has not ended.
func TestReconfigureEndsWithClose(t *testing.T) {
	c := newCrew(t, 2)
	handles := c.handles(0, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := c.groups[0].Reconfigure(ctxOf(t), 1, handles)
		ended <- err
	}()
	testkit.Until(t, "the rank is there", func() bool {
		n, err := c.store.NumKeys(ctxOf(t))
		return err == nil && n > 1
	})
	must(t, c.groups[0].Close())
	if err := <-ended; !errors.Is(err, cohort.Closed) || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestReconfigureDeclined: a rank that gives up before it has come notifies the others, too.
func TestReconfigureDeclined(t *testing.T) {
	for declines := range 3 {
		c := newCrew(t, 3)
		handles := c.handles(0, 1, 2)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_ = each(3, func(r int) error {
			ctx := ctxOf(t)
			if r == declines {
				ctx = over
			}
			_, err := c.groups[r].Reconfigure(ctx, 1, handles)
			if r == declines && !errors.Is(err, context.Canceled) || r != declines && !errors.Is(err, bootstrap.ErrGaveUp) {
				t.Errorf("rank %d, and rank %d declines: %v", r, declines, err)
			}
			return nil
		})
		c.reconfigure(2, 2, 1, 0)
		closeAll(c.groups)
	}
}

// TestReconfigureOfAClosedGroup: a member whose group was closed before says so at once, and the others do not wait for it until their time
// is over.
func TestReconfigureOfAClosedGroup(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		for gone := range 3 {
			c := newCrew(t, 3, WithTransport(transport), WithConnectTimeout(time.Minute))
			handles := c.handles(0, 1, 2)
			must(t, c.groups[gone].Close())
			from := time.Now()
			_ = each(3, func(r int) error {
				_, err := c.groups[r].Reconfigure(ctxOf(t), 1, handles)
				if r == gone && !errors.Is(err, cohort.Closed) ||
					r != gone && (!errors.Is(err, bootstrap.ErrGaveUp) || cohort.CodeOf(err) != cohort.Unavailable) {
					t.Errorf("rank %d, and that of rank %d is closed: %v", r, gone, err)
				}
				return nil
			})
			if took := time.Since(from); took > 20*time.Second {
				t.Errorf("rank %d is closed: the others took %v", gone, took)
			}
			closeAll(c.groups)
		}
	})
}

// TestReconfigureWithAMemberThatHasLeft: a member that has closed its group, and does not call Reconfigure, is not waited for, whether the
// group worked or had failed. What it has left in the store goes with the group.
func TestReconfigureWithAMemberThatHasLeft(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		for gone := range 3 {
			for _, late := range []bool{false, true} {
				c := newCrew(t, 3, WithTransport(transport), WithConnectTimeout(time.Minute))
				c.reconfigure(1, 0, 1, 2)
				handles := c.handles(2, 1, 0)
				if late { // the others notice
					c.groups[gone].fail(errors.New("it has failed"))
				} else {
					must(t, c.groups[gone].Close())
				}
				_ = each(3, func(r int) error {
					if r == gone {
						if late {
							time.Sleep(150 * time.Millisecond)
							return c.groups[gone].Close()
						}
						return nil
					}
					if _, err := c.groups[r].Reconfigure(ctxOf(t), 2, handles); !errors.Is(err, bootstrap.ErrGaveUp) ||
						cohort.CodeOf(err) != cohort.Unavailable {
						t.Errorf("rank %d, and rank %d has left: %v", r, gone, err)
					}
					return nil
				})
				closeAll(c.groups)
			}
		}
	})
}

// TestReconfigureWithANewcomerAndOneThatHasLeft: a newcomer knows nothing of the group that the others were in. A member looks after all of
// them, wherever the newcomer stands.
func TestReconfigureWithANewcomerAndOneThatHasLeft(t *testing.T) {
	for _, order := range [][]int{{0, 2, 1}, {0, 1, 2}, {2, 1, 0}, {2, 0, 1}, {1, 0, 2}, {1, 2, 0}} {
		c := newCrew(t, 3, WithTransport(TCP), WithConnectTimeout(time.Minute))
		c.reconfigure(1, 0, 1)
		handles := c.handles(order...) // 2 is the newcomer
		must(t, c.groups[1].Close())
		_ = each(3, func(r int) error {
			if r == 1 {
				return nil
			}
			_, err := c.groups[r].Reconfigure(ctxOf(t), 2, handles)
			e, _ := errors.AsType[*cohort.Error](err)
			if !errors.Is(err, bootstrap.ErrGaveUp) || e.Code != cohort.Unavailable || int(e.Rank) != slices.Index(order, 1) {
				t.Errorf("members %v, and 1 has left: %d: %v", order, r, err)
			}
			return nil
		})
		closeAll(c.groups)
	}
}

// TestLeavingLeavesNothing: the keys by which members that leave say so are deleted by the last one.
func TestLeavingLeavesNothing(t *testing.T) {
	c := newCrew(t, 3)
	c.reconfigure(1, 0, 1, 2)
	closeAll(c.groups)
	if n, err := c.store.NumKeys(ctxOf(t)); err != nil || n > 3 { // the claim, the number of the generation, its verdict
		t.Errorf("%d keys are left, %v", n, err)
	}
}

// slowQuits is a store that does not answer those who say that they come to no group that follows.
type slowQuits struct{ *store.Memory }

func (s slowQuits) Append(ctx context.Context, key string, value []byte) error {
	if strings.HasSuffix(key, "/quit") {
		<-ctx.Done()
		return cohort.FromContext(ctx, "store: append")
	}
	return s.Memory.Append(ctx, key, value)
}

// TestLeavingASlowStore: a member that could not say in time that it comes to no group that follows still counts as one that has left.
func TestLeavingASlowStore(t *testing.T) {
	s := slowQuits{store.NewMemory()}
	defer func() { _ = s.Close() }()
	c := &crew{tb: t, store: s}
	c.groups = []*Group{c.spare(0, 2), c.spare(1, 2)}
	c.reconfigure(1, 0, 1)
	closeAll(c.groups)
	if n, err := s.NumKeys(ctxOf(t)); err != nil || n > 3 { // as in TestLeavingLeavesNothing
		t.Errorf("%d keys are left, %v", n, err)
	}
}

// TestReconfigureTogether: when one rank gives up, the others do not wait for their own timeouts.
func TestReconfigureTogether(t *testing.T) {
	c := newCrew(t, 3)
	handles := c.handles(0, 1, 2)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_ = each(2, func(r int) error {
		ctx := short
		if r == 1 {
			ctx = ctxOf(t)
		}
		if _, err := c.groups[r].Reconfigure(ctx, 1, handles); err == nil {
			t.Errorf("rank %d: reconfigured", r)
		}
		return nil
	})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestReconfigureUUIDOnce(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		c := newCrew(t, 2, WithTransport(transport))
		c.reconfigure(1, 0, 1)
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			handles := c.handles(order...)
			began := time.Now()
			_ = each(2, func(r int) error {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if _, err := c.groups[r].Reconfigure(ctx, 1, handles); !errors.Is(err, cohort.AlreadyExists) &&
					!errors.Is(err, bootstrap.ErrGaveUp) {
					t.Errorf("rank %d: %v", r, err)
				}
				return nil
			})
			if time.Since(began) > 15*time.Second {
				t.Error("a uuid that was used is found out by waiting")
			}
		}
		c.reconfigure(2, 0, 1)
	})
}

func TestReconfigureRefusesLists(t *testing.T) {
	c := newCrew(t, 2)
	c.reconfigure(1, 0, 1)
	own, other := c.groups[0].Handle(), c.groups[1].Handle()
	for want, handles := range map[string][]string{
		"no handles": nil, "is not a handle": {own, "nonsense"}, "given twice": {own, own}, "not in the list": {other},
		`"nccl2:1:-1:1:x" is not a handle`: {own, "nccl2:1:-1:1:x"}, `"gloo:0:-1" is not a handle`: {own, "gloo:0:-1"},
	} {
		if _, err := c.groups[0].Reconfigure(ctxOf(t), 5, handles); !errors.Is(err, cohort.InvalidArgument) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", handles, err)
		}
	}
	if _, err := c.groups[0].Reconfigure(ctxOf(t), -1, []string{own}); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("uuid -1: %v", err)
	}
	must(t, each(2, func(r int) error { return c.groups[r].Barrier(ctxOf(t)).Wait(ctxOf(t)) })) // nothing has happened
}

// TestReconfigureAndClose: Close at any moment ends a reconfiguration or comes after it, and nothing is left over (goleak).
func TestReconfigureAndClose(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport Transport) {
		t.Helper()
		for i := range 20 {
			c := newCrew(t, 2, WithTransport(transport))
			handles := c.handles(0, 1)
			var wg sync.WaitGroup
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			results := make([]error, 3)
			made := make([]*Group, 2)
			for r := range 2 {
				wg.Go(func() { made[r], results[r] = c.groups[r].Reconfigure(ctx, 1, handles) })
			}
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 200 * time.Microsecond)
				_ = c.groups[0].Close()
				cancel() // or the other rank would wait for one that is gone
			})
			wg.Go(func() {
				_, results[2] = c.groups[0].Reconfigure(ctx, 2, handles) // at the same time
			})
			wg.Wait()
			cancel()
			if results[0] == nil && results[2] == nil {
				t.Fatal("reconfigured twice")
			}
			closeAll(made)
			closeAll(c.groups)
		}
	})
}

// TestReconfigureSubgroups: sub-groups of the old group end with it, and the new one has its own.
func TestReconfigureSubgroups(t *testing.T) {
	c := newCrew(t, 3)
	c.reconfigure(1, 0, 1, 2)
	ctx := ctxOf(t)
	subs := make([]*Group, 3)
	make2 := func(r int) (err error) {
		if subs[r], err = c.groups[r].NewGroup(ctx, []cohort.Rank{0, 1}); err != nil || subs[r] == nil {
			return err
		}
		return subs[r].Barrier(ctx).Wait(ctx)
	}
	must(t, each(3, make2))
	old := slices.Clone(subs)
	c.reconfigure(2, 2, 1, 0)
	if err := old[0].Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.Closed) {
		t.Errorf("sub-group of the group before: %v", err)
	}
	must(t, each(3, make2))
	if subs[0] != nil || subs[2].Rank() != 0 {
		t.Error("the sub-group has the old ranks")
	}
}
