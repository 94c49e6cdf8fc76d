// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/subgroup"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/util/background"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// lineage is where a group stands among the groups of its world.
type lineage struct {
	family     *family
	store      store.Store
	index      int    // number of the group
	torchName  string // PyTorch's name of it
	origin     bootstrap.Origin
	membership *membership // nil unless the group can be reconfigured
}

// family is what the groups of one world share.
type family struct {
	store store.Store
	world []int // its ranks
	clock *background.Clock
	asked *controlsock.Server // or nil

	mu struct {
		sync.Mutex
		over  bool // the last group was closed, and the clock with it
		names subgroup.NameCounter
		live  map[*Group]*Group // group to parent
	}
}

func newFamily(s store.Store, size int) *family {
	f := &family{store: s, world: make([]int, size), clock: background.New()}
	for i := range f.world {
		f.world[i] = i
	}
	f.mu.live = map[*Group]*Group{}
	return f
}

// add takes a new group in. One that was made from a group that had failed or lost a rank already, to go on without it, is
// a child of none. It reports false when all groups were closed meanwhile.
func (f *family) add(parent, g *Group) bool {
	if parent != nil && (parent.Err() != nil || parent.formed.Failure.Lossy()) {
		parent = nil
	}
	failpoint.At("group.family.add")
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.over {
		f.mu.live[g] = parent
	}
	return !f.mu.over
}

// left forgets a group that was closed. The clock ends with the last one.
func (f *family) left(g *Group) {
	failpoint.At("group.family.left")
	f.mu.Lock()
	_, was := f.mu.live[g]
	delete(f.mu.live, g)
	last := was && len(f.mu.live) == 0
	f.mu.over = f.mu.over || last
	f.mu.Unlock()
	if last {
		f.close()
	}
}

func (f *family) close() {
	f.clock.Close()
	f.asked.Close()
}

// children returns the groups that were made from g and are not closed.
func (f *family) children(g *Group) []*Group {
	failpoint.At("group.family.children")
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*Group
	for sub, parent := range f.mu.live {
		if parent == g {
			all = append(all, sub)
		}
	}
	return all
}

// NewGroup forms a group of some ranks. All ranks of the world must call it, in the same order, including those that are
// not members, which get nil. With [WithLocalSync] only the members call it. ranks are ranks of g; nil means all.
//
// The ranks of the new group are numbered in increasing order, whatever the order of ranks, unless [WithRankOrder] is
// given. With [WithLocalSync], the remaining ranks of a failed group can form a new one.
//
// It corresponds to torch.distributed.new_group.
func (g *Group) NewGroup(ctx context.Context, ranks []cohort.Rank, opts ...Option) (*Group, error) {
	if g == nil {
		return nil, errNil
	}
	const op = "group: new group"
	c := newConfig(append(g.inherited(), opts...))
	if err := c.check(op); err != nil {
		return nil, err
	}
	if ranks == nil {
		ranks = make([]cohort.Rank, g.size)
		for i := range ranks {
			ranks[i] = cohort.Rank(i)
		}
	}
	ranks = slices.Clone(ranks)
	if !c.rankOrder {
		slices.Sort(ranks)
	} else if !slices.IsSorted(ranks) && !g.args.Peers.OrdersGroups() {
		return nil, cohort.Newf(op, cohort.NotSupported,
			"%v, which other ranks use, sorts the ranks of a group or may do so; if it is 2.14 or newer, say so with %s or %s",
			g.args.Peers, torchcaps.Option, torchcaps.Variable)
	}
	globals, err := g.globalsOf(op, ranks)
	if err != nil {
		return nil, err
	}
	me := slices.Index(ranks, g.rank)
	if c.localSync && me < 0 {
		return nil, cohort.New(op, cohort.InvalidArgument, "this rank is not a member: with WithLocalSync only members call")
	}
	f := g.lineage.family
	p := &plan{config: c, family: f, parent: g, form: bootstrap.Plan{Store: g.lineage.store, Rank: me, Globals: globals}}
	failpoint.At("group.sub.name")
	f.mu.Lock()
	p.form.TorchName, err = f.mu.names.Next(op, g.args.Peers, globals, c.localSync, f.listedLocked())
	p.form.Index = f.mu.names.Groups
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if p.config.Name == "" {
		p.config.Name = p.form.TorchName
	}
	if me >= 0 {
		return p.make(ctx)
	}
	p.complete()
	return nil, bootstrap.SettleOutside(ctx, &p.form)
}

// globalsOf returns the world ranks of some ranks of g.
func (g *Group) globalsOf(op string, ranks []cohort.Rank) ([]int, error) {
	if len(ranks) == 0 {
		return nil, cohort.New(op, cohort.InvalidArgument, "no ranks")
	}
	globals := make([]int, len(ranks))
	for i, r := range ranks {
		if r < 0 || int(r) >= g.size {
			return nil, cohort.Newf(op, cohort.InvalidArgument, "rank %d: the group has ranks 0 to %d", r, g.size-1)
		}
		if slices.Contains(ranks[:i], r) {
			return nil, cohort.Newf(op, cohort.InvalidArgument, "rank %d is given twice", r)
		}
		globals[i] = g.globals[r]
	}
	return globals, nil
}

// inherited are the options of g that its sub-groups take over.
func (g *Group) inherited() []Option {
	c := g.config
	c.timeout = g.Timeout()
	return []Option{option(func(n *config) {
		name, description := n.Name, n.description
		*n = c
		n.Name, n.description, n.localSync, n.rankOrder, n.reconfigure = name, description, false, false, false
		n.Transport = bootstrap.Auto
		if c.Transport != bootstrap.SharedMemory {
			n.Transport = c.Transport
		}
	})}
}

// NewSubgroups splits the group into consecutive groups of size ranks and returns the one that this rank belongs to.
//
// It corresponds to torch.distributed.new_subgroups.
func (g *Group) NewSubgroups(ctx context.Context, size int, opts ...Option) (*Group, error) {
	if g == nil {
		return nil, errNil
	}
	if size < 1 || g.size%size != 0 {
		return nil, cohort.Newf("group: new subgroups", cohort.InvalidArgument, "%d ranks cannot be cut into groups of %d", g.size, size)
	}
	var all [][]cohort.Rank
	for from := 0; from < g.size; from += size {
		ranks := make([]cohort.Rank, size)
		for i := range ranks {
			ranks[i] = cohort.Rank(from + i)
		}
		all = append(all, ranks)
	}
	return g.NewSubgroupsByEnumeration(ctx, all, opts...)
}

// NewSubgroupsByEnumeration makes several groups that have no rank in common and returns the one that this rank belongs to,
// nil where there is none.
//
// It corresponds to torch.distributed.new_subgroups_by_enumeration.
func (g *Group) NewSubgroupsByEnumeration(ctx context.Context, lists [][]cohort.Rank, opts ...Option) (*Group, error) {
	if g == nil {
		return nil, errNil
	}
	if _, err := g.ownList("group: new subgroups", lists); err != nil {
		return nil, err
	}
	var own *Group
	for _, ranks := range lists {
		sub, err := g.NewGroup(ctx, ranks, opts...)
		if err != nil {
			if own != nil {
				_ = own.Close()
			}
			return nil, err
		}
		if sub != nil {
			own = sub
		}
	}
	return own, nil
}
