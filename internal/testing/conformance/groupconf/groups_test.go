// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
)

// kinds are the groups that PyTorch's tests run each collective in.
var kinds = []string{"world", "group", "full group"}

// inGroups runs f in the world's group, in a group of ranks 1 and 2, and in a new group of all ranks. global is the rank that
// a rank of the group has in the world. Every operation is reported once when it begins and once when it ends.
func inGroups(t *testing.T, f func(ctx context.Context, g *group.Group, global cohort.Rank) error) {
	t.Helper()
	for _, kind := range kinds {
		for _, transport := range []group.Transport{group.TCP, group.SharedMemory, group.Gloo} {
			t.Run(kind+"/"+string(transport), func(t *testing.T) {
				var r reports
				runOver(t, transport, worldSize, func(ctx context.Context, world *group.Group) error {
					g, err := member(ctx, world, kind)
					if g == nil || err != nil {
						return err
					}
					defer func() {
						if g != world {
							_ = g.Close()
						}
					}()
					if err := f(ctx, g, world.Rank()); err != nil {
						return err
					}
					if err := g.Barrier(ctx).Wait(ctx); err != nil {
						return err
					}
					r.ran(g)
					return nil
				}, group.WithHook(r.add))
				if err := r.check(); err != nil && !t.Failed() {
					t.Error(err)
				}
			})
		}
	}
}

// reports counts the collectives that are reported, by the rank in its group and the sequence number: those that began and those that
// ended.
type reports struct {
	mu  sync.Mutex
	all map[cohort.Rank]map[uint64][2]int
	run map[cohort.Rank]uint64
}

// ran notes how many operations a rank has run.
func (r *reports) ran(g *group.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.run == nil {
		r.run = map[cohort.Rank]uint64{}
	}
	r.run[g.Rank()] = g.Seq()
}

func (r *reports) add(e observe.Event) {
	kind, ok := strings.CutPrefix(string(e.Kind), "group.")
	if !ok || e.Phase == observe.Point || strings.HasPrefix(kind, "send") || strings.HasPrefix(kind, "recv") {
		return // connections and messages have no sequence numbers
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[cohort.Rank]map[uint64][2]int{}
	}
	if r.all[e.Rank] == nil {
		r.all[e.Rank] = map[uint64][2]int{}
	}
	n := r.all[e.Rank][e.Seq]
	if e.Phase == observe.Begin {
		n[0]++
	} else if e.Err == nil && e.Dur >= 0 {
		n[1]++
	}
	r.all[e.Rank][e.Seq] = n
}

// check is for when the groups are closed: the end of an operation may be reported after it was waited for.
func (r *reports) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rank, run := range r.run {
		if n := len(r.all[rank]); uint64(n) != run {
			return fmt.Errorf("%d operations of rank %d were reported, %d were run", n, rank, run)
		}
		for seq, n := range r.all[rank] {
			if n != [2]int{1, 1} {
				return fmt.Errorf("operation %d of rank %d was reported %d times when it began and %d times when it ended", seq,
					rank, n[0], n[1])
			}
		}
	}
	return nil
}

func member(ctx context.Context, world *group.Group, kind string, opts ...group.Option) (*group.Group, error) {
	switch kind {
	case "group":
		return world.NewGroup(ctx, []cohort.Rank{1, 2}, opts...)
	case "full group":
		return world.NewGroup(ctx, nil, opts...)
	}
	return world, nil
}
