// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storecmd is "cohort store": serve a store, look into one, change it.
package storecmd

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// app carries what the commands share.
type app struct{ *command.App }

// New returns the command.
func New(shared *command.App) *cobra.Command {
	a := &app{shared}
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Serve a store, or read and change one",
		Long: strings.TrimSpace(`
Commands for the store through which the processes of a job find each other. They
work with cohort's store and with the TCPStore of PyTorch 1.13 and 2.x, and detect
which it is.

Keys are written as in Python: store.set("epoch", "3") is the key epoch. On the
wire PyTorch puts "/" in front of it. --raw takes and shows keys as they are on the
wire, and so also reaches "init/", the number of workers that have joined. Process
groups prefix their keys: "cohort store keys" shows them.`),
		Example: strings.Trim(`
  cohort store serve --addr 0.0.0.0:29500 --http 127.0.0.1:9090
  cohort store set --addr node0:29500 epoch 3
  cohort store wait --timeout 1m ready/0 ready/1
  cohort store top`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.serveCommand(), a.getCommand(), a.setCommand(), a.addCommand(), a.casCommand(), a.appendCommand(),
		a.waitCommand(), a.deleteCommand(), a.keysCommand(), a.clearCommand(), a.topCommand())
	return cmd
}

// storeOp completes a command that does one thing with a store: it adds the flags, connects, and has run do the thing.
func (a *app) storeOp(cmd *cobra.Command, run func(ctx context.Context, s *tcpstore.Client, args []string) error) *cobra.Command {
	var flags command.StoreFlags
	flags.Bind(a.App, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.WithStore(cmd.Context(), a.App, func(ctx context.Context, s *tcpstore.Client) error { return run(ctx, s, args) })
	}
	return cmd
}
