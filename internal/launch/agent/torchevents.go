// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
)

// eventJob is what all events of a launcher have in common.
type eventJob struct {
	RunID, Role, Host string
	// Backend is the name of the rendezvous, Program that of what the workers run.
	Backend, Program string
	Started          time.Time
}

// eventPlace is where this launcher stands in an attempt.
type eventPlace struct{ Restarts, Node, Nodes int }

// eventWorker is a worker, with its end if it has one.
type eventWorker struct {
	Role                                  string
	Rank, Local, RoleRank, RoleWorld, PID int
	// Code is the exit status, or -N for signal N; Error what it has left in its error file, nil for nothing.
	Code  int
	Error json.RawMessage
}

// eventLog writes what happens to a job in the format of torchrun's --event-log-handler console: a JSON object a line. It
// corresponds to torch.distributed.elastic.events and to what the agent records there. A nil eventLog writes nothing.
type eventLog struct {
	w     io.Writer
	job   eventJob
	place *eventPlace // of the attempt, nil before the first
	total int         // seconds that the job ran, known at its end
}

// newEventLog returns a log that writes to w. Each event is one write.
func newEventLog(w io.Writer, job eventJob) *eventLog { return &eventLog{w: w, job: job} }

// event and metadata have their fields in PyTorch's order.
type event struct {
	Name      string   `json:"name"`
	Source    string   `json:"source"`
	Timestamp int      `json:"timestamp"` // always 0, as PyTorch's
	Metadata  metadata `json:"metadata"`
}

type metadata struct {
	RunID      string   `json:"run_id"`
	GlobalRank *int     `json:"global_rank"`
	GroupRank  *int     `json:"group_rank"`
	WorkerID   *string  `json:"worker_id"`
	Role       string   `json:"role"`
	Hostname   string   `json:"hostname"`
	State      string   `json:"state"`
	TotalTime  int      `json:"total_run_time"`
	Backend    string   `json:"rdzv_backend"`
	RawError   *string  `json:"raw_error"`
	Metadata   string   `json:"metadata"`
	Restarts   int      `json:"agent_restarts"`
	Duration   *float64 `json:"duration_ms"`
}

// details are the text in metadata's field of that name. PyTorch's values are tuples by mistake, so they are lists here.
type details struct {
	GroupWorld *int   `json:"group_world_size"`
	EntryPoint string `json:"entry_point"`
	*workerDetails
}

type workerDetails struct {
	LocalRank [1]int  `json:"local_rank"`
	RoleRank  [1]int  `json:"role_rank"`
	RoleWorld [1]int  `json:"role_world_size"`
	ExitCode  [1]*int `json:"exit_code"`
	PID       [1]*int `json:"worker_pid"`
}

// begun records that an attempt begins: the nodes have met, which took so long, and have their ranks.
func (l *eventLog) begun(p eventPlace, took time.Duration) {
	if l == nil {
		return
	}
	before := l.place
	for _, state := range []string{"RENDEZVOUS", "ASSIGN_WORKER_RANKS"} {
		duration := float64(took) / float64(time.Millisecond)
		l.record("AGENT", state, &p, func(m *metadata, d *details) {
			m.GroupRank, d.GroupWorld = nil, nil // those of the attempt before, as in PyTorch
			if before != nil {
				m.GroupRank, d.GroupWorld = &before.Node, &before.Nodes
			}
			m.Duration = &duration
		})
		took = 0
	}
	l.place = &p
}

// started records that a worker runs.
func (l *eventLog) started(w eventWorker) {
	if l != nil {
		l.record("WORKER", "START", l.place, func(m *metadata, d *details) { w.describe(m, d) })
	}
}

// ended records how the workers of the last attempt have ended, and that the launcher has done its work, whether they succeeded or not.
func (l *eventLog) ended(workers []eventWorker, succeeded bool) {
	if l == nil {
		return
	}
	l.total = int(time.Since(l.job.Started).Seconds())
	for _, w := range workers {
		state := "SUCCEEDED"
		switch {
		case w.Code != 0:
			state = "FAILED"
		case !succeeded:
			state = "TERMINATED" // PyTorch's word for one that has not failed by itself
		}
		l.record("WORKER", state, l.place, func(m *metadata, d *details) {
			w.describe(m, d)
			if w.Code == 0 {
				return
			}
			d.ExitCode[0], d.PID[0] = &w.Code, &w.PID
			text := `{"message": "<NONE>"}`
			if json.Valid(w.Error) {
				text = string(w.Error)
			}
			m.RawError = &text
		})
	}
	l.record("AGENT", "SUCCEEDED", l.place, func(*metadata, *details) {})
}

// failed records that the launcher was ended, by a signal or for its own reason.
func (l *eventLog) failed(why string) {
	if l == nil {
		return
	}
	l.total = int(time.Since(l.job.Started).Seconds())
	l.record("AGENT", "FAILED", l.place, func(m *metadata, _ *details) { m.RawError = &why })
}

func (w *eventWorker) describe(m *metadata, d *details) {
	id := strconv.Itoa(w.PID)
	m.GlobalRank, m.WorkerID, m.Role = &w.Rank, &id, w.Role
	d.workerDetails = &workerDetails{LocalRank: [1]int{w.Local}, RoleRank: [1]int{w.RoleRank}, RoleWorld: [1]int{w.RoleWorld}}
}

// record writes one event; more adds what only some have.
func (l *eventLog) record(source, state string, p *eventPlace, more func(*metadata, *details)) {
	m := metadata{RunID: l.job.RunID, Role: l.job.Role, Hostname: l.job.Host, State: state, TotalTime: l.total, Backend: l.job.Backend}
	d := details{EntryPoint: l.job.Program}
	if p != nil {
		m.GroupRank, d.GroupWorld, m.Restarts = &p.Node, &p.Nodes, p.Restarts
	}
	more(&m, &d)
	text, _ := json.Marshal(d) // numbers and texts
	m.Metadata = string(text)
	line, _ := json.Marshal(event{Name: "torchelastic.worker.status." + state, Source: source, Metadata: m})
	_, _ = l.w.Write(append(line, '\n'))
}

// openEvents begins the log of events, if one is wanted.
func (j *Job) openEvents() {
	if j.cfg.Events {
		j.events = newEventLog(j.screen.err, eventJob{
			RunID: j.cfg.RunID, Role: j.cfg.Roles[0].Name, Host: j.host, Backend: j.cfg.Backend,
			Program: filepath.Base(j.cfg.command(0)[0]), Started: j.cfg.Started,
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
