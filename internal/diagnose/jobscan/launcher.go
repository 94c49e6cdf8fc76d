// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

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
