// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/gloo"
)

// Origin is how a group came about. It decides under which keys PyTorch's ranks look for each other, and what they do in
// the store around it.
type Origin uint8

// The origins.
const (
	FromPython      Origin = iota // init_process_group or new_group
	FromSplit                     // ProcessGroup.split_group
	FromMerge                     // ProcessGroup.merge_remote_group
	FromReconfigure               // reconfigure
)

// ErrGaveUp ends an attempt that cannot be repeated.
var ErrGaveUp = errors.New("a rank abandoned the creation of this group")

// gaveUp is the error of an attempt that a rank gave up and that cannot be repeated. It names the rank that did so first.
func (p *Plan) gaveUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, judgeLimit)
	defer cancel()
	who, rank := "a rank", cohort.NoRank
	if first, err := assemble.FirstToGiveUp(ctx, p.Store, p.keys(), p.size()); err == nil && first >= 0 && first != p.Rank {
		who, rank = "rank "+strconv.Itoa(first), cohort.Rank(first)
	}
	does := " abandoned the reconfiguration or has closed its group: reconfigure again, with another uuid, and without that rank if " +
		"it has left"
	if p.Origin == FromMerge {
		does = " abandoned the merge: merge again, over another store or with a prefix of its own"
	}
	return &cohort.Error{Op: "group: new", Code: cohort.Unavailable, Rank: rank, Detail: who + does, Err: ErrGaveUp}
}

// once reports whether there is only one attempt to make the group: a rank that gave up cannot come again under the same
// number.
func (o Origin) once() bool { return o == FromMerge || o == FromReconfigure }

// decline tells the others that this rank, which has not joined yet, will not.
func (p *Plan) decline(ctx context.Context) {
	if p.Origin.once() && p.size() > 1 {
		_ = assemble.Decline(ctx, p.Store, p.keys(), p.Rank, p.size())
	}
}

// base is the prefix of the store that PyTorch's ranks have for the group.
func (p *Plan) base(layout gloo.Layout) string {
	switch p.Origin {
	case FromSplit:
		return gloo.SplitBase(p.Parent.Base, p.TorchName)
	case FromMerge:
		return p.Prefix
	case FromPython, FromReconfigure:
	}
	return layout.GroupBase(p.torchBase(), p.TorchName)
}

// meshPrefix is where PyTorch's ranks publish their addresses.
func (p *Plan) meshPrefix(layout gloo.Layout) string {
	switch p.Origin {
	case FromPython:
		return layout.MeshPrefix(p.torchBase(), p.TorchName)
	case FromReconfigure:
		return gloo.ReconfigurePrefix(layout.MeshPrefix(p.torchBase(), p.TorchName), p.UUID)
	case FromSplit, FromMerge:
	}
	return p.base(layout)
}
