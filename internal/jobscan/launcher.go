// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/internal/control"
	"github.com/cohort-dist/cohort/internal/verdict"
)

const (
	// LauncherSocket is the name of a launcher's socket among those of its workers.
	LauncherSocket = "launcher"
	// Examination is the question to which a launcher answers with a [verdict.Job].
	Examination = "examine"
	// launcherTime bounds the wait for a launcher, which may ask those of other nodes.
	launcherTime = 8 * time.Second
)

// AskLauncher asks the launcher of a job, if it is one of cohort's, what its ranks on all nodes are doing. ok is false
// where there is none or it does not answer.
func AskLauncher(ctx context.Context, j Job) (seen verdict.Job, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, launcherTime)
	defer cancel()
	for _, r := range j.Ranks {
		if r.env[control.EnvRun] == "" {
			continue
		}
		dir := control.Folder(func(name string) string { return r.env[name] })
		for _, path := range []string{dir, filepath.Join("/proc", strconv.Itoa(r.PID), "root", dir)} {
			for _, answer := range control.Ask(ctx, path, LauncherSocket, Examination) {
				if json.Unmarshal(answer, &seen) == nil && len(seen.Ranks) > 0 {
					return seen, true
				}
			}
		}
		break // its other ranks have the same launcher
	}
	return verdict.Job{}, false
}

// Look returns what the ranks of a job are doing: what its launcher says, or what can be seen from here.
func Look(ctx context.Context, j Job, apart time.Duration) verdict.Job {
	if seen, ok := AskLauncher(ctx, j); ok {
		return seen
	}
	return Examine(ctx, j, apart)
}
