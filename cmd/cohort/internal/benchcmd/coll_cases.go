// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
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

// collBench is one rank at work.
type collBench struct {
	meter  *meter
	opts   collOptions
	group  *group.Group
	work   *group.Work
	make   func(n int) (*tensor.Tensor, error)
	suffix string // of the case names
	quiet  bool   // another rank prints
}

func (a *app) collRank(ctx context.Context, o collOptions, addr string, rank int) error {
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	g, err := group.New(ctx, client, cohort.Rank(rank), o.ranks, group.WithTransport(group.Transport(o.transport)),
		group.WithPeers(group.OnlyGo))
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	a.Note(fmt.Sprintf("cohort bench coll: rank %d of %d, process %d, transport %s", rank, o.ranks, os.Getpid(), g.Transport()))
	b := &collBench{
		meter: &meter{out: a.Out, group: "coll", peer: o.peer}, opts: o, group: g, work: new(group.Work),
		make: sliceTensor, quiet: rank != 0,
	}
	defer keepBusy(o.busy, computing)()
	defer keepBusy(o.garbage, littering)()
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
	if err := b.halves(ctx); err != nil {
		return err
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
		{"allreduce", "", b.allReduce},
		{"broadcast", "16MiB", b.broadcast},
		{"allgather", "64MiB", b.allGather},
		{"reducescatter", "64MiB", b.reduceScatter},
		{"alltoall", "4B", b.allToAll},
		{"pingpong", "", b.pingPong},
	} {
		if c.name == "pingpong" && b.group.Size() != 2 {
			continue
		}
		for _, s := range collSizes {
			if s.name == c.without || !b.wants(b.caseName(c.name, s)) {
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
	next, size := cohort.Rank(0), cohort.Rank(b.group.Size())
	return b.measure(ctx, name, s, 1, func(ctx context.Context) *group.Work {
		root := next
		next = (next + 1) % size
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

func (b *collBench) reduceScatter(ctx context.Context, name string, s collSize) error {
	in, err := b.filled(s.bytes * b.group.Size())
	if err != nil {
		return err
	}
	defer in.Storage().Release()
	out, err := b.filled(s.bytes)
	if err != nil {
		return err
	}
	defer out.Storage().Release()
	return b.measure(ctx, name, s, 1, func(ctx context.Context) *group.Work {
		return b.group.ReduceScatterInto(ctx, out, in, group.Sum, group.Reuse(b.work))
	})
}

// allToAll sends every rank the same part of a tensor, which is a little smaller where the ranks do not divide it.
func (b *collBench) allToAll(ctx context.Context, name string, s collSize) error {
	part := s.bytes / 4 / b.group.Size() * 4
	in, err := b.filled(part * b.group.Size())
	if err != nil {
		return err
	}
	defer in.Storage().Release()
	out, err := b.filled(part * b.group.Size())
	if err != nil {
		return err
	}
	defer out.Storage().Release()
	return b.measure(ctx, name, s, 1, func(ctx context.Context) *group.Work {
		return b.group.AllToAllInto(ctx, out, in, nil, nil, group.Reuse(b.work))
	})
}

// halves has two sub-groups reduce at the same time; rank 0 prints.
func (b *collBench) halves(ctx context.Context) error {
	size := b.group.Size()
	wanted := slices.DeleteFunc(slices.Clone(collSizes), func(s collSize) bool {
		return !b.wants(b.caseName("halves", s))
	})
	if size < 4 || len(wanted) == 0 {
		return nil
	}
	all := make([]cohort.Rank, size)
	for i := range all {
		all[i] = cohort.Rank(i)
	}
	part := &collBench{meter: b.meter, opts: b.opts, work: new(group.Work), make: sliceTensor, quiet: b.quiet}
	for _, half := range [][]cohort.Rank{all[:size/2], all[size/2:]} {
		g, err := b.group.NewGroup(ctx, half) // all ranks call it for both
		if err != nil {
			return err
		}
		if g != nil {
			part.group = g
		}
	}
	defer func() { _ = part.group.Close() }()
	for _, s := range wanted {
		if err := b.group.Barrier(ctx).Wait(ctx); err != nil {
			return err
		}
		if err := part.allReduce(ctx, "halves", s); err != nil {
			return fmt.Errorf("%s: %w", b.caseName("halves", s), err)
		}
	}
	return nil
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

// wants reports whether a case is one of those to run.
func (b *collBench) wants(name string) bool {
	for part := range strings.SplitSeq(b.opts.only, ",") {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// measure does what bench/peers does: a warm-up of a tenth, a barrier, then timed iterations; rank 0 prints the median, the
// 99th percentile where there are enough, and payload bytes by mean time.
func (b *collBench) measure(ctx context.Context, name string, s collSize, factor float64,
	steps ...func(context.Context) *group.Work,
) error {
	full := b.caseName(name, s)
	if !b.wants(full) {
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
	var before cost
	if b.opts.cost {
		before = costNow()
	}
	began := time.Now()
	last := time.Duration(0)
	for i := range took {
		if err := once(); err != nil {
			return err
		}
		now := time.Since(began)
		took[i], last = now-last, now
	}
	if b.opts.cost {
		if err := b.emitCost(ctx, full, costNow().since(before), n, last); err != nil {
			return err
		}
	}
	if b.quiet {
		return nil
	}
	mean := last.Seconds() / float64(n)
	slices.Sort(took)
	b.meter.emit(full+".p50", micros(took[n/2])/factor, "us")
	if n >= 200 {
		b.meter.emit(full+".p99", micros(took[n*99/100])/factor, "us")
	}
	if s.bytes >= 1<<16 {
		b.meter.emit(full+".bw", float64(s.bytes)*factor/mean/1e9, "GB/s")
	}
	return nil
}
