// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/progresspage"
)

// reported reads what a process says of itself.
func reported(proc string, pid int) verdict.Reported {
	page, found := progresspage.Find(proc, pid, ownPID(proc, pid))
	if !found {
		return verdict.Reported{}
	}
	r := verdict.Reported{Steps: page.Steps, StepAge: progresspage.Age(page.Stepped)}
	if s, in := page.Innermost(); in {
		r.Section, r.SectionAge = s.Name, progresspage.Age(s.Since)
	}
	return r
}

// ReportedBy returns what a process on this host says of itself.
func ReportedBy(pid int) verdict.Reported { return reported("/proc", pid) }

// Reported returns what each rank of a job says of itself.
func Reported(j Job) []verdict.Reported {
	all := make([]verdict.Reported, len(j.Ranks))
	for i, r := range j.Ranks {
		all[i] = reported("/proc", r.PID)
	}
	return all
}
