// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launchcore

// Resume takes up a job in the middle, instead of [Job.Start]: these nodes, in the order of their places, run an attempt that an
// earlier machine began, after so many restarts. It has no effects.
func (j *Job) Resume(nodes []Node, restarts int) {
	j.phase, j.restarts, j.attempt = active, restarts, 1
	for i, n := range nodes {
		j.members = append(j.members, &member{id: n, roles: []Role{{Workers: 1}}, workers: 1, wish: -1, place: i, state: runningNode})
	}
}
