// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// collSizes are the payloads of bench/peers with their number of timed iterations.
var collSizes = []struct {
	bytes, times int
	name         string
}{
	{4, 600, "4B"},
	{1 << 10, 600, "1KiB"},
	{64 << 10, 200, "64KiB"},
	{1 << 20, 60, "1MiB"},
	{16 << 20, 8, "16MiB"},
	{64 << 20, 4, "64MiB"},
}

type collOptions struct {
	ranks     int
	transport string
	peer      string
	scale     float64
	only      string
}

func (a *app) benchCollCommand() *cobra.Command {
	var o collOptions
	cmd := &cobra.Command{
		Use:   "coll",
		Short: "Measure collectives between processes of this machine",
		Long: strings.TrimSpace(`
Start --ranks processes that form a group, and measure barrier, all-reduce, broadcast,
all-gather and, with two ranks, ping-pong, on ordinary Go slices. Each value is one line
of JSON: group, case, peer, value and unit, with the names and the method of bench/peers,
so that the rows of PyTorch and OpenMPI stand beside them. Process ids and the transport
that the group chose go to standard error.`),
		Example: strings.Trim(`
  cohort bench coll --ranks 2
  cohort bench coll --ranks 4 --transport tcp --peer cohort-tcp
  cohort bench coll --ranks 2 --only allreduce --scale 0.5`, "\n"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.benchColl(cmd.Context(), o)
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
	cmd.Flags().StringVar(&o.only, "only", "", "run only the cases whose name contains this")
}

func (o *collOptions) check() error {
	switch {
	case o.ranks < 2 || o.ranks > 64:
		return &usageError{fmt.Errorf("--ranks %d: 2 to 64", o.ranks)}
	case !slices.Contains([]string{"auto", "tcp", "shm", "gloo"}, o.transport):
		return &usageError{fmt.Errorf("--transport %s: auto, tcp, shm or gloo", o.transport)}
	case o.scale <= 0:
		return &usageError{fmt.Errorf("--scale %g: it must be more than zero", o.scale)}
	}
	return nil
}

// benchCollRankCommand is one rank of "cohort bench coll".
func (a *app) benchCollRankCommand() *cobra.Command {
	var o collOptions
	var addr string
	var rank int
	cmd := &cobra.Command{
		Use:    "coll-rank",
		Hidden: true,
		Args:   exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.benchCollRank(cmd.Context(), o, addr, rank)
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&addr, "store", "", "address of the store")
	cmd.Flags().IntVar(&rank, "rank", 0, "rank of this process")
	return cmd
}

// benchColl hosts the store and starts the ranks.
func (a *app) benchColl(ctx context.Context, o collOptions) error {
	server, err := tcpstore.Listen(net.JoinHostPort("127.0.0.1", "0"))
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, o.ranks)
	var ranks sync.WaitGroup
	for r := range o.ranks {
		cmd := exec.CommandContext(ctx, program, "bench", "coll-rank", "--store", server.Addr().String(), "--rank", strconv.Itoa(r), //nolint:gosec // this program
			"--ranks", strconv.Itoa(o.ranks), "--transport", o.transport, "--peer", o.peer, "--scale", fmt.Sprint(o.scale), "--only", o.only)
		cmd.Stdout, cmd.Stderr = a.Out, a.Err
		if err := cmd.Start(); err != nil {
			cancel()
			ranks.Wait()
			return err
		}
		ranks.Go(func() {
			if err := cmd.Wait(); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		})
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// collBench is one rank at work.
type collBench struct {
	app   *app
	opts  collOptions
	group *group.Group
}

func (a *app) benchCollRank(ctx context.Context, o collOptions, addr string, rank int) error {
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	g, err := group.New(ctx, client, rank, o.ranks, group.WithTransport(group.Transport(o.transport)), group.WithPeers(group.OnlyGo))
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	_, _ = fmt.Fprintf(a.Err, "cohort bench coll: rank %d of %d, process %d, transport %s\n", rank, o.ranks, os.Getpid(), g.Transport())
	b := &collBench{a, o, g}
	if err := b.all(); err != nil {
		return err
	}
	return g.Barrier(context.Background()).Wait(context.Background())
}

// all runs every case. An operation waits without a deadline of its own: the group's timeout ends it.
func (b *collBench) all() error {
	ctx := context.Background()
	g := b.group
	work := new(group.Work)
	if err := b.measure("barrier", 0, "", 400, 1, func() error {
		work = g.Barrier(ctx, group.Reuse(work))
		return work.Wait(ctx)
	}); err != nil {
		return err
	}
	for _, s := range collSizes {
		x, err := ones(s.bytes)
		if err != nil {
			return err
		}
		if err := b.measure("allreduce", s.bytes, s.name, s.times, 1, func() error {
			work = g.AllReduce(ctx, x, group.Sum, group.Reuse(work))
			return work.Wait(ctx)
		}); err != nil {
			return err
		}
	}
	for _, s := range collSizes {
		if s.bytes == 16<<20 {
			continue
		}
		x, err := ones(s.bytes)
		if err != nil {
			return err
		}
		root := 0
		if err := b.measure("broadcast", s.bytes, s.name, s.times, 1, func() error { // the root rotates, so that it cannot run ahead
			work = g.Broadcast(ctx, x, root, group.Reuse(work))
			root = (root + 1) % g.Size()
			return work.Wait(ctx)
		}); err != nil {
			return err
		}
	}
	for _, s := range collSizes {
		if s.bytes == 64<<20 {
			continue
		}
		x, err := ones(s.bytes)
		if err != nil {
			return err
		}
		out, err := ones(s.bytes * g.Size())
		if err != nil {
			return err
		}
		if err := b.measure("allgather", s.bytes, s.name, s.times, 1, func() error {
			work = g.AllGatherInto(ctx, out, x, group.Reuse(work))
			return work.Wait(ctx)
		}); err != nil {
			return err
		}
	}
	if g.Size() != 2 {
		return nil
	}
	for _, s := range collSizes {
		x, err := ones(s.bytes)
		if err != nil {
			return err
		}
		if err := b.measure("pingpong", s.bytes, s.name, s.times, 2, func() error { return b.pingPong(ctx, x) }); err != nil {
			return err
		}
	}
	return nil
}

func (b *collBench) pingPong(ctx context.Context, x *tensor.Tensor) error {
	g := b.group
	if g.Rank() == 0 {
		if err := g.Send(ctx, x, 1, 0).Wait(ctx); err != nil {
			return err
		}
		return g.Recv(ctx, x, 1, 0).Wait(ctx)
	}
	if err := g.Recv(ctx, x, 0, 0).Wait(ctx); err != nil {
		return err
	}
	return g.Send(ctx, x, 0, 0).Wait(ctx)
}

func ones(bytes int) (*tensor.Tensor, error) {
	values := make([]float32, bytes/4)
	for i := range values {
		values[i] = 1e-9
	}
	return tensor.From(values, len(values))
}

// measure does what bench/peers does: a warm-up of a tenth, a barrier, then timed iterations; rank 0 prints the median, the
// 99th percentile where there are enough, and payload bytes by mean time.
func (b *collBench) measure(name string, size int, sizeName string, n int, factor float64, f func() error) error {
	full := fmt.Sprintf("%s.r%d", name, b.opts.ranks)
	if sizeName != "" {
		full += "." + sizeName
	}
	if !strings.Contains(full, b.opts.only) {
		return nil
	}
	n = max(2, int(float64(n)*b.opts.scale))
	for range max(1, n/10) {
		if err := f(); err != nil {
			return err
		}
	}
	if err := b.group.Barrier(context.Background()).Wait(context.Background()); err != nil {
		return err
	}
	took := make([]time.Duration, n)
	began := time.Now()
	last := began
	for i := range took {
		if err := f(); err != nil {
			return err
		}
		now := time.Now()
		took[i], last = now.Sub(last), now
	}
	mean := last.Sub(began).Seconds() / float64(n)
	if b.group.Rank() != 0 {
		return nil
	}
	slices.Sort(took)
	load := &benchLoad{app: b.app, group: "coll", peer: b.opts.peer}
	load.emit(full+".p50", micros(took[n/2])/factor, "us")
	if n >= 200 {
		load.emit(full+".p99", micros(took[n*99/100])/factor, "us")
	}
	if size >= 1<<16 {
		load.emit(full+".bw", float64(size)*factor/mean/1e9, "GB/s")
	}
	return nil
}
