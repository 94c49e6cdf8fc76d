// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"path/filepath"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/launch/torchevents"
)

// openEvents begins the log of events, if one is wanted.
func (j *job) openEvents() {
	if j.cfg.Events {
		j.events = torchevents.New(j.screen.err, torchevents.Job{
			RunID: j.cfg.RunID, Role: j.cfg.Role, Host: j.host, Backend: j.cfg.Backend, Program: filepath.Base(j.cfg.command(0)[0]), Started: j.report.Started,
		})
	}
}

// beginEvents records that an attempt begins. The nodes have met since the last one ended.
func (j *job) beginEvents(p place) {
	since := j.report.Started
	if n := len(j.report.Attempts); n > 0 {
		since = j.report.Attempts[n-1].Ended
	}
	j.events.Begun(torchevents.Place{Restarts: p.attempt, Node: p.node, Nodes: p.nodes}, time.Since(since))
}

// eventOf describes a worker for the log of events.
func (a *attempt) eventOf(w *worker) torchevents.Worker {
	role, number := a.job.cfg.roleOf(w.local)
	in := a.place.role(role.Name)
	return torchevents.Worker{Role: role.Name, Rank: int(w.rank), Local: w.local, RoleRank: in.Base + number, RoleWorld: in.World, PID: w.pid}
}

// keepEvents remembers how the workers of an attempt have ended, while what they have left in their files is there.
func (a *attempt) keepEvents(ends []WorkerEnd) {
	if a.job.events == nil {
		return
	}
	a.job.last = a.job.last[:0]
	for i, w := range a.workers {
		e := a.eventOf(w)
		e.Code = ends[i].Code
		e.Error = a.job.run.Error(a.place.attempt, w.local)
		a.job.last = append(a.job.last, e)
	}
}

// closeEvents records the end of the job on this node.
func (j *job) closeEvents() {
	switch {
	case j.report.Signal != 0:
		j.events.Failed("ended by " + postmortem.Code(-j.report.Signal))
	case len(j.last) == 0:
		j.events.Failed(j.report.Sentence)
	default:
		j.events.Ended(j.last, j.report.Succeeded)
	}
}
