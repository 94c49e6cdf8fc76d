// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpccmd is "cohort rpc": look into an RPC world, and call its workers.
package rpccmd

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
		Use:   "rpc",
		Short: "Inspect an RPC world and call its workers",
		Long: strings.TrimSpace(`
Commands for the RPC workers, of torch.distributed.rpc and of Go programs, that use a
store. "ls" only reads the store and contacts no worker. "call", "refs" and "stubs"
talk to the workers themselves.

Every init_rpc of a process has its own keys in the store: rpc_prefix_0 for the first.
The commands use the latest; --round selects another.`),
		Example: strings.Trim(`
  cohort rpc ls --addr node0:29500
  cohort rpc call trainer1 stats.mean '[1, 2, 3]'
  cohort rpc refs ps
  cohort rpc stubs ps --out stubs`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.rpcListCommand(), a.rpcCallCommand(), a.rpcRefsCommand(), a.rpcStubsCommand())
	return cmd
}

// rpcFlags are the flags of every command that looks into an RPC world.
type rpcFlags struct {
	command.StoreFlags
	round int
}

// Bind adds the flags to cmd.
func (f *rpcFlags) Bind(a *command.App, cmd *cobra.Command) {
	f.StoreFlags.Bind(a, cmd)
	_ = cmd.Flags().MarkHidden("raw")
	cmd.Flags().IntVar(&f.round, "round", -1, "the number of the init_rpc, from 0; -1 is the latest")
}
