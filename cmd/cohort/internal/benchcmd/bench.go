// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package benchcmd is "cohort bench": it measures collectives, calls and training between processes of this machine.
package benchcmd

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

// app carries what the commands share.
type app struct{ *command.App }

// New returns the command.
func New(shared *command.App) *cobra.Command {
	a := &app{shared}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure collectives, calls and training on this machine",
		Long: strings.TrimSpace(`
Each command starts processes on this machine, measures, and prints one JSON object per
value: group, case, peer, value and unit. Names and method are those of bench/peers, so
the rows can be compared with those of PyTorch, OpenMPI and others.`),
		Example: strings.Trim(`
  cohort bench coll --ranks 2
  cohort bench rpc
  cohort bench train`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.collCommand(), a.collRankCommand(), a.rpcCommand(), a.rpcWorkerCommand(), a.trainCommand(), a.trainRankCommand(), a.hopsRankCommand())
	return cmd
}
