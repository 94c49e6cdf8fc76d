// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/internal/cli/command"
)

func (a *app) benchCommand() *cobra.Command {
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
	cmd.AddCommand(a.benchCollCommand(), a.benchCollRankCommand(), a.benchRPCCommand(), a.benchRPCWorkerCommand(), a.benchTrainCommand(), a.benchTrainRankCommand(), a.benchAutogradRankCommand())
	return cmd
}
