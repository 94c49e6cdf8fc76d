// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/monitoredbarrier"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// AllReduce combines t over all ranks, element by element; every rank gets the same result in t.
//
// It corresponds to torch.distributed.all_reduce(async_op=True).
func (g *Group) AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	w := g.newWork(OpAllReduce, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllReduce(&w.call, t, reduce.Op(op)))
}

// AllReduceSparse adds up s over all ranks; every rank gets the same sum in s, coalesced: new indices and values, each index once and
// in order. The ranks may have different indices, and different numbers of them. [Sum] is the only operator, and s has at most four
// dimensions with indices and four without, as in PyTorch. If shapes or types differ, the operation fails on all ranks and the
// group stays usable. The [Work.Result] is the indices and the values.
//
// It corresponds to torch.distributed.all_reduce of a torch.sparse_coo tensor.
func (g *Group) AllReduceSparse(ctx context.Context, s *tensor.Sparse, op ReduceOp, opts ...OpOption) *Work {
	if g == nil {
		return refused(errNil)
	}
	w := g.newWork(OpAllReduce, opts)
	sum, err := g.argsOf(ctx).AllReduceSparse(&w.call, s, reduce.Op(op))
	if err != nil {
		return g.refuse(ctx, w, err)
	}
	for stage := range collective.SparseStages {
		w.steps.add(func(ctx context.Context) error {
			failpoint.At("group.sparse")
			r, err := sum.Request(stage)
			if err != nil {
				return err
			}
			return g.engine.Run(ctx, r)
		})
	}
	w.call.Finish = sum.Finish
	return g.post(ctx, w, w.call.Numbers())
}

// AllReduceCoalesced is [Group.AllReduce] of several tensors of one element type in one operation. As in PyTorch, a sum or a mean may have
// complex numbers beside tensors of the type of their parts.
//
// It corresponds to torch.distributed.all_reduce_coalesced.
func (g *Group) AllReduceCoalesced(ctx context.Context, ts []*tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	w := g.newWork(OpAllReduceCoalesced, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllReduceCoalesced(&w.call, ts, reduce.Op(op)))
}

// Broadcast sends t of rank root to all ranks.
//
// It corresponds to torch.distributed.broadcast.
func (g *Group) Broadcast(ctx context.Context, t *tensor.Tensor, root cohort.Rank, opts ...OpOption) *Work {
	w := g.newWork(OpBroadcast, opts)
	return g.run(ctx, w, g.argsOf(ctx).Broadcast(&w.call, t, root))
}

// Reduce combines t over all ranks; rank root gets the result in t. On other ranks t is unchanged if all ranks are Go;
// with PyTorch ranks it holds partial results afterwards, as in PyTorch.
//
// It corresponds to torch.distributed.reduce.
func (g *Group) Reduce(ctx context.Context, t *tensor.Tensor, op ReduceOp, root cohort.Rank, opts ...OpOption) *Work {
	w := g.newWork(OpReduce, opts)
	return g.run(ctx, w, g.argsOf(ctx).Reduce(&w.call, t, reduce.Op(op), root))
}

// AllGather collects in of every rank into outs, one tensor per rank. Among Go ranks the sizes may differ from rank to
// rank; each rank must then know all sizes. As in PyTorch, complex numbers may go in where their parts come out, in a last dimension
// of two, and the other way round.
//
// It corresponds to torch.distributed.all_gather.
func (g *Group) AllGather(ctx context.Context, outs []*tensor.Tensor, in *tensor.Tensor, opts ...OpOption) *Work {
	w := g.newWork(OpAllGather, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllGather(&w.call, outs, in))
}

// AllGatherInto collects in of every rank into one buffer, in the order of ranks.
//
// It corresponds to torch.distributed.all_gather_into_tensor.
func (g *Group) AllGatherInto(ctx context.Context, out, in *tensor.Tensor, opts ...OpOption) *Work {
	if g == nil {
		return refused(errNil)
	}
	return g.allGatherInto(ctx, OpAllGatherInto, out, in, opts)
}

func (g *Group) allGatherInto(ctx context.Context, op OpType, out, in *tensor.Tensor, opts []OpOption) *Work {
	w := g.newWork(op, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllGatherInto(&w.call, torchcaps.Op(op), out, in))
}

// Gather collects in of every rank into outs at rank root; other ranks pass nil. Tensors of different sizes need [Uneven].
//
// It corresponds to torch.distributed.gather.
func (g *Group) Gather(ctx context.Context, outs []*tensor.Tensor, in *tensor.Tensor, root cohort.Rank, opts ...OpOption) *Work {
	w := g.newWork(OpGather, opts)
	return g.run(ctx, w, g.argsOf(ctx).Gather(&w.call, outs, in, root))
}

// Scatter sends one tensor of ins at rank root to each rank, into out; other ranks pass nil as ins. Tensors of different sizes
// need [Uneven].
//
// It corresponds to torch.distributed.scatter.
func (g *Group) Scatter(ctx context.Context, out *tensor.Tensor, ins []*tensor.Tensor, root cohort.Rank, opts ...OpOption) *Work {
	w := g.newWork(OpScatter, opts)
	return g.run(ctx, w, g.argsOf(ctx).Scatter(&w.call, out, ins, root))
}

// ReduceScatter combines ins over all ranks, one tensor per rank; rank i gets the result of tensor i in out.
//
// It corresponds to torch.distributed.reduce_scatter, which gloo has from PyTorch 2.8 on.
func (g *Group) ReduceScatter(ctx context.Context, out *tensor.Tensor, ins []*tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	w := g.newWork(OpReduceScatter, opts)
	return g.run(ctx, w, g.argsOf(ctx).ReduceScatter(&w.call, out, ins, reduce.Op(op)))
}

// ReduceScatterInto combines in over all ranks; the result is split into one equal part per rank, and rank i gets part i in out.
//
// It corresponds to torch.distributed.reduce_scatter_tensor. PyTorch up to 2.8 sums whatever the operator is, so with
// such ranks only [Sum] is allowed.
func (g *Group) ReduceScatterInto(ctx context.Context, out, in *tensor.Tensor, op ReduceOp, opts ...OpOption) *Work {
	w := g.newWork(OpReduceScatterInto, opts)
	return g.run(ctx, w, g.argsOf(ctx).ReduceScatterInto(&w.call, out, in, reduce.Op(op)))
}

// AllToAll sends ins[i] to rank i and receives from rank i into outs[i].
//
// It corresponds to torch.distributed.all_to_all, which gloo has from PyTorch 2.12 on, for tensors of one size: with others use
// [Group.AllToAllInto].
func (g *Group) AllToAll(ctx context.Context, outs, ins []*tensor.Tensor, opts ...OpOption) *Work {
	w := g.newWork(OpAllToAll, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllToAll(&w.call, outs, ins))
}

// AllToAllInto sends a part of in to every rank and receives a part of out from every rank. Without splits the parts are
// equal; with splits, outSplits[i] and inSplits[i] are the sizes along the first dimension for rank i.
//
// It corresponds to torch.distributed.all_to_all_single.
func (g *Group) AllToAllInto(ctx context.Context, out, in *tensor.Tensor, outSplits, inSplits []int, opts ...OpOption) *Work {
	w := g.newWork(OpAllToAllInto, opts)
	return g.run(ctx, w, g.argsOf(ctx).AllToAllInto(&w.call, out, in, outSplits, inSplits))
}

// Barrier ends when all ranks have reached it. It corresponds to torch.distributed.barrier.
func (g *Group) Barrier(ctx context.Context, opts ...OpOption) *Work {
	w := g.newWork(OpBarrier, opts)
	g.argsOf(ctx).Barrier(&w.call)
	return g.run(ctx, w, nil)
}

// run posts a collective whose arguments are well, and ends one whose arguments are not.
func (g *Group) run(ctx context.Context, w *Work, err error) *Work {
	if g == nil {
		return w.complete(errNil)
	}
	if err != nil {
		return g.refuse(ctx, w, err)
	}
	for i, p := range w.call.Pieces {
		w.steps.add(func(ctx context.Context) error {
			r := w.call.Request
			r.In, r.Out, r.Tag = p.In, p.Out, r.Tag+uint32(i) //nolint:gosec // a number of tensors
			return g.engine.Run(ctx, &r)
		})
	}
	return g.post(ctx, w, w.call.Numbers())
}

// newWork returns a Work for a new operation, with the options applied.
func (g *Group) newWork(op OpType, opts []OpOption) *Work {
	var w *Work
	var timeout time.Duration
	var factor collective.Factor
	uneven, awaited := false, false
	for _, o := range opts {
		switch o := o.(type) { // without a call through the interface, which would put the configuration on the heap
		case reuseOption:
			w = o.work
		case timeoutOption:
			timeout = time.Duration(o)
		case factorOption:
			factor = collective.Factor{Value: float64(o), Given: true}
		case unevenOption:
			uneven = true
		case awaitedOption:
			awaited = true
		}
	}
	if w == nil || !w.outcome.over.Load() {
		w = new(Work)
		w.message.source = cohort.NoRank
	} else {
		w.recycle()
	}
	w.op, w.submitted.timeout, w.call.Factor, w.call.Request.Uneven = op, timeout, factor, uneven
	w.submitted.awaited = awaited
	return w
}

// argsOf returns what a request depends on. Where it may have to ask what the PyTorch ranks can do, it does so until ctx ends.
func (g *Group) argsOf(ctx context.Context) *collective.Group {
	if g == nil {
		return &noArgs
	}
	if g.formed.Narrow == nil {
		return &g.args
	}
	args := g.args
	args.Narrow = func() (torchcaps.Peers, error) { return g.formed.Narrow(ctx, g.life.ctx) }
	return &args
}

// MonitoredBarrier is a barrier whose error names the ranks that did not arrive. Rank 0 receives from every other rank and
// then releases all of them: all pass or none does. Only rank 0 enforces the timeout ([WithTimeout], else the group's),
// so that it can name the culprit; the others report that rank 0 had an error.
//
// The timeout is for all ranks together: when it has passed, the error names every rank that has not arrived, and its Rank is the
// first of them. With [WaitAllRanks] rank 0 waits that long for each rank in turn, so that ranks that are only slow are not named.
// A barrier that fails fails the group. So does one that the deadline of rank 0's ctx ends: it names the ranks that had not arrived too.
//
// Where a rank calls another collective instead, all ranks get an error that matches [cohort.Mismatch] and names both sides, at once. With
// the transport [Gloo] they wait for the limit: its wire does not carry what a rank called.
//
// It corresponds to torch.distributed.monitored_barrier. It takes two sequence numbers, as there.
func (g *Group) MonitoredBarrier(ctx context.Context, opts ...OpOption) error {
	if g == nil {
		return errNil
	}
	var c opConfig
	for _, o := range opts {
		if o != nil {
			o.applyOp(&c)
		}
	}
	w := workOf(OpBarrier)
	g.args.Barrier(&w.call)
	limit := c.timeout
	if limit <= 0 {
		limit = g.Timeout()
	}
	if g.rank == 0 {
		// The barrier ends itself: the group's own watch must not come first.
		w.submitted.timeout = limit*time.Duration(g.size) + time.Minute
	} else {
		w.submitted.timeout = max(limit*time.Duration(2*g.size), limit+time.Hour)
	}
	w.steps.add(func(running context.Context) error {
		running, end := g.untilDeadline(running, ctx)
		defer end()
		b := monitoredbarrier.Barrier{Mesh: g.mesh, Limit: limit, All: c.waitAll, Tag: w.call.Request.Tag}
		// On gloo's wire the slots are the bare sequence numbers, as PyTorch has it; on the native wire they are out of the way
		// of user tags.
		if b.Report = uint64(w.call.Request.Tag); g.Transport() != Gloo {
			b.Report |= 1 << 62
		} else {
			b.Hint = "; a rank that is in another collective waits too: gloo's wire does not say which, the command \"cohort why\" does"
		}
		b.Release = b.Report + 1
		return b.Run(running)
	})
	return g.waitMonitored(ctx, g.post(ctx, w, 2))
}

// monitoredGrace is how long rank 0 waits after the deadline of its context for the barrier to say who is missing.
const monitoredGrace = time.Second

// untilDeadline limits a monitored barrier on rank 0 by the deadline of the caller's context, so that it names the ranks that are missing.
func (g *Group) untilDeadline(running, caller context.Context) (context.Context, context.CancelFunc) {
	if at, ok := caller.Deadline(); ok && g.rank == 0 {
		return context.WithDeadline(running, at)
	}
	return running, func() {}
}

// waitMonitored is Work.Wait for a monitored barrier.
func (g *Group) waitMonitored(ctx context.Context, w *Work) error {
	_ = w.Wait(ctx)
	if w.Completed() { // perhaps only after the context had ended, which Wait has said then
		return w.Err()
	}
	if g.rank == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		grace := time.NewTimer(monitoredGrace)
		defer grace.Stop()
		failpoint.At("group.monitored.grace")
		select {
		case <-w.Done():
			return w.Err()
		case <-grace.C:
		}
	}
	e := cohort.Ended(ctx, "group: monitored_barrier")
	others := ", and not all others had"
	if g.rank != 0 {
		others = ", and rank 0, which can name those that had not, did not release it"
	}
	e.Detail = "rank " + strconv.Itoa(int(g.rank)) + " reached the barrier" + others
	return e
}
