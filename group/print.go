// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"strconv"
	"time"
)

// String names the group, its transport and its state: "group 0: rank 2 of 4 over shm, 17 collectives".
func (g *Group) String() string {
	text := "group " + g.name + ": rank " + g.rank.String() + " of " + strconv.Itoa(g.size) + " over " + string(g.Transport()) + ", " +
		strconv.FormatUint(g.Seq(), 10) + " collectives"
	if err := g.Err(); err != nil {
		text += ", ended: " + err.Error()
	}
	return text
}

// String names the operation and its state: "all_reduce 17 of group 0: complete in 1.2ms".
func (w *Work) String() string {
	text := w.name()
	switch {
	case !w.Completed():
		return text + ": running"
	case w.outcome.err != nil:
		return text + ": " + w.outcome.err.Error()
	default:
		return text + ": complete in " + w.Duration().Round(time.Microsecond).String()
	}
}

// name says which operation this is.
func (w *Work) name() string {
	if w.group == nil {
		return w.op.String()
	}
	return w.op.String() + " " + strconv.FormatUint(w.seq, 10) + " of group " + w.group.name
}
