// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
)

// This file is about what a client may do: one that does not know the id of the job learns nothing and changes nothing, and a node speaks
// for its own ranks only.

// refusal is all that a client with another id is told: it must not learn anything of the job from it.
var refusal = Dismiss{
	Code: uint8(cohort.AlreadyExists), Sentence: "the rendezvous does not accept the id of the job", OtherJob: true,
}

// joined takes a node that has given the id of the job.
func (h *Host) joined(c *conn, m *Join) {
	switch {
	case m.workers() < 1 || m.workers() > 1<<16:
		c.say(Message{Dismiss: &Dismiss{Code: uint8(cohort.InvalidArgument), Sentence: fmt.Sprintf("%d workers on a node", m.workers())}})
	case len(h.nodes) >= MaxNodes:
		c.say(Message{Dismiss: &Dismiss{Code: uint8(cohort.Exhausted), Sentence: "there are too many nodes"}})
	default:
		c.say(Message{Welcome: true, Leaf: c.leaf})
		c.join, c.name = m, m.Host+" (process "+strconv.Itoa(m.PID)+")"
		h.nodes[c.id] = c
		h.perform(h.job.Step(launchcore.Joined{Node: c.id, Roles: m.Roles, Wish: m.Wish, Attempt: m.Attempt, Restarts: m.Restarts}))
	}
}

// ranks returns the ranks of a node in the current attempt, as the first of them and their number; none if it takes no part.
func (h *Host) ranks(c *conn) (first cohort.Rank, n int) {
	if c.begun != h.attempt {
		return 0, 0
	}
	return c.base, c.join.workers()
}

// ownFailure returns the failure that a node reports, unless it is of a rank of another node.
func (h *Host) ownFailure(c *conn, f launchcore.Failure) launchcore.Failure {
	if f.Rank == nil {
		return f
	}
	if first, n := h.ranks(c); *f.Rank >= first && *f.Rank < first+cohort.Rank(n) {
		return f
	}
	return launchcore.Failure{
		Sentence: fmt.Sprintf("node %s reports a failure of rank %d, which is not one of its own", c.name, *f.Rank), Code: cohort.Protocol,
	}
}

// passOn sends the answer of a node to the one that asked, and says which ranks the answering node may speak for.
func (h *Host) passOn(c *conn, a Answer) {
	to := h.nodes[a.Asker]
	if to == nil {
		return
	}
	a.First, a.Workers = h.ranks(c)
	to.out.answer(Message{Seen: &a})
}

// OwnRanks leaves out what a node has reported of ranks that are not its own.
func (a *Answer) OwnRanks(seen verdict.Job) verdict.Job {
	foreign := func(rank int) bool { return rank < int(a.First) || rank >= int(a.First)+a.Workers }
	seen.Ranks = slices.DeleteFunc(slices.Clone(seen.Ranks), func(r verdict.Rank) bool { return foreign(r.Rank) })
	seen.Polls = slices.DeleteFunc(slices.Clone(seen.Polls), func(w verdict.Wait) bool { return w.Rank >= 0 && foreign(w.Rank) })
	return seen
}
