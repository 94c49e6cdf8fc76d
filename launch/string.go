// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// String says how a program is run.
func (h How) String() string {
	switch h {
	case Auto:
		return "auto"
	case Script:
		return "script"
	case Module:
		return "module"
	case Executable:
		return "executable"
	}
	return "how " + strconv.Itoa(int(h))
}

// String says who hosts.
func (h Hosting) String() string {
	switch h {
	case HostAuto:
		return "auto"
	case HostAlways:
		return "always"
	case HostNever:
		return "never"
	}
	return "hosting " + strconv.Itoa(int(h))
}

// String names the streams.
func (s Std) String() string {
	switch s {
	case StdNone:
		return "none"
	case StdOut:
		return "stdout"
	case StdErr:
		return "stderr"
	case StdAll:
		return "stdout and stderr"
	}
	return "streams " + strconv.Itoa(int(s))
}

// String says what the worker does.
func (p WorkerPhase) String() string {
	switch p {
	case WorkerStarting:
		return "starting"
	case WorkerRunning:
		return "running"
	case WorkerStopping:
		return "stopping"
	case WorkerDone:
		return "done"
	case WorkerFailed:
		return "failed"
	}
	return "phase " + strconv.Itoa(int(p))
}

// String says what is run, and how many times.
func (c Config) String() string {
	if len(c.Roles) > 0 {
		return fmt.Sprintf("launch of %d roles", len(c.Roles))
	}
	return fmt.Sprintf("launch of %d workers: %s", c.Workers, strings.Join(c.Program, " "))
}

// String says how the job ended, in one line.
func (r *Report) String() string {
	switch {
	case r.Succeeded:
		return "job " + r.RunID + " succeeded"
	case r.Sentence != "":
		return "job " + r.RunID + " failed: " + r.Sentence
	}
	return "job " + r.RunID + " failed"
}
