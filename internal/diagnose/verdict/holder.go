// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// Holder is a process that holds a file lock.
type Holder struct {
	PID int
	// Command is the name of its program, and Rank the rank that it is or was started by, -1 if it is of no rank.
	Command string
	Rank    int
}

// WaitsForFileLock reports whether a thread waits for a file lock.
func WaitsForFileLock(t *stacks.Thread) bool { return kernelWait(t, "") == fileLock }

// held says of a rank that waits for a file lock who holds it.
func (c *analysis) held(r *Rank) {
	p, h := c.at[r.Rank], r.Holder
	if h == nil || p.how == "" {
		return
	}
	who := fmt.Sprintf("process %d (%s)", h.PID, h.Command)
	if i := slices.IndexFunc(c.job.Ranks, func(other Rank) bool { return other.Rank == h.Rank }); i >= 0 {
		switch owner := c.job.Ranks[i]; {
		case owner.PID != h.PID:
			who += fmt.Sprintf(" below rank %d", h.Rank)
		case h.Rank == r.Rank:
			who = "it itself" // by another open file
		default:
			who = fmt.Sprintf("rank %d", h.Rank)
		}
	}
	p.how += ", held by " + who + ","
	c.at[r.Rank] = p
}
