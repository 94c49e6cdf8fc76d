// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"path/filepath"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
)

// openEvents begins the log of events, if one is wanted.
func (j *Job) openEvents() {
	if j.cfg.Events {
		j.events = newEventLog(j.screen.err, eventJob{
			RunID: j.cfg.RunID, Role: j.cfg.Roles[0].Name, Host: j.host, Backend: j.cfg.Backend, Program: filepath.Base(j.cfg.command(0)[0]), Started: j.cfg.Started,
		})
	}
}

// beginEvents records that an attempt begins. The nodes have met since the last one ended.
func (j *Job) beginEvents(p place) {
	j.events.begun(eventPlace{Restarts: p.attempt, Node: p.node, Nodes: p.nodes}, time.Since(j.lastEnd))
}

// eventOf describes a worker for the log of events.
func (a *attempt) eventOf(w *worker) eventWorker {
	role, number := a.job.cfg.roleOf(w.local)
	in := a.place.role(role.Name)
	return eventWorker{Role: role.Name, Rank: int(w.rank), Local: w.local, RoleRank: in.Base + number, RoleWorld: in.World, PID: w.pid}
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

// RecordEnd writes the end of the job on this node to the log of events.
func (j *Job) RecordEnd(succeeded bool, sentence string) {
	switch {
	case j.end.Signal != 0:
		j.events.failed("ended by " + postmortem.Code(-j.end.Signal))
	case len(j.last) == 0:
		j.events.failed(sentence)
	default:
		j.events.ended(j.last, succeeded)
	}
}
