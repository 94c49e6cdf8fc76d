// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package subgroup

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
)

// GroupHandle identifies a rank in a list of those that form the next group of a series, in PyTorch's format.
type GroupHandle struct {
	Rank   cohort.Rank // in the group that comes before
	UUID   int64       // of the reconfiguration that made that group, -1 before the first
	Stable int         // the rank that it had at first
	Addr   string
}

// backend is the first field.
const backend = "gloo"

// String returns the handle as ranks exchange it.
func (h GroupHandle) String() string {
	return strings.Join([]string{backend, h.Rank.String(), strconv.FormatInt(h.UUID, 10), strconv.Itoa(h.Stable), h.Addr}, ":")
}

// PlaceIn checks a list of handles and returns the place of h in it.
func (h GroupHandle) PlaceIn(op string, list []string) (int, error) {
	if len(list) == 0 {
		return 0, cohort.New(op, cohort.InvalidArgument, "no handles")
	}
	seen := map[string]bool{}
	for _, text := range list {
		if !validName(text) {
			return 0, cohort.Newf(op, cohort.InvalidArgument,
				"%q is not a handle of a gloo group: want what Handle or _get_reconfigure_handle() returned", text)
		}
		if seen[text] {
			return 0, cohort.Newf(op, cohort.InvalidArgument,
				"handle %q is given twice: every rank needs another one, so give New different ranks", text)
		}
		seen[text] = true
	}
	place := slices.Index(list, h.String())
	if place < 0 {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "this rank's handle %q is not in the list %q", h, list)
	}
	return place, nil
}

// RanksIn returns the rank that each member of a list of valid handles had in the group of a reconfiguration, -1 for
// those that were not in it.
func RanksIn(uuid int64, list []string) []int {
	ranks := make([]int, len(list))
	for i, text := range list {
		fields := strings.SplitN(text, ":", 5)
		ranks[i] = -1
		if in, err := strconv.ParseInt(fields[2], 10, 64); err != nil || in != uuid || uuid < 0 {
			continue
		}
		if r, err := strconv.Atoi(fields[1]); err == nil {
			ranks[i] = r
		}
	}
	return ranks
}

// validName checks a handle as PyTorch does: only the first four fields count.
func validName(text string) bool {
	fields := strings.SplitN(text, ":", 5)
	ok := len(fields) == 5 && fields[0] == backend
	for i := 1; ok && i < 4; i++ {
		_, err := strconv.ParseInt(fields[i], 10, 64)
		ok = err == nil
	}
	return ok
}

// The groups of a world are counted and named as its PyTorch ranks do.

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
