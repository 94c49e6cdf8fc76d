// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
)

// change is how a group is made from those that the ranks have.
type change string

const (
	reconfigured change = "reconfigure"
	merged       change = "merge"
	split        change = "split"
)

// impatient is how long ranks wait for each other where the store may die: without it a rank that gives up cannot tell the others.
const impatient = 5 * time.Second

// changePoints are the points of a group that is made from another.
var changePoints = formPoints

// TestChanging makes things happen while ranks reconfigure their groups or merge them. The making of such a group cannot be tried again
// under the same number or name: when a rank gives up, all of those that are left hear so, for one reason, and the next one works.
func TestChanging(t *testing.T) {
	for _, transport := range transports {
		for _, kind := range []change{reconfigured, merged} {
			failpointtest.Test(t, failpointtest.Scenario{
				Name: string(transport) + "-" + string(kind), Share: 16, Points: changePoints,
				Events: []failpointtest.Event{
					failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline,
					{Name: closeEvent, Where: failpointtest.Beside},
					{Name: peerEvent, Where: failpointtest.Beside},
					{Name: storeEvent},
				},
				Run: func(r *failpointtest.Run) { playChange(r, transport, kind) },
			})
		}
	}
}

// TestSplitting ends the context of a rank that splits its group, or closes the group, at any moment. A rank that failed splits again,
// as a program does, and in the end all ranks have groups that work.
func TestSplitting(t *testing.T) {
	for _, transport := range transports {
		failpointtest.Test(t, failpointtest.Scenario{
			Name: string(transport), Share: 16, Points: changePoints,
			Events: []failpointtest.Event{
				failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline,
				{Name: closeEvent, Where: failpointtest.Beside},
			},
			Run: func(r *failpointtest.Run) {
				parents := formed(r, transport)
				if parents == nil {
					return
				}
				all := [][][]cohort.Rank{{{0, 1, 2}}, {{2, 1, 0}}, {{2, 1}, {0}}, {{1, 0}, {2}}, {{victim}, {2, 0}}}
				lists := all[r.Rand.IntN(len(all))]
				var opts []group.Option
				if r.Rand.IntN(2) == 0 {
					opts = append(opts, group.WithName("part"))
				}
				forming(r, parents, func(ctx context.Context, rank int) (*group.Group, error) {
					return parents[rank].Split(ctx, lists, opts...)
				})
			},
		})
	}
}

// changing is a world whose ranks make a group from those that they have.
type changing struct {
	r       *failpointtest.Run
	kind    change
	store   *store.Memory
	opts    []group.Option
	groups  []*group.Group // what each rank has
	uuid    int64
	order   []int // of the ranks in the next group; not of a merge
	handles []string
	closed  [size]bool  // the next group was, by its rank
	absent  atomic.Bool // a rank has not come, and those that wait for it are told to give up
}

func playChange(r *failpointtest.Run, transport group.Transport, kind change) {
	c := &changing{r: r, kind: kind, store: store.NewMemory(), opts: joinOptions(transport), groups: make([]*group.Group, size)}
	if r.Planned(storeEvent) {
		c.opts = append(c.opts, group.WithConnectTimeout(impatient))
	}
	r.Cleanup(func() { _ = c.store.Close() })
	r.Cleanup(func() { closeAll(c.groups) })
	r.Does(string(kind))
	connected := kind == merged || r.Rand.IntN(4) > 0 // a group that was never connected can be reconfigured too
	if !c.begin(connected) {
		return
	}
	c.announce(r.Rand.Perm(size))
	r.On(closeEvent, func() { _ = c.groups[victim].Close() })
	r.On(peerEvent, func() { _ = c.groups[peer].Close() })
	r.On(storeEvent, func() { _ = c.store.Close() })
	c.goOn(c.act())
}

// begin gives every rank a group of its world.
func (c *changing) begin(connected bool) bool {
	if c.kind == merged {
		groups := form(c.r, c.store, c.opts)
		copy(c.groups, groups)
		return groups != nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for rank := range c.groups {
		if !c.spare(ctx, rank) {
			return false
		}
	}
	if !connected {
		return true
	}
	c.announce([]int{0, 1, 2})
	return c.all(ctx, "the first group")
}

// spare gives a rank a group that waits to be reconfigured.
func (c *changing) spare(ctx context.Context, rank int) bool {
	g, err := group.New(ctx, c.store, cohort.Rank(rank), size, append(slices.Clone(c.opts), group.WithReconfigure())...)
	if err != nil {
		c.r.Errorf("rank %d: %v", rank, err)
		return false
	}
	c.groups[rank] = g
	return true
}

// announce tells all ranks which group is the next one.
func (c *changing) announce(order []int) {
	c.uuid++
	c.order, c.handles = order, make([]string, size)
	for i, rank := range order {
		c.handles[i] = c.groups[rank].Handle()
	}
}

// next makes the next group of a rank from a group that it has.
func (c *changing) next(ctx context.Context, g *group.Group) (*group.Group, error) {
	if c.kind == merged {
		return g.Merge(ctx, c.place(), size)
	}
	return g.Reconfigure(ctx, c.uuid, c.handles)
}

// all has all ranks make the next group, to which nothing happens, and use it.
func (c *changing) all(ctx context.Context, what string) bool {
	ok := true
	for rank, err := range each(func(rank int) error {
		g, err := c.next(ctx, c.groups[rank])
		if err != nil {
			return err
		}
		if c.kind == merged {
			_ = c.groups[rank].Close() // the next one does not end with it
		}
		c.groups[rank] = g
		return run(ctx, g, operations[0], 10)
	}) {
		if err != nil {
			ok = false
			c.r.Errorf("rank %d of %s: %v", rank, what, err)
		}
	}
	return ok
}

// act has all ranks make the next group while things happen. It returns the groups that were made.
func (c *changing) act() []*group.Group {
	own := c.r.Context()
	late := c.r.Rand.IntN(2 * size) // a rank that joins late, or none
	pending := c.r.Rand.IntN(2) == 0
	all, cancel := context.WithTimeout(context.Background(), timeout)
	c.r.Cleanup(cancel)
	victims, end := context.WithCancelCause(own)
	c.r.Cleanup(func() { end(nil) })
	defer context.AfterFunc(all, func() { end(nil) })()
	made := make([]*group.Group, size)
	before := slices.Clone(c.groups)
	c.r.Begin()
	calls := make([]*failpointtest.Call, size)
	for rank := range size {
		calls[rank] = c.r.Go(fmt.Sprintf("rank %d", rank), timeout+5*time.Second, func() (err error) {
			if rank == late {
				time.Sleep(30 * time.Millisecond)
			}
			ctx := all
			if rank == victim {
				ctx = victims
			}
			var waits *group.Work
			if pending && rank == victim && before[rank].Err() == nil {
				waits = before[rank].Recv(all, ints(0), 0, 5) // no rank sends
			}
			if made[rank], err = c.next(ctx, before[rank]); err != nil {
				if c.neverCame(err) { // the others would wait for this rank, as for a dead one
					c.absent.Store(true)
					cancel()
				}
				return err
			}
			if c.kind == reconfigured && waits != nil && !waits.Completed() {
				c.r.Errorf("the group is closed, and this has not ended: %v", waits)
			}
			if err = run(all, made[rank], operations[0], 10); err != nil {
				_ = made[rank].Close() // as a program does
				c.closed[rank] = true
			}
			return err
		})
	}
	c.r.Wait()
	c.r.End()
	c.judge(calls, made, before)
	return made
}

// neverCame reports whether the others cannot know of a rank that has failed: its group was closed before, or it has taken no number.
func (c *changing) neverCame(err error) bool {
	if c.kind == reconfigured {
		return errors.Is(err, cohort.Closed) && strings.Contains(err.Error(), "the one that its last Reconfigure returned")
	}
	n, err := c.place().Add(context.Background(), gloo.MergeRankKey, 0)
	return err != nil || n < size
}

// place is the store of a merge.
func (c *changing) place() store.Store { return store.Prefix(fmt.Sprint("merge/", c.uuid), c.store) }

// left returns the ranks that may have left, by what has happened or can have.
func (c *changing) left() map[int]bool {
	left := map[int]bool{}
	events := map[string]int{failpointtest.Cancel.Name: victim, failpointtest.CancelCause.Name: victim}
	if c.kind == reconfigured { // a merge does not need the groups any more
		events[closeEvent], events[peerEvent] = victim, peer
	}
	for event, rank := range events {
		if _, happened := c.r.Happened(event); happened {
			left[rank] = true
		}
	}
	if c.r.Planned(failpointtest.Deadline.Name) {
		left[victim] = true
	}
	return left
}

// judge is the oracle of the ranks' calls.
func (c *changing) judge(calls []*failpointtest.Call, made, before []*group.Group) {
	r, left := c.r, c.left()
	_, storeDied := r.Happened(storeEvent)
	said := map[string]bool{}
	for rank, call := range calls {
		var allowed []failpointtest.Allowance
		if rank == victim {
			allowed = r.AllowContext(call)
		}
		if left[rank] && c.kind == reconfigured {
			allowed = append(allowed, r.Allow(cohort.Closed, closeEvent, peerEvent))
		}
		if others := len(left); others > 1 || others == 1 && !left[rank] {
			allowed = append(allowed, r.Allow(cohort.Unavailable), r.Allow(cohort.PeerLost))
		}
		if c.absent.Load() {
			allowed = append(allowed, r.Allow(cohort.Canceled))
		}
		if storeDied { // each names what it saw, and none can notify another that it gives up
			allowed = append(allowed, r.Allow(cohort.Unavailable), r.Allow(cohort.Closed), r.Allow(cohort.PeerLost),
				r.Allow(cohort.DeadlineExceeded))
		}
		r.Check(call, allowed...)
		if !storeDied {
			c.blames(rank, call, made, left)
		}
		if e, ok := errors.AsType[*cohort.Error](call.Err); ok && !left[rank] {
			said[fmt.Sprintf("%v of rank %d", e.Code, e.Rank)] = true
		}
		if c.kind == reconfigured && before[rank].Err() == nil {
			r.Errorf("rank %d was reconfigured, and its group goes on: %v", rank, call.Err)
		}
	}
	if len(said) > 1 && !storeDied && !c.absent.Load() {
		r.Errorf("those who are left do not agree: %v", said)
	}
}

// blames checks that a rank that is named has left.
func (c *changing) blames(rank int, call *failpointtest.Call, made []*group.Group, left map[int]bool) {
	e, ok := errors.AsType[*cohort.Error](call.Err)
	if !ok || e.Rank == cohort.NoRank || e.Code != cohort.PeerLost && e.Code != cohort.Unavailable {
		return
	}
	named := -1
	if c.kind == reconfigured {
		named = c.order[e.Rank]
	}
	for other, g := range made {
		if c.kind == merged && g != nil && g.Rank() == e.Rank {
			named = other
		}
	}
	if named >= 0 && (!left[named] || named == rank) {
		c.r.Errorf("rank %d blames rank %d, and those that left are %v: %v", rank, named, left, call.Err)
	}
}

// goOn checks that all ranks can make another group, whatever came of the last one; a rank that has closed its own comes again.
func (c *changing) goOn(made []*group.Group) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if c.kind == merged {
		defer closeAll(made)
	}
	if _, died := c.r.Happened(storeEvent); died {
		closeAll(c.groups)
		closeAll(made)
		c.store = store.NewMemory()
		c.r.Cleanup(func() { _ = c.store.Close() })
		if c.begin(false) {
			c.announce([]int{1, 2, 0})
			_ = c.all(ctx, "the group in another store")
		}
		return
	}
	for rank, g := range made {
		if c.kind == merged {
			continue
		}
		closed := c.closed[rank]
		if g != nil {
			c.groups[rank] = g
		} else {
			for event, whose := range map[string]int{closeEvent: victim, peerEvent: peer} {
				_, happened := c.r.Happened(event)
				closed = closed || happened && whose == rank
			}
		}
		if closed && !c.spare(ctx, rank) {
			return
		}
	}
	c.announce([]int{2, 0, 1})
	_ = c.all(ctx, "the group after it")
}
