// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"path/filepath"

	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/launch/supervisor"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// SweepDead ends what is left of this user's runs whose launcher and supervisor were both killed: processes that the workers had started,
// and folders. base is the folder of log files of another run, or "". What it has done it says with logf.
func SweepDead(base string, logf func(format string, args ...any)) {
	for _, dead := range rundir.FindDead(base, supervisor.Runs(controlsock.EnvRun)) {
		sweepDead(dead, logf)
	}
}

func sweepDead(dead *rundir.Dead, logf func(format string, args ...any)) {
	defer dead.Close()
	killed, left, err := supervisor.KillMarked(controlsock.EnvRun + "=" + dead.Path)
	if err != nil {
		return // this process belongs to it
	}
	if killed > 0 {
		logf("killed %d processes that the run %s had left behind: its launcher and its supervisor were killed", killed,
			filepath.Base(dead.Path))
	}
	if left > 0 {
		logf("%d of them do not end", left)
		return
	}
	if err := dead.Remove(); err != nil {
		logf("files of the run %s are left behind: %v", filepath.Base(dead.Path), err)
	}
}
