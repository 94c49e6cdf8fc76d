// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package subgroup

// This file counts and names the groups of a world as the PyTorch ranks of the world do.

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
)

// NameCounter is what a rank knows of the groups that were made in its world. The zero value is that of a world with
// only the default group.
type NameCounter struct {
	Groups int             // made by all ranks, members or not
	maybe  int             // groups that count too if the PyTorch ranks are 2.14
	taken  map[string]bool // names that PyTorch's ranks can use only once
}

// Next counts a new group and returns PyTorch's name of it. Up to 2.13 a group that only its members make is named by the number
// of groups that this process has, listed; from 2.14 on by the counter of all groups, which it moves. As long as it is not known which
// of them the PyTorch ranks are, both are followed, and a group is refused if they would give it different names.
func (c *NameCounter) Next(op string, peers torchcaps.Peers, globals []int, localSync bool, listed int) (string, error) {
	if localSync && peers.None() {
		return gloo.LocalSyncName(globals, 0), nil
	}
	older, newer := gloo.GroupName(c.Groups+1), gloo.GroupName(c.Groups+c.maybe+1)
	if localSync {
		older, newer = gloo.LocalSyncName(globals, listed), gloo.LocalSyncName(globals, c.Groups+c.maybe+1)
	}
	name := older
	switch {
	case peers.CountsHashedGroups():
		name = newer
		c.Groups++
	case !localSync:
		c.Groups++
	case !peers.KnowsHashedGroups():
		c.maybe++
	}
	if !peers.KnowsHashedGroups() && older != newer {
		when := "after a group made with WithLocalSync the names of groups depend"
		if localSync {
			when = "once a group was closed, or was made of other ranks, the name of one made with WithLocalSync depends"
		}
		return "", cohort.Newf(op, cohort.NotSupported, "%s on the version of PyTorch, %s", when, peers.Unsure())
	}
	return name, nil
}

// Take notes a name that PyTorch's ranks can use once, and reports whether it was free.
func (c *NameCounter) Take(name string) bool {
	if c.taken[name] {
		return false
	}
	if c.taken == nil {
		c.taken = map[string]bool{}
	}
	c.taken[name] = true
	return true
}
