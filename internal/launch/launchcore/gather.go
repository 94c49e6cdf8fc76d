// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launchcore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cohort-dist/cohort"
)

// gather waits for nodes.
func (j *Job) gather() {
	j.phase, j.last = gathering, false
	j.setTimer(j.limits.Join)
	j.tryBegin()
}

// tryBegin begins when enough nodes are there.
func (j *Job) tryBegin() {
	switch n := len(j.members); {
	case n >= j.limits.Max:
		j.begin()
	case n >= j.limits.Min && j.attempt > 0 && !j.lost:
		j.begin() // all that took part before are there
	case n >= j.limits.Min && !j.last:
		j.last = true
		j.setTimer(j.limits.LastCall)
	}
}

func (j *Job) timeUp() {
	if j.phase != gathering {
		return
	}
	if j.last && len(j.members) >= j.limits.Min {
		j.begin()
		return
	}
	if j.last { // a node has left during the last call
		j.last = false
		j.setTimer(j.limits.Join)
		return
	}
	few := fmt.Sprintf("%d of %d nodes joined within %v", len(j.members), j.limits.Min, j.limits.Join)
	if j.why.Sentence != "" { // of the attempt before
		few = fmt.Sprintf("%s; only %d of %d nodes were present %v later", j.why.Sentence, len(j.members), j.limits.Min, j.limits.Join)
	}
	j.finish(End{Code: cohort.DeadlineExceeded, Sentence: few})
}

// begin starts an attempt with at most Max nodes; the others are spares.
func (j *Job) begin() {
	j.phase, j.lost, j.why, j.counted, j.waits = active, false, Failure{}, false, false
	order := slices.Clone(j.members)
	// Those that took part keep their order; then wishes; then as they came.
	slices.SortStableFunc(order, func(a, b *member) int {
		return cmp.Or(cmp.Compare(rank(a.place), rank(b.place)), cmp.Compare(rank(a.wish), rank(b.wish)), cmp.Compare(a.id, b.id))
	})
	for _, m := range order[min(len(order), j.limits.Max):] {
		m.place = -1
	}
	order = order[:min(len(order), j.limits.Max)]
	world, roles := 0, map[string]int{}
	for _, m := range order {
		world += m.workers
		for _, r := range m.roles {
			roles[r.Name] += r.Workers
		}
	}
	j.do(OpenStore{j.attempt})
	base, roleBase := 0, map[string]int{}
	for i, m := range order {
		m.state, m.ok, m.place = runningNode, false, i
		a := Assignment{Attempt: j.attempt, Node: i, Nodes: len(order), Base: base, World: world, Restarts: j.restarts}
		for _, r := range m.roles {
			a.Roles = append(a.Roles, RolePlace{r.Name, roleBase[r.Name], roles[r.Name]})
			roleBase[r.Name] += r.Workers
		}
		j.do(BeginNode{m.id, a})
		base += m.workers
	}
	j.attempt++
}

// rank sorts those without a number behind all others.
func rank(n int) int {
	if n < 0 {
		return 1 << 30
	}
	return n
}

// Resume takes up a job in the middle, instead of [Job.Start]: these nodes, in the order of their places, run an attempt that an
// earlier machine began, after so many restarts. It has no effects.
func (j *Job) Resume(nodes []Node, restarts int) {
	j.phase, j.restarts, j.attempt = active, restarts, 1
	for i, n := range nodes {
		j.members = append(j.members, &member{id: n, roles: []Role{{Workers: 1}}, workers: 1, wish: -1, place: i, state: runningNode})
	}
}
