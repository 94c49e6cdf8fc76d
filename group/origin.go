// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"errors"

	"github.com/cohort-dist/cohort/internal/gloo"
)

// origin is how a group came about. It decides under which keys PyTorch's ranks look for each other, and what they do in
// the store around it.
type origin uint8

const (
	fromPython      origin = iota // init_process_group or new_group
	fromSplit                     // ProcessGroup.split_group
	fromMerge                     // ProcessGroup.merge_remote_group
	fromReconfigure               // reconfigure
)

// errGaveUp ends an attempt that cannot be repeated.
var errGaveUp = errors.New("a rank gave up the making of this group")

// once reports whether there is only one attempt to make the group: a rank that gave up cannot come again under the same
// number.
func (o origin) once() bool { return o == fromMerge || o == fromReconfigure }

// base is the prefix of the store that PyTorch's ranks have for the group.
func (p *plan) base(layout gloo.Layout) string {
	switch p.origin {
	case fromSplit:
		return gloo.SplitBase(p.parent.base, p.torchName)
	case fromMerge:
		return p.config.outer
	case fromPython, fromReconfigure:
	}
	return layout.GroupBase(p.torchBase(), p.torchName)
}

// meshPrefix is where PyTorch's ranks publish their addresses.
func (p *plan) meshPrefix(layout gloo.Layout) string {
	switch p.origin {
	case fromPython:
		return layout.MeshPrefix(p.torchBase(), p.torchName)
	case fromReconfigure:
		return gloo.ReconfigurePrefix(layout.MeshPrefix(p.torchBase(), p.torchName), p.membership.uuid)
	case fromSplit, fromMerge:
	}
	return p.base(layout)
}
