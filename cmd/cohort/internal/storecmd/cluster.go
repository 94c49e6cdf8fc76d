// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/store/cluster"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// clusterFlags make a store one of several that hold the same.
type clusterFlags struct {
	name    string
	members []string // "NAME=HOST:PORT"
	join    []string // "HOST:PORT"
}

func (f *clusterFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "name", "", "this member's name in the cluster")
	flags.StringSliceVar(&f.members, "cluster", nil,
		"all members of a store that several machines keep, `NAME=HOST:PORT,...`; the ports are for the members alone")
	flags.StringSliceVar(&f.join, "join", nil, "members of a cluster that this new one has been added to, `HOST:PORT,...`")
}

func (f *clusterFlags) given() bool { return f.name != "" || len(f.members) > 0 || len(f.join) > 0 }

// config checks the flags and returns what they say.
func (f *clusterFlags) config(dataDir string) (c cluster.Config, err error) {
	c = cluster.Config{Dir: dataDir, Name: f.name, Join: f.join}
	switch {
	case f.name == "":
		err = errors.New("--name is missing: which of the members is this?")
	case dataDir == "":
		err = errors.New("--data-dir is missing: a member keeps in it what it must not forget")
	case len(f.members) > 0 && len(f.join) > 0:
		err = errors.New("--cluster begins a cluster, --join is for a new member of one that exists: give one of them")
	}
	for _, text := range f.members {
		name, addr, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			err = errors.Join(err, fmt.Errorf("--cluster %s: write NAME=HOST:PORT", text))
		}
		c.Members = append(c.Members, cluster.Peer{Name: name, Addr: addr})
	}
	if err != nil {
		return c, command.Usage(err)
	}
	return c, nil
}

// served is a server, alone or of a member.
type served struct {
	server func() *tcpstore.Server
	// ready is closed when there is one.
	ready <-chan struct{}
	// done is closed when it cannot go on, for the reason that why returns.
	done <-chan struct{}
	why  func() error
	end  func()
}

// listen starts the server.
func (a *app) listen(
	ctx context.Context, addr string, flags *serveFlags, opts []tcpstore.ServerOption, log *slog.Logger,
) (s served, err error) {
	if flags.cluster.given() {
		return a.listenMember(ctx, addr, flags, opts, log)
	}
	if flags.dataDir != "" {
		opts = append(opts, tcpstore.WithDataDir(flags.dataDir))
	}
	server, err := tcpstore.Listen(addr, opts...)
	if err != nil {
		return s, portowner.Named(addr, err)
	}
	ready := make(chan struct{})
	close(ready)
	return served{server: func() *tcpstore.Server { return server }, ready: ready, end: func() { _ = server.Close() }}, nil
}

// listenMember starts a member of a cluster and its server.
func (a *app) listenMember(
	ctx context.Context, addr string, flags *serveFlags, opts []tcpstore.ServerOption, log *slog.Logger,
) (s served, err error) {
	config, err := flags.cluster.config(flags.dataDir)
	if err != nil {
		return s, err
	}
	if flags.forget {
		return s, command.Usage(errors.New("--forget cannot be used with --cluster: the members do not know each other's clients"))
	}
	config.Log, config.AllowUIDs = log, flags.users
	store, err := cluster.ServeStore(ctx, cluster.StoreConfig{Config: config, Addr: addr, Options: opts})
	if err != nil {
		return s, portowner.Named(addr, err)
	}
	return served{
		server: store.Server, ready: store.Ready(), done: store.Done(), why: store.Member().Err,
		end: func() { _ = store.Close(context.Background()) }, // it hands over for at most a second
	}, nil
}

func (a *app) memberCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "member",
		Short: "List, add and remove the members of a store that several machines keep",
		Long: strings.TrimSpace(`
List, add and remove the members of a store that several machines keep, while jobs use
it. A store is kept by as many members as "cohort store serve" was given with --cluster,
and goes on as long as more than half of those that vote are alive.

To replace a machine, add the new one, start it with --join, wait until "list" shows it
as a member, and remove the old one. A member that was removed is not let in again: it
needs an empty folder, and to be added.`),
		Example: strings.Trim(`
  cohort store member list --cluster node0:29600
  cohort store member add --cluster node0:29600 d=node3:29600
  cohort store serve --addr node3:29500 --data-dir /var/lib/cohort --name d --join node0:29600
  cohort store member remove --cluster node0:29600 a`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.memberOp("list", "", "Show the members of a cluster, and which of them leads", listMembers),
		a.memberOp("add", "NAME=HOST:PORT", "Add a member, which is then started with --join", addMember),
		a.memberOp("remove", "NAME", "Remove a member; if it leads, another one does first", removeMember),
		a.memberOp("lead", "NAME", "Let a member lead, before the one that leads is stopped", leadMember),
	)
	return cmd
}

// memberRun does one thing with the cluster of some members.
type memberRun func(ctx context.Context, at []string, arg string) error

func listMembers(context.Context, []string, string) error { return nil } // they are shown after every change

func addMember(ctx context.Context, at []string, arg string) error {
	name, addr, ok := strings.Cut(arg, "=")
	if !ok || name == "" {
		return command.Usage(fmt.Errorf("%s: write NAME=HOST:PORT", arg))
	}
	return cluster.Add(ctx, at, nil, cluster.Peer{Name: name, Addr: addr})
}

func removeMember(ctx context.Context, at []string, arg string) error {
	return cluster.Remove(ctx, at, nil, arg)
}

func leadMember(ctx context.Context, at []string, arg string) error {
	return cluster.Transfer(ctx, at, nil, arg)
}

// memberOp makes a command that changes a cluster, and shows its members then.
func (a *app) memberOp(name, arg, short string, run memberRun) *cobra.Command {
	var at []string
	var timeout time.Duration
	args, use := command.Exactly(), name
	if arg != "" {
		args, use = command.Exactly(arg), name+" "+arg
	}
	cmd := &cobra.Command{Use: use, Short: short, Args: args}
	cmd.Flags().StringSliceVar(&at, "cluster", nil, "addresses of members, `[NAME=]HOST:PORT,...`")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up after this time")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(at) == 0 {
			return command.Usage(errors.New("--cluster is missing: name the address of a member"))
		}
		for i, text := range at {
			at[i] = text[strings.Index(text, "=")+1:]
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		if err := run(ctx, at, strings.Join(given, "")); err != nil {
			return err
		}
		status, err := cluster.Describe(ctx, at, nil)
		if err != nil {
			return err
		}
		return a.Print("store.member."+name, memberDocument(status), membersText(status))
	}
	return cmd
}

func memberDocument(s cluster.Status) map[string]any {
	return map[string]any{"leader": s.Leader, "term": s.Term, "committed": s.Committed, "members": s.Members}
}

func membersText(s cluster.Status) string {
	rows := [][]string{{"NAME", "ADDRESS", "ROLE", "HAS"}}
	for _, m := range s.Members {
		role, has := "member", "-"
		switch {
		case m.Name == s.Leader:
			role = "leader"
		case m.Learner:
			role = "learner, no vote yet"
		}
		if s.Leading {
			has = fmt.Sprintf("%d of %d", m.Matched, max(s.Committed, m.Matched))
		}
		rows = append(rows, []string{m.Name, m.Addr, role, has})
	}
	return strings.TrimRight(tui.Columns(rows), "\n")
}
