// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloopresence"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Engine runs collectives over a mesh as gloo does: the same messages in the same order, so that PyTorch ranks can take
// part. It is safe for concurrent use; requests that run at once need tags of their own. Requests that follow each other may share
// one, as in a sparse all-reduce: messages match in the order in which they are sent.
//
// A collective that fails in the middle leaves its ranks out of step, so the engine then fails the mesh with the same
// error, as gloo does after a timeout.
type Engine struct {
	mesh    transport.Mesh
	watch   Watcher // nil where the mesh does not watch
	empties bool
	into    func(dst, src []byte, dt tensor.DType, op reduce.Op)

	mu struct {
		sync.Mutex
		free []*run
	}
}

var _ collective.Engine = (*Engine)(nil)

// engineOption changes how an Engine works.
type engineOption func(*Engine)

// WithTorchHalves computes float16 as torch does and not as gloo did up to PyTorch 2.7. All ranks must do the same.
func WithTorchHalves(on bool) engineOption {
	return func(e *Engine) {
		if on {
			e.into = reduce.Torch
		}
	}
}

// WithEmptyGathers exchanges empty messages where all ranks have nothing to gather, as gloo did before 2023. All ranks must do the
// same.
func WithEmptyGathers(on bool) engineOption { return func(e *Engine) { e.empties = on } }

// NewEngine returns an engine over mesh.
func NewEngine(mesh transport.Mesh, opts ...engineOption) *Engine {
	e := &Engine{mesh: mesh, into: reduce.Gloo}
	e.watch, _ = mesh.(Watcher)
	for _, o := range opts {
		o(e)
	}
	return e
}

// Run runs one collective and returns when this rank's part is done.
func (e *Engine) Run(ctx context.Context, r *collective.Request) error {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	x := e.take()
	x.engine, x.mesh, x.ctx, x.req = e, e.mesh, ctx, r
	x.rank, x.size = e.mesh.Rank(), e.mesh.Size()
	x.set.Reset()
	x.watched = gloopresence.Collective{Kind: r.Kind, Root: r.Root, Tag: r.Tag, Set: &x.set}
	if e.watch != nil && x.size > 1 {
		e.watch.Watch(&x.watched)
	}
	err := x.dispatch()
	if e.watch != nil && x.size > 1 {
		if err != nil {
			err = e.watch.Blame(err) // while it is known which ranks the collective needs
		}
		e.watch.Unwatch(&x.watched, err == nil && !r.More)
	}
	if err != nil {
		err = x.abandon(err)
	}
	x.ctx, x.req = nil, nil
	for _, op := range x.ops[:x.used] {
		op.Buf = nil
	}
	x.used = 0
	e.put(x)
	return err
}

// maxFree bounds the runs that are kept for reuse: more collectives than this are rarely in flight.
const maxFree = 16

func (e *Engine) take() *run {
	failpoint.At("gloo.run.take")
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.mu.free)
	if n == 0 {
		return &run{}
	}
	x := e.mu.free[n-1]
	e.mu.free = e.mu.free[:n-1]
	return x
}

func (e *Engine) put(x *run) {
	failpoint.At("gloo.run.put")
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.mu.free) < maxFree {
		e.mu.free = append(e.mu.free, x)
	}
}

// run is one collective in progress. It is reused, with its ops and its scratch memory.
type run struct {
	engine     *Engine
	mesh       transport.Mesh
	ctx        context.Context //nolint:containedctx // lives as long as Run
	req        *collective.Request
	rank, size int

	ops     []*transport.Op
	set     transport.Set // so that one op's failure ends the whole wait
	watched gloopresence.Collective
	used    int
	scratch []byte
}

// maxScratch is the scratch memory that is kept between collectives.
const maxScratch = 4 << 20

func (x *run) temp(n int) []byte {
	if cap(x.scratch) >= n {
		return x.scratch[:n]
	}
	b := make([]byte, n)
	if n <= maxScratch {
		x.scratch = b
	}
	return b
}

// op returns an op that is not posted yet, the same one for the same index.
func (x *run) op(i int) *transport.Op {
	for i >= len(x.ops) {
		x.ops = append(x.ops, &transport.Op{Set: &x.set})
	}
	if i >= x.used {
		for j := x.used; j <= i; j++ {
			x.ops[j].Reset()
		}
		x.used = i + 1
	}
	return x.ops[i]
}

func (x *run) send(i, peer int, slot uint64, buf []byte) {
	op := x.op(i)
	op.Peer, op.Slot, op.Buf, op.From = peer, slot, buf, nil
	x.mesh.Send(op)
}

func (x *run) recv(i, peer int, slot uint64, buf []byte) {
	op := x.op(i)
	op.Peer, op.Slot, op.Buf, op.From = peer, slot, buf, nil
	x.mesh.Recv(op)
}

// waitSend waits for the send with index i.
func (x *run) waitSend(i int) error {
	op := x.ops[i]
	if err := x.mesh.Wait(x.ctx, op); err != nil {
		return x.waitError(op, err)
	}
	return nil
}

// waitRecv waits for the receive with index i. A message that is shorter than its room means that the ranks disagree.
func (x *run) waitRecv(i int) error {
	op := x.ops[i]
	if err := x.mesh.Wait(x.ctx, op); err != nil {
		return x.waitError(op, err)
	}
	if op.N != len(op.Buf) {
		e := cohort.Newf("gloo: "+x.req.Kind.String(), cohort.Mismatch,
			"a message of %d bytes where %d were expected: do all ranks call the same operation with the same sizes?", op.N, len(op.Buf))
		e.Rank = cohort.Rank(op.Peer)
		return e
	}
	return nil
}

func (x *run) waitError(op *transport.Op, err error) error {
	if failure := x.set.Err(); failure != nil {
		return failure // the cause, also when this op followed from it
	}
	if !op.Completed() { // the context ended
		e := cohort.Wrap("gloo: "+x.req.Kind.String(), cohort.DeadlineExceeded, err)
		e.Detail = "it waits for rank " + itoa(op.Peer) // which is not blamed: it may wait itself
		return e
	}
	return err
}

// abandon fails the mesh after a failure in the middle of a collective and waits until no op uses the caller's memory.
func (x *run) abandon(err error) error {
	if x.used == 0 {
		return err // nothing was posted: the caller's mistake
	}
	failpoint.At("gloo.abandon")
	x.mesh.Fail(err)
	failpoint.At("gloo.abandon.wait")
	for _, op := range x.ops[:x.used] {
		for op.Posted() && !op.Completed() {
			<-op.State.Done // the mesh has failed: it ends every op
		}
	}
	return err
}

func (x *run) invalid(format string, args ...any) error {
	return cohort.Newf("gloo: "+x.req.Kind.String(), cohort.InvalidArgument, format, args...)
}

// dispatch runs the request.
func (x *run) dispatch() error {
	r := x.req
	if err := r.Check("gloo: ", x.rank, x.size); err != nil { // a mistake here would go to a PyTorch process
		return err
	}
	switch r.Kind {
	case collective.Barrier:
		return x.barrier()
	case collective.Broadcast:
		return x.broadcast()
	case collective.AllReduce:
		if err := x.allReduce(r.Out, r.Tag); err != nil {
			return err
		}
		x.average(r.Out)
		return nil
	case collective.Reduce:
		return x.reduce()
	case collective.ReduceScatter:
		return x.reduceScatter()
	case collective.AllGather:
		return x.allGather()
	case collective.AllGatherV:
		return x.allGatherV()
	case collective.Gather:
		return x.gather()
	case collective.Scatter:
		return x.scatter()
	case collective.AllToAll:
		return x.allToAll()
	}
	return x.invalid("unknown collective %d", r.Kind)
}

// average divides a finished sum where the request asks for the mean.
func (x *run) average(buf []byte) {
	switch {
	case x.req.Op != reduce.Avg:
	case x.req.Complex && x.req.Kind != collective.AllReduce: // there PyTorch sees pairs of real numbers
		reduce.DivideComplex(buf, x.req.DType, x.size)
	default:
		reduce.Divide(buf, x.req.DType, x.size)
	}
}

func (x *run) slot(kind gloowire.SlotKind) uint64 { return gloowire.Slot(kind, x.req.Tag) }

func (x *run) mod(i int) int { return ((i % x.size) + x.size) % x.size }
