// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
)

const helperName = "ask-as"

// helperCommand is what "cohort why" and "cohort ps" start as root for processes of other users; people do not call it.
func (a *app) helperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    helperName + " [PID]",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return jobscan.ServeQuestions(a.In, a.Out)
			}
			pid, err := strconv.Atoi(args[0])
			if err != nil {
				return command.Usage(err)
			}
			return jobscan.BecomeUser(pid, "cohort", helperName)
		},
	}
}

// jobs returns the jobs on this host that args name; all without args. What their processes name is asked with the rights of their
// users until release is called.
func (a *app) jobs(ctx context.Context, args []string) (found []jobscan.Job, release func(), err error) {
	found, err = namedJobs(ctx, args)
	users := jobscan.NewUsers(helperName)
	users.Assign(found)
	return found, users.Close, err
}
