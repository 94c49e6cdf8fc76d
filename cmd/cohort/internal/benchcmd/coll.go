// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
)

type collOptions struct {
	ranks     int
	transport string
	peer      string
	scale     float64
	only      string
	cost      bool
	busy      int
	garbage   int
}

func (a *app) collCommand() *cobra.Command {
	var o collOptions
	cmd := &cobra.Command{
		Use:   "coll",
		Short: "Measure collectives between processes of this machine",
		Long: strings.TrimSpace(`
Start --ranks processes that form a group, and measure barrier, all-reduce, broadcast,
all-gather, reduce-scatter, all-to-all and, with two ranks, ping-pong, on ordinary Go
slices. The size is that of the tensor of all-reduce and broadcast, of a rank's input to
all-gather, of its output from reduce-scatter, and of what it sends in an all-to-all. With
four or more ranks, "halves" is an all-reduce in two sub-groups at the same time, each
with half of the ranks.

Each value is one line of JSON: group, case, peer, value and unit, with the names and the
method of bench/peers, so that they can be compared with PyTorch and OpenMPI. Process ids
and the transport that the group chose go to standard error.

With shared memory the cases run a second time on tensors in the shared segment
(Group.NewTensor); their names contain "inseg".

With --cost each case also prints what an operation costs the most expensive rank:
processor time over wall time of all threads (cores), processor time (cpu), context
switches of all threads, allocations, and the system calls with which the group waits and
wakes others: futex (shared memory), epoll (sockets) and yields of the core. The Go
runtime's own calls show only in the context switches; on gloo it makes all of them, so
there are no such rows. A rank is a process, so more than
1 core means that more than one of its threads ran. Goroutines of --busy and --garbage
count as part of the rank, with their allocations.`),
		Example: strings.Trim(`
  cohort bench coll --ranks 2
  cohort bench coll --ranks 4 --transport tcp --peer cohort-tcp
  cohort bench coll --ranks 2 --only allreduce --scale 0.5
  GOMAXPROCS=2 cohort bench coll --ranks 8 --transport shm --cost --busy 1
  cohort bench coll --ranks 4 --cost --garbage 1`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.startColl(cmd.Context(), o)
		},
	}
	o.flags(cmd)
	return cmd
}

func (o *collOptions) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.ranks, "ranks", 2, "number of processes")
	cmd.Flags().StringVar(&o.transport, "transport", "auto", "auto, tcp, shm or gloo")
	cmd.Flags().StringVar(&o.peer, "peer", "cohort", "the name in the column peer")
	cmd.Flags().Float64Var(&o.scale, "scale", 1, "multiplies the number of iterations")
	cmd.Flags().StringVar(&o.only, "only", "",
		"run only the cases whose name contains this, or one of several parts with commas between them")
	cmd.Flags().BoolVar(&o.cost, "cost", false, "also print what an operation costs a rank")
	cmd.Flags().IntVar(&o.busy, "busy", 0, "goroutines in every rank that compute continuously")
	cmd.Flags().IntVar(&o.garbage, "garbage", 0, "goroutines in every rank that keep the garbage collector busy")
}

func (o *collOptions) check() error {
	switch {
	case o.ranks < 2 || o.ranks > 64:
		return command.Usage(fmt.Errorf("--ranks %d: 2 to 64", o.ranks))
	case !slices.Contains([]string{"auto", "tcp", "shm", "gloo"}, o.transport):
		return command.Usage(fmt.Errorf("--transport %s: auto, tcp, shm or gloo", o.transport))
	case o.scale <= 0:
		return command.Usage(fmt.Errorf("--scale %g: it must be more than zero", o.scale))
	case o.busy < 0 || o.busy > 1024:
		return command.Usage(fmt.Errorf("--busy %d: 0 to 1024", o.busy))
	case o.garbage < 0 || o.garbage > 1024:
		return command.Usage(fmt.Errorf("--garbage %d: 0 to 1024", o.garbage))
	}
	return nil
}

// collRankCommand is one rank of "cohort bench coll".
func (a *app) collRankCommand() *cobra.Command {
	var o collOptions
	var addr string
	var rank int
	cmd := &cobra.Command{
		Use:    "coll-rank",
		Hidden: true,
		Args:   command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.collRank(cmd.Context(), o, addr, rank)
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&addr, "store", "", "address of the store")
	cmd.Flags().IntVar(&rank, "rank", 0, "rank of this process")
	return cmd
}

func (a *app) startColl(ctx context.Context, o collOptions) error {
	return a.runRanks(ctx, o.ranks, nil, func(rank int, store string) []string {
		return []string{
			"coll-rank", "--store", store, "--rank", strconv.Itoa(rank), "--ranks", strconv.Itoa(o.ranks), "--transport",
			o.transport, "--peer", o.peer,
			"--scale", fmt.Sprint(o.scale), "--only", o.only, "--cost=" + strconv.FormatBool(o.cost), "--busy", strconv.Itoa(o.busy),
			"--garbage", strconv.Itoa(o.garbage), "--json=" + strconv.FormatBool(a.JSON),
		}
	})
}
