// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobdoc is the JSON form of a job that programs read: cohort.job.v1, as reports, "cohort why --json" and
// "cohort ps --json" print it. Its schema is cmd/cohort/internal/schema/cohort.job.v1.json. Fields are only added, the unit
// ends the name of a number, and what is not known is absent.
package jobdoc

import "time"

// Schema is the value of the field "schema".
const Schema = "cohort.job.v1"

// The sources of a document.
const (
	Live   = "live"   // a job that was looked at
	Store  = "store"  // the store of a job whose ranks are elsewhere
	Dumps  = "dumps"  // flight recorders
	Report = "report" // how a job has ended
	Bundle = "bundle" // the report in a folder of evidence
)

// The states of a job, and of an attempt.
const (
	Running     = "running"
	PerhapsHung = "perhaps_hung"
	Hung        = "hung"
	Succeeded   = "succeeded"
	Failed      = "failed"
)

// The phases of a rank that has ended.
const (
	phaseDone    = "done"
	phaseFailed  = "failed"
	phaseStopped = "stopped" // by its launcher, because of another rank or a signal
)

// Document describes a job at one moment.
type Document struct {
	Schema   string    `json:"schema"`
	Source   string    `json:"source"`
	TakenAt  time.Time `json:"taken_at,omitzero"`
	Job      Job       `json:"job"`
	Nodes    []Node    `json:"nodes,omitempty"`
	Ranks    []Rank    `json:"ranks,omitempty"` // of the last attempt
	Waits    []Wait    `json:"waits,omitempty"`
	Attempts []Attempt `json:"attempts,omitempty"`
}

// Job is what concerns all ranks.
type Job struct {
	ID          string         `json:"id,omitempty"`
	Program     string         `json:"program,omitempty"`
	State       string         `json:"state"`
	World       int            `json:"world,omitempty"`
	LocalWorld  int            `json:"local_world,omitempty"`
	Attempt     *int           `json:"attempt,omitempty"`
	MaxRestarts *int           `json:"max_restarts,omitempty"`
	Store       string         `json:"store,omitempty"`
	StartedAt   time.Time      `json:"started_at,omitzero"`
	EndedAt     time.Time      `json:"ended_at,omitzero"`
	RunningS    float64        `json:"running_s,omitempty"`
	Signal      int            `json:"signal,omitempty"`
	SignalName  string         `json:"signal_name,omitempty"`
	ExitCode    *int           `json:"exit_code,omitempty"`
	Counts      map[string]int `json:"counts,omitempty"`
	Activities  map[string]int `json:"activity_counts,omitempty"`
	Verdict     *Verdict       `json:"verdict,omitempty"`
	LogDir      string         `json:"log_dir,omitempty"`
	Bundle      string         `json:"bundle,omitempty"`
}

// Verdict says why a job hangs, or how it has ended.
type Verdict struct {
	Sentence string   `json:"sentence"`
	Hung     bool     `json:"hung"`
	Sure     bool     `json:"sure"`
	Culprits string   `json:"culprits,omitempty"`
	SinceS   float64  `json:"since_s,omitempty"`
	Proof    []string `json:"proof,omitempty"`
}

// Node is a host with ranks.
type Node struct {
	Host  string `json:"host"`
	Ranks string `json:"ranks,omitempty"`
}

// Rank is one rank. Its stack and its flight recorder are only in evidence.
type Rank struct {
	Rank       int       `json:"rank"`
	Host       string    `json:"host,omitempty"`
	LocalRank  *int      `json:"local_rank,omitempty"`
	PID        int       `json:"pid,omitempty"`
	Command    string    `json:"command,omitempty"`
	Phase      string    `json:"phase,omitempty"`
	Activity   string    `json:"activity,omitempty"`
	Mark       string    `json:"mark,omitempty"`
	Where      string    `json:"where,omitempty"`
	IdleS      float64   `json:"idle_s,omitempty"`
	State      string    `json:"process_state,omitempty"`
	Object     string    `json:"object,omitempty"`
	Section    string    `json:"section,omitempty"`
	SectionS   float64   `json:"section_s,omitempty"`
	Step       uint64    `json:"step,omitempty"`
	StepS      float64   `json:"step_s,omitempty"`
	Restarts   *int      `json:"restarts,omitempty"`
	ExitCode   *int      `json:"exit_code,omitempty"`
	Signal     int       `json:"signal,omitempty"`
	SignalName string    `json:"signal_name,omitempty"`
	Cause      *Cause    `json:"cause,omitempty"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	LastStderr string    `json:"last_stderr,omitempty"`
	Stack      string    `json:"stack,omitempty"`
	StackError string    `json:"stack_error,omitempty"`
	Note       string    `json:"note,omitempty"`
	Recorder   []Op      `json:"recorder,omitempty"`
}

// Cause says why a rank has ended.
type Cause struct {
	Kind      string `json:"kind,omitempty"`
	Text      string `json:"text"`
	Exception string `json:"exception,omitempty"`
	Where     string `json:"where,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	Advice    string `json:"advice,omitempty"`
}

// Op is an operation in the flight recorder of a rank.
type Op struct {
	Group    string    `json:"group"`
	Title    string    `json:"title,omitempty"`
	Backend  string    `json:"backend,omitempty"`
	Op       string    `json:"op"`
	Number   int       `json:"number"`
	Message  bool      `json:"message,omitempty"`
	Open     bool      `json:"open"`
	CalledAt time.Time `json:"called_at,omitzero"`
	Sizes    string    `json:"sizes,omitempty"`
	Types    string    `json:"types,omitempty"`
	Peer     *int      `json:"peer,omitempty"`
	Where    string    `json:"where,omitempty"`
}

// Wait is a client of the job's store that waits for a key.
type Wait struct {
	Rank *int    `json:"rank,omitempty"`
	Key  string  `json:"key"`
	AgeS float64 `json:"age_s"`
}

// Attempt is one try to run a job. The last one's ranks and waits are those of the document.
type Attempt struct {
	Attempt    int       `json:"attempt"`
	State      string    `json:"state"`
	Verdict    Verdict   `json:"verdict"`
	World      int       `json:"world,omitempty"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	Signal     int       `json:"signal,omitempty"`
	SignalName string    `json:"signal_name,omitempty"`
	LookedAt   time.Time `json:"looked_at,omitzero"`
	LookS      float64   `json:"look_s,omitempty"`
	Ranks      []Rank    `json:"ranks,omitempty"`
	Waits      []Wait    `json:"waits,omitempty"`
}

// Seconds are those of d, to the microsecond.
func Seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// Duration is the reverse of Seconds.
func Duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Microsecond)
}

// At is a time as the document gives it: in UTC, so that hosts in different zones can be compared.
func At(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Round(0)
}

// Phase is the phase of a rank that has ended for a kind of cause: see package postmortem.
func Phase(kind string) string {
	switch kind {
	case "success":
		return phaseDone
	case "stopped":
		return phaseStopped
	}
	return phaseFailed
}

// Count fills in how many ranks there are of each phase and activity, and the nodes.
func (d *Document) Count() {
	d.Job.Counts, d.Job.Activities = map[string]int{}, map[string]int{}
	for _, r := range d.Ranks {
		if r.Phase != "" {
			d.Job.Counts[r.Phase]++
		}
		if r.Activity != "" {
			d.Job.Activities[r.Activity]++
		}
	}
	d.Nodes = nodesOf(d.Ranks)
}
