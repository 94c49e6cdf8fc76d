// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/cohort-dist/cohort/internal/diagnose/ncclras"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// A process says in its environment where its store, its sockets, its pipes and its files are. To go there is a [question]: each is asked
// with the rights of the user of that process, who may have named something that only root may touch. What the kernel tells of a
// process is read directly.

// what is asked.
const (
	askNothing  = "nothing"  // Yes
	askSockets  = "sockets"  // control sockets in Path whose names begin with Prefix, for Text
	askLine     = "line"     // what the file Path has in line Line, and the rest of the call that begins there
	askRecorder = "recorder" // the flight recorder of a rank of PyTorch
	askRAS      = "ras"      // NCCL's own network at Addr
	askWaits    = "waits"    // who waits at the store at Addr
	askTrouble  = "trouble"  // why the store at Addr cannot be reached
	askOldKeys  = "old keys" // whether the store at Addr has keys of an attempt before
	askNoStore  = "no store" // who listens at Addr and is not a store
)

// question has what its kind needs. Env, Rank and PID are those of a rank; Ranks and World those of its job.
type question struct {
	What   string            `json:"what"`
	Addr   string            `json:"addr,omitempty"`
	Path   string            `json:"path,omitempty"`
	Below  string            `json:"below,omitempty"` // Path is below this folder of the process in /proc: "root", "cwd"
	Line   int               `json:"line,omitempty"`
	Prefix string            `json:"prefix,omitempty"`
	Text   string            `json:"text,omitempty"`
	Env    map[string]string `json:"env,omitempty"`
	Rank   int               `json:"rank,omitempty"`
	PID    int               `json:"pid,omitempty"`
	Notes  bool              `json:"notes,omitempty"` // the rank may write into its log that it was asked
	World  int               `json:"world,omitempty"`
	Ranks  []int             `json:"ranks,omitempty"`
	PIDs   []int             `json:"pids,omitempty"`
}

// path is where Path is.
func (q question) path() string {
	if q.Below == "" {
		return q.Path
	}
	return filepath.Join("/proc", strconv.Itoa(q.PID), q.Below, q.Path)
}

// answer has what was asked for; the zero value means that there is none.
type answer struct {
	Texts     [][]byte        `json:"texts,omitempty"`
	Dump      *torchdump.Dump `json:"dump,omitempty"`
	Report    *ncclras.Report `json:"report,omitempty"`
	RASText   []string        `json:"ras_text,omitempty"` // of Report
	StoreSaid *storeSaid      `json:"store,omitempty"`
	Said      string          `json:"said,omitempty"`
	Yes       bool            `json:"yes,omitempty"`
}

// asker asks questions.
type asker interface {
	ask(ctx context.Context, q question) answer
}

// directly asks with the rights of this process.
func directly(ctx context.Context, q question) (a answer) {
	switch q.What {
	case askNothing:
		a.Yes = true
	case askSockets:
		a.Texts = controlsock.Ask(ctx, q.path(), q.Prefix, q.Text)
	case askLine:
		a.Said = lineOf(q.path(), q.Line)
	case askRecorder:
		a.Dump = recorded(ctx, q)
	case askRAS:
		if report, err := ncclras.Ask(ctx, q.Addr); err == nil { // else it is switched off, older than 2.24, or has no communicator yet
			a.Report, a.RASText = report, report.Text
		}
	case askWaits:
		said := askStoreWaits(ctx, q.Addr)
		a.StoreSaid = &said
	case askTrouble:
		a.Said = storeTrouble(ctx, q.Addr)
	case askOldKeys:
		a.Yes = oldKeys(ctx, q)
	case askNoStore:
		a.Said = noStore(ctx, q.Addr, q.PIDs)
	}
	return a
}

// ask asks a question about a rank.
func (r Rank) ask(ctx context.Context, q question) answer {
	q.Rank, q.PID, q.Env = r.Rank, r.PID, r.env
	if r.as == nil {
		return directly(ctx, q)
	}
	return r.as.ask(ctx, q)
}

// ask asks a question about a job: its first rank is asked about.
func (j *Job) ask(ctx context.Context, q question) answer {
	if len(j.Ranks) == 0 {
		return directly(ctx, q)
	}
	q.World, q.Ranks = j.World, make([]int, len(j.Ranks))
	for i, r := range j.Ranks {
		q.Ranks[i] = r.Rank
	}
	return j.Ranks[0].ask(ctx, q)
}
