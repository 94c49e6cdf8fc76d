// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/ncclras"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// A process says in its environment where its store, its sockets, its pipes and its files are. To go there is a [question]: each is asked
// with the rights of the user of that process, who may have named something that only root may touch. What the kernel reports of a
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

const (
	// LauncherSocket is the name of a launcher's socket among those of its workers.
	LauncherSocket = "launcher"
	// Examination is the question to which a launcher answers with a [verdict.Job].
	Examination = "examine"
	// Recordings is the question to which a launcher answers with the flight recorder dumps of its Go ranks: a list of
	// [flightrec.Dump].
	Recordings = "recordings"
	// launcherTime bounds the wait for a launcher, which may ask those of other nodes.
	launcherTime = 15 * time.Second
)

// seenByLauncher asks the launcher of a job, if it is one of cohort's, what its ranks on all nodes are doing. ok is false
// where there is none or it does not answer.
func seenByLauncher(ctx context.Context, j Job) (seen verdict.Job, ok bool) {
	ok = askLauncher(ctx, j, Examination, func(answer []byte) bool {
		return printable.Unmarshal(answer, &seen) == nil && len(seen.Ranks) > 0
	})
	return seen, ok
}

// Recorded returns the flight recorder dumps of the Go ranks of a job: those of all nodes if its launcher is one of cohort's,
// else those of this host.
func Recorded(ctx context.Context, j Job) []flightrec.Dump {
	var dumps []flightrec.Dump
	if askLauncher(ctx, j, Recordings, func(answer []byte) bool { return printable.Unmarshal(answer, &dumps) == nil && len(dumps) > 0 }) {
		return dumps
	}
	return LocalTraces(ctx, j)
}

// LocalTraces returns the flight recorder dumps of the Go ranks of a job that run on this host.
func LocalTraces(ctx context.Context, j Job) []flightrec.Dump {
	var dumps []flightrec.Dump
	for _, r := range j.Ranks {
		dumps = append(dumps, traces(ctx, r)...)
	}
	return dumps
}

// askLauncher asks the launcher of a job until use takes an answer, and reports whether it has.
func askLauncher(ctx context.Context, j Job, text string, use func([]byte) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, launcherTime)
	defer cancel()
	for _, r := range j.Ranks {
		if r.env[controlsock.EnvRun] == "" {
			continue
		}
		dir := controlsock.Folder(func(name string) string { return r.env[name] })
		for _, below := range []string{"", "root"} {
			q := question{What: askSockets, Path: dir, Below: below, Prefix: LauncherSocket, Text: text}
			if slices.ContainsFunc(r.ask(ctx, q).Texts, use) {
				return true
			}
		}
		break // its other ranks have the same launcher
	}
	return false
}

// Look returns what the ranks of a job are doing: what its launcher says, and what can be seen from here. A launcher reaches
// other nodes and may read its workers where others may not; root may read them where the launcher may not.
func Look(ctx context.Context, j Job, apart time.Duration) verdict.Job {
	seen, ok := seenByLauncher(ctx, j)
	if !ok {
		return Examine(ctx, j, apart)
	}
	j.Ranks = slices.DeleteFunc(slices.Clone(j.Ranks), func(r Rank) bool {
		return !slices.ContainsFunc(seen.Ranks, func(s verdict.Rank) bool { return s.PID == r.PID && s.Main == nil && s.Trouble != "" })
	})
	if len(j.Ranks) > 0 {
		seen.Ranks = better(seen.Ranks, Examine(ctx, j, apart).Ranks)
	}
	return seen
}

// better replaces ranks that were not read by those of a second look that were.
func better(ranks, again []verdict.Rank) []verdict.Rank {
	for i, r := range ranks {
		for _, a := range again {
			if a.PID == r.PID && r.Main == nil && a.Main != nil {
				ranks[i] = a
			}
		}
	}
	return ranks
}
