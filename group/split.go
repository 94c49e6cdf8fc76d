// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// Split makes several groups that have no rank in common and returns the one that this rank belongs to, nil where there is
// none. The ranks are those of g, and a group numbers them in the order in which they are given. Only the members of a group
// wait for each other: ranks in no list need not call.
//
// It corresponds to ProcessGroup.split_group, which gloo has in PyTorch 2.11 and newer and which is called with the list of the
// caller's own group: g.split_group([2, 0]) in Python is Split with [][]cohort.Rank{{2, 0}, ...} in Go. Before 2.14 PyTorch sorts
// the list, and one that is not in order is refused here. (The function torch.distributed.split_group refuses groups without an
// accelerator, in every version.) PyTorch checks nothing beforehand in such a group, whatever [WithDetail] says.
//
// [WithName] is group_name=. Among Go ranks all lists may have one name, and a name may be used again. A PyTorch rank does not notice
// that a name was used before, or for another list, and then reads the addresses of that group: every list with PyTorch ranks needs a
// name of its own, and one without a name is named after its ranks.
func (g *Group) Split(ctx context.Context, lists [][]cohort.Rank, opts ...Option) (*Group, error) {
	if g == nil {
		return nil, errNil
	}
	const op = "group: split"
	ranks, err := g.ownList(op, lists)
	if err != nil {
		return nil, err
	}
	c := newConfig(append(g.inherited(), opts...))
	if err = c.check(op); err != nil {
		return nil, err
	}
	if !g.args.Peers.SplitsGroups() {
		return nil, cohort.Newf(op, cohort.NotSupported,
			"gloo of %v, which other ranks use, cannot split a group; use NewGroup, which is new_group there", g.args.Peers)
	}
	if ranks == nil {
		return nil, nil
	}
	if !slices.IsSorted(ranks) && !g.args.Peers.OrdersGroups() {
		return nil, cohort.Newf(op, cohort.NotSupported,
			"PyTorch before 2.14 sorts the ranks of a split, and other ranks use %v: give them in order, or say that it is 2.14 "+
				"with %s or %s",
			g.args.Peers, torchcaps.Option, torchcaps.Variable)
	}
	globals, err := g.globalsOf(op, ranks)
	if err != nil {
		return nil, err
	}
	p := &plan{
		config: c, family: g.lineage.family, parent: g,
		form: bootstrap.Plan{
			Store: g.lineage.store, Rank: slices.Index(ranks, g.rank), Globals: globals,
			Origin: bootstrap.FromSplit, TorchName: c.Name, Index: g.lineage.index,
		},
	}
	if c.Name == "" {
		p.form.TorchName = gloo.SplitName(g.lineage.torchName, ranks)
		p.config.Name = p.form.TorchName
	}
	mixed := slices.ContainsFunc(ranks, func(r cohort.Rank) bool { return !g.formed.Members[r].Go })
	if mixed && !g.lineage.family.takeName(gloo.SplitBase(g.formed.Base, p.form.TorchName)) {
		return nil, cohort.Newf(op, cohort.InvalidArgument,
			"a group named %q was split off before, and PyTorch ranks would read what is left of it: give every split a name of its "+
				"own, with WithName here and group_name= there", p.form.TorchName)
	}
	failpoint.At("group.split")
	return p.make(ctx)
}

// ownList returns the list that has this rank, nil where none has, and checks all of them.
func (g *Group) ownList(op string, lists [][]cohort.Rank) (own []cohort.Rank, err error) {
	if len(lists) == 0 {
		return nil, cohort.New(op, cohort.InvalidArgument, "no lists of ranks")
	}
	where := map[cohort.Rank]int{}
	for i, ranks := range lists {
		if _, err := g.globalsOf(op, ranks); err != nil {
			return nil, err
		}
		for _, r := range ranks {
			if before, twice := where[r]; twice {
				return nil, cohort.Newf(op, cohort.InvalidArgument, "rank %d is in lists %d and %d", r, before, i)
			}
			where[r] = i
		}
		if slices.Contains(ranks, g.rank) {
			own = ranks
		}
	}
	return slices.Clone(own), nil
}

// takeName notes a name that PyTorch's ranks can use once, and reports whether it was free.
func (f *family) takeName(name string) bool {
	failpoint.At("group.split.name")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.names.Take(name)
}

// listedLocked counts the groups that PyTorch's Python layer knows of.
func (f *family) listedLocked() int {
	n := 0
	for g := range f.mu.live {
		if g.lineage.origin == bootstrap.FromPython {
			n++
		}
	}
	return n
}

// Merge forms one group of size ranks from the ranks of groups that need not know of each other, through a store that all
// of them can reach. All size ranks call it; they are numbered in the order of arrival. The options of g apply unless
// opts override them. g itself does not change, and the new group does not end with it.
//
// A store can be used for one merge only: give every merge its own store or its own prefix ([store.Prefix]). Keep the
// store open until the group is closed.
//
// It corresponds to ProcessGroup.merge_remote_group, which gloo has in PyTorch 2.11 and newer. What the PyTorch ranks of the other
// groups are is found out from the store as in [New]; see [WithPeers].
func (g *Group) Merge(ctx context.Context, s store.Store, size int, opts ...Option) (*Group, error) {
	if g == nil {
		return nil, errNil
	}
	const op = "group: merge"
	if s == nil {
		return nil, cohort.New(op, cohort.InvalidArgument, "no store")
	}
	if size < 1 {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "size %d", size)
	}
	c := newConfig(append(g.inherited(), append([]Option{resetPlacement}, opts...)...))
	if err := c.check(op); err != nil {
		return nil, err
	}
	if said := c.Said(); !said.SplitsGroups() {
		return nil, cohort.Newf(op, cohort.NotSupported, "gloo of %v, which other ranks use, cannot merge groups", said)
	}
	if c.Name == "" {
		c.Name = g.lineage.torchName + ":merge"
	}
	failpoint.At("group.merge.rank")
	n, err := s.Add(ctx, gloo.Join(c.Prefix, gloo.MergeRankKey), 1)
	if err != nil {
		return nil, cohort.Wrap(op, cohort.Unavailable, err)
	}
	if n > int64(size) {
		return nil, cohort.Newf(op, cohort.InvalidArgument,
			"%d ranks have come to a merge of %d: the store was used for a merge before (give every merge a prefix of its own), or "+
				"sizes differ", n, size)
	}
	f := newFamily(s, size)
	f.answer(c.Logger)
	p := &plan{config: c, family: f, form: bootstrap.Plan{
		Store: s, Rank: int(n) - 1, Globals: f.world,
		Origin: bootstrap.FromMerge, TorchName: c.Name,
	}}
	return p.makeFirst(ctx)
}

// resetPlacement takes back what the options of a group say about its own store and its own ranks.
var resetPlacement = option(func(c *config) {
	c.StoreAddr, c.Prefix, c.BareStore = "", "", false
	if c.Peers == bootstrap.OnlyGo {
		c.Peers = bootstrap.AnyPeers
	}
})
