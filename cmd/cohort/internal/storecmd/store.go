// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storecmd is "cohort store": serve a store, look into one, change it.
package storecmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
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
  cohort store serve --addr 10.0.0.1:29500 --http 127.0.0.1:9090
  cohort store gateway --upstream 10.0.0.1:29500
  cohort store set --addr node0:29500 epoch 3
  cohort store wait --timeout 1m ready/0 ready/1
  cohort store top`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.serveCommand(), a.gatewayCommand(), a.getCommand(), a.setCommand(), a.addCommand(), a.casCommand(), a.appendCommand(),
		a.waitCommand(), a.deleteCommand(), a.keysCommand(), a.clearCommand(), a.memberCommand(), a.topCommand(),
		a.backupCommand(), a.restoreCommand(), a.checkCommand())
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

func (a *app) clearCommand() *cobra.Command {
	var yes bool
	var flags command.StoreFlags
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Remove everything from a store, so that the next run starts with an empty one",
		Long: strings.TrimSpace(`
Remove all keys, queues and claims from a cohort store, as if it had been restarted.
The command first shows what the store holds, and does nothing without --yes or, on a
terminal, the answer "yes".

Processes that still use the store lose it: PyTorch processes are disconnected, and Go
processes get an error that says that the store was replaced.

PyTorch's own stores cannot be cleared: restart the process that hosts the store.`),
		Example: strings.Trim(`
  cohort store clear --addr node0:29500
  cohort store clear --addr node0:29500 --yes`, "\n"),
		Args: command.Exactly(),
	}
	flags.Bind(a.App, cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.clear(cmd.Context(), &flags, yes) }
	return cmd
}

// clear looks first, asks, and then clears exactly what it has looked at.
func (a *app) clear(ctx context.Context, flags *command.StoreFlags, yes bool) error {
	var id tcpstore.Identity
	var stats tcpstore.Stats
	err := flags.WithStore(ctx, a.App, func(ctx context.Context, s *tcpstore.Client) (err error) {
		if id, _, err = s.Hello(ctx); err != nil {
			return clearError(s.Addr(), err)
		}
		stats, err = s.Stats(ctx)
		return err
	})
	if err != nil {
		return err
	}
	clients := stats.Clients() - 1 // without this one
	if !yes {
		if err := a.confirm(fmt.Sprintf("Remove %s and %s from the store at %s, which has %s?",
			tui.Plural(stats.Keys, "key"), tui.Plural(stats.Queues, "queue"), flags.Addr,
			tui.Plural(clients, "other connection"))); err != nil {
			return err
		}
	}
	return flags.WithStore(ctx, a.App, func(ctx context.Context, s *tcpstore.Client) error {
		n, err := s.Clear(ctx, id)
		if errors.Is(err, cohort.InvalidArgument) {
			return fmt.Errorf("the store at %s was cleared or restarted by another process in the meantime; nothing was done", s.Addr())
		}
		if err != nil {
			return clearError(s.Addr(), err)
		}
		return a.Print("store.clear", map[string]any{"cleared": n, "connections": clients},
			fmt.Sprintf("cleared: keys and queues removed: %d", n))
	})
}

func clearError(addr string, err error) error {
	if !errors.Is(err, cohort.NotSupported) {
		return err
	}
	return fmt.Errorf("the store at %s is PyTorch's own, which cannot be cleared: restart the process that has it, or delete keys "+
		"(cohort store delete): %w", addr, cohort.NotSupported)
}

// confirm asks a person; where there is none, a flag has to say it.
func (a *app) confirm(question string) error {
	in, is := a.In.(*os.File)
	if !is || !term.IsTerminal(int(in.Fd())) || a.JSON {
		return command.Usage(fmt.Errorf("%s Give --yes to do it", question))
	}
	_, _ = fmt.Fprintf(a.Err, "%s Type yes to do it: ", question)
	answer, _ := bufio.NewReader(a.In).ReadString('\n')
	if strings.TrimSpace(strings.ToLower(answer)) != "yes" {
		return errors.New("nothing was cleared")
	}
	return nil
}
