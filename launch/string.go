// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// String says how a program is run.
func (h How) String() string {
	return named(h, "how", map[How]string{Auto: "auto", Script: "script", Module: "module", Executable: "executable"})
}

// String says who hosts.
func (h Hosting) String() string {
	return named(h, "hosting", map[Hosting]string{HostAuto: "auto", HostAlways: "always", HostNever: "never"})
}

// String names the streams.
func (s Std) String() string {
	return named(s, "streams", map[Std]string{StdNone: "none", StdOut: "stdout", StdErr: "stderr", StdAll: "stdout and stderr"})
}

// String says what the worker does.
func (p WorkerPhase) String() string {
	return named(p, "phase", map[WorkerPhase]string{
		WorkerStarting: "starting", WorkerRunning: "running", WorkerStopping: "stopping", WorkerDone: "done", WorkerFailed: "failed",
	})
}

// named returns the name of a number that stands for something.
func named[T ~int](n T, kind string, names map[T]string) string {
	return cmp.Or(names[n], kind+" "+strconv.Itoa(int(n)))
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
