// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/runflags"
	"github.com/cohort-dist/cohort/elastic"
)

type coordinateFlags struct {
	addr, members, prefix             string
	connect                           time.Duration
	join, lastCall, silence, patience time.Duration
	failures                          int
	quiet                             bool
}

func (a *app) coordinateCommand() *cobra.Command {
	var f coordinateFlags
	cmd := &cobra.Command{
		Use:   "coordinate --members [MIN:]MAX",
		Short: "Decide who is in a group that is reconfigured when a member dies",
		Long: strings.TrimSpace(`
Decide which processes are members of a group that changes while they run: dead members
leave, spares take their place, and the others keep their order. The members are Go
programs (package elastic) or PyTorch scripts (cohort_dist.elastic of the Python wheel).
They find the coordinator through a store that all of them can reach.

The command ends when all members have finished. If it dies, start it again with the same
arguments: the group continues in the meantime, and the new coordinator takes over. If two
run at the same time, the later one decides and the earlier one ends.

"cohort run --members" has its own coordinator and does not need this command, unless
--rdzv-endpoint is the address of a store that is already running.`),
		Example: strings.Trim(`
  cohort store serve --addr 10.0.0.1:29500
  cohort coordinate --addr node0:29500 --members 4        four members, all others are spares
  cohort coordinate --addr node0:29500 --members 2:4      continue with two if no more are left`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.coordinate(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.addr, "addr", "", `address of the store, HOST:PORT (default: MASTER_ADDR and MASTER_PORT, else 127.0.0.1:29500)`)
	flags.StringVar(&f.members, "members", "", "size of the group, N or MIN:MAX (required)")
	flags.StringVar(&f.prefix, "prefix", elastic.DefaultPrefix, "prefix of the keys in the store, for several groups in one store")
	flags.DurationVar(&f.connect, "timeout", 10*time.Second, "how long to connect to the store")
	flags.DurationVar(&f.join, "join-timeout", 10*time.Minute, "how long to wait for MIN members")
	flags.DurationVar(&f.lastCall, "last-call", 5*time.Second, "how long to wait for more members once there are MIN")
	flags.DurationVar(&f.silence, "silence", 10*time.Second, "after how long without a sign of life a member counts as dead")
	flags.DurationVar(&f.patience, "patience", 5*time.Minute, "how long members may take to ask again after a round has ended")
	flags.IntVar(&f.failures, "max-failures", -1, "how many rounds may fail; -1 for any number")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "log only warnings")
	return cmd
}

func (a *app) coordinate(ctx context.Context, f coordinateFlags) error {
	if f.members == "" {
		return command.Usage(errors.New("--members is missing: the size of the group, N or MIN:MAX"))
	}
	low, high, err := runflags.Range("members", f.members)
	if err != nil {
		return command.Usage(err)
	}
	addr, err := command.StoreAddr(f.addr, a.Getenv)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.quiet {
		level = slog.LevelWarn
	}
	logger := slog.New(a.LogHandler(level))
	options := []elastic.CoordinatorOption{
		elastic.WithPrefix(f.prefix), elastic.WithJoinTimeout(f.join), elastic.WithLastCall(f.lastCall), elastic.WithSilence(f.silence),
		elastic.WithPatience(f.patience), elastic.WithLogger(logger),
	}
	if f.failures >= 0 {
		options = append(options, elastic.WithMaxFailures(f.failures))
	}
	connecting, cancel := context.WithTimeout(ctx, f.connect)
	defer cancel()
	client, err := a.DialStore(connecting, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	c, err := elastic.New(client, low, high, options...)
	if err != nil {
		return command.Usage(err)
	}
	logger.Info("coordinator", slog.String("store", addr), slog.String("members", f.members))
	if err = c.Run(ctx); err != nil {
		return err
	}
	logger.Info("all members have finished")
	return nil
}
