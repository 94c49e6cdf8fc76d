// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
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
var collSizes = []collSize{
	{4, 600, "4B"},
	{1 << 10, 600, "1KiB"},
	{64 << 10, 200, "64KiB"},
	{1 << 20, 60, "1MiB"},
	{16 << 20, 8, "16MiB"},
	{64 << 20, 4, "64MiB"},
}

type collSize struct {
	bytes, times int
	name         string
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
that the group chose go to standard error.

With shared memory the cases run a second time on tensors that live in the segment
(Group.NewTensor); their names have "inseg".`),
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

// benchColl hosts the store and starts the ranks. When one fails the others are ended.
func (a *app) benchColl(ctx context.Context, o collOptions) error {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var ranks sync.WaitGroup
	for r := range o.ranks {
		cmd := exec.CommandContext(ctx, program, "bench", "coll-rank", "--store", server.Addr().String(), "--rank", strconv.Itoa(r), //nolint:gosec // this program
			"--ranks", strconv.Itoa(o.ranks), "--transport", o.transport, "--peer", o.peer, "--scale", fmt.Sprint(o.scale), "--only", o.only)
		cmd.Stdout, cmd.Stderr = a.Out, a.Err
		release, err := startTied(cmd)
		if err != nil {
			cancel(fmt.Errorf("rank %d: %w", r, err))
			break
		}
		ranks.Go(func() {
			defer release()
			if err := cmd.Wait(); err != nil {
				cancel(fmt.Errorf("rank %d: %w", r, err))
			}
		})
	}
	ranks.Wait()
	return context.Cause(ctx)
}

// collBench is one rank at work.
type collBench struct {
	app    *app
	opts   collOptions
	group  *group.Group
	work   *group.Work
	make   func(n int) (*tensor.Tensor, error)
	suffix string // of the case names
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
	b := &collBench{app: a, opts: o, group: g, work: new(group.Work), make: sliceTensor}
	ctx = context.WithoutCancel(ctx) // as a program waits that leaves the end to the group's timeout and the ranks' deaths
	if err := b.all(ctx); err != nil {
		return err
	}
	if g.Transport() == group.SharedMemory {
		b.make, b.suffix = func(n int) (*tensor.Tensor, error) { return g.NewTensor(tensor.Float32, n) }, ".inseg"
		if err := b.all(ctx); err != nil {
			return err
		}
	}
	return g.Barrier(ctx).Wait(ctx)
}

// all runs every case.
func (b *collBench) all(ctx context.Context) error {
	if b.suffix == "" {
		if err := b.measure(ctx, "barrier", collSize{times: 400}, 1, func(ctx context.Context) *group.Work {
			return b.group.Barrier(ctx, group.Reuse(b.work))
		}); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		name    string
		without string // the size that bench/peers leaves out
		run     func(ctx context.Context, name string, s collSize) error
	}{
		{"allreduce", "", b.allReduce}, {"broadcast", "16MiB", b.broadcast}, {"allgather", "64MiB", b.allGather}, {"pingpong", "", b.pingPong},
	} {
		if c.name == "pingpong" && b.group.Size() != 2 {
			continue
		}
		for _, s := range collSizes {
			if s.name == c.without || !strings.Contains(b.caseName(c.name, s), b.opts.only) {
				continue
			}
			if err := c.run(ctx, c.name, s); err != nil {
				return fmt.Errorf("%s: %w", b.caseName(c.name, s), err)
			}
		}
	}
	return nil
}

func (b *collBench) allReduce(ctx context.Context, name string, s collSize) error {
	x, err := b.filled(s.bytes)
	if err != nil {
		return err
	}
	defer x.Storage().Release()
	return b.measure(ctx, name, s, 1, func(ctx context.Context) *group.Work {
		return b.group.AllReduce(ctx, x, group.Sum, group.Reuse(b.work))
	})
}

// broadcast has the root rotate, so that it cannot run ahead of the others.
func (b *collBench) broadcast(ctx context.Context, name string, s collSize) error {
	x, err := b.filled(s.bytes)
	if err != nil {
		return err
	}
	defer x.Storage().Release()
	next := 0
	return b.measure(ctx, name, s, 1, func(ctx context.Context) *group.Work {
		root := next
		next = (next + 1) % b.group.Size()
		return b.group.Broadcast(ctx, x, root, group.Reuse(b.work))
	})
}

func (b *collBench) allGather(ctx context.Context, name string, s collSize) error {
	x, err := b.filled(s.bytes)
	if err != nil {
		return err
	}
	defer x.Storage().Release()
	out, err := b.filled(s.bytes * b.group.Size())
	if err != nil {
		return err
	}
	defer out.Storage().Release()
	return b.measure(ctx, name, s, 1, func(ctx context.Context) *group.Work {
		return b.group.AllGatherInto(ctx, out, x, group.Reuse(b.work))
	})
}

// pingPong is half a round trip.
func (b *collBench) pingPong(ctx context.Context, name string, s collSize) error {
	x, err := b.filled(s.bytes)
	if err != nil {
		return err
	}
	defer x.Storage().Release()
	g := b.group
	send := func(ctx context.Context) *group.Work { return g.Send(ctx, x, 1-g.Rank(), 7, group.Reuse(b.work)) }
	recv := func(ctx context.Context) *group.Work { return g.Recv(ctx, x, 1-g.Rank(), 7, group.Reuse(b.work)) }
	if g.Rank() == 0 {
		return b.measure(ctx, name, s, 2, send, recv)
	}
	return b.measure(ctx, name, s, 2, recv, send)
}

// sliceTensor is an ordinary Go slice.
func sliceTensor(n int) (*tensor.Tensor, error) { return tensor.From(make([]float32, n), n) }

func (b *collBench) filled(bytes int) (*tensor.Tensor, error) {
	x, err := b.make(bytes / 4)
	if err != nil {
		return nil, err
	}
	values, err := tensor.Data[float32](x)
	for i := range values {
		values[i] = 1e-9
	}
	return x, err
}

func (b *collBench) caseName(name string, s collSize) string {
	full := fmt.Sprintf("%s.r%d", name, b.opts.ranks)
	if s.name != "" {
		full += "." + s.name
	}
	return full + b.suffix
}

// measure does what bench/peers does: a warm-up of a tenth, a barrier, then timed iterations; rank 0 prints the median, the
// 99th percentile where there are enough, and payload bytes by mean time.
func (b *collBench) measure(ctx context.Context, name string, s collSize, factor float64, steps ...func(context.Context) *group.Work) error {
	full := b.caseName(name, s)
	if !strings.Contains(full, b.opts.only) {
		return nil
	}
	once := func() error {
		for _, step := range steps {
			b.work = step(ctx)
			if err := b.work.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	n := max(2, int(float64(s.times)*b.opts.scale))
	for range max(1, n/10) {
		if err := once(); err != nil {
			return err
		}
	}
	if err := b.group.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	took := make([]time.Duration, n)
	began := time.Now()
	last := began
	for i := range took {
		if err := once(); err != nil {
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
	if s.bytes >= 1<<16 {
		load.emit(full+".bw", float64(s.bytes)*factor/mean/1e9, "GB/s")
	}
	return nil
}
