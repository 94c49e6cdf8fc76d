// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

// Activity is what a rank does, in a word that programs know, and where.
type Activity struct {
	Rank int
	// Doing is "compute", "collective", "p2p", "store", "rpc", "io", "sleep", "gpu_wait" or "stopped"; "" if it is not known.
	Doing string
	// Where is the call of the program: "load_batch (train.py:12)".
	Where string
}

// activities says what each rank does whose stack could be read.
func (c *analysis) activities() []Activity {
	var all []Activity
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			continue
		}
		p, a := c.at[r.Rank], Activity{Rank: r.Rank, Doing: activityOf(r, c.at[r.Rank])}
		if p.class != unknown {
			a.Where = p.where()
		}
		if a.Doing != "" || a.Where != "" {
			all = append(all, a)
		}
	}
	return all
}

// activityOf is the word for what a rank does.
func activityOf(r Rank, p position) string {
	switch {
	case r.State == "T" || r.State == "t" || r.Frozen:
		return "stopped"
	case r.polls != nil:
		return "store"
	}
	switch p.class {
	case inInit, inNewGroup:
		return "store"
	case inMessage:
		return "p2p"
	case inCollective, inWork:
		return "collective"
	case inGPU:
		return "gpu_wait"
	case inRPC:
		return "rpc"
	case inProgram:
		return programActivity(r)
	default:
		return ""
	}
}

// programActivity is the word for a rank that is in code of its own.
func programActivity(r Rank) string {
	if r.atWork() {
		return "compute"
	}
	if r.Sleeps {
		return "sleep"
	}
	if r.Main == nil {
		return ""
	}
	switch kernelWait(r.Main, r.Object) {
	case "", "waiting for a child process":
		return ""
	case inSleep:
		return "sleep"
	}
	return "io"
}
