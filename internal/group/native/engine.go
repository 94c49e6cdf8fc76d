// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package native holds the collective algorithms that a group uses when all its ranks are Go: latency-bound exchanges for
// small buffers, segmented pipelines for large ones.
//
// The algorithms use only [transport.Mesh], so the same code runs over TCP (package native/tcp), over an in-memory network in
// virtual time, and with random tuning in the metamorphic tests. The order of operands in a reduction depends only on
// ranks and sizes, so that all ranks get the same bits.
package native

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Tuning holds the sizes at which the algorithms change. All ranks of a group must use the same. The zero value of a
// field means its default.
type Tuning struct {
	// Small is the largest all-reduce, in bytes, that takes the path with the fewest steps. From HalveFrom on, four or more ranks
	// exchange halves instead.
	Small int
	// HalveFrom and HalveTo are the smallest and the largest all-reduce, in bytes, in which four or more ranks exchange halves.
	// HalveTo holds for the input of a reduce-scatter too.
	HalveFrom, HalveTo int
	// Together is the block, in bytes, below which a reduce-scatter exchanges halves, and an all-reduce above HalveTo
	// among a power of two of ranks. Larger blocks go to their owners at once.
	Together int
	// Tree is the largest broadcast, in bytes, that goes down a tree, whole, instead of along a chain in segments.
	Tree int
	// SpreadFrom is the number of ranks from which a larger one is dealt out and collected where that takes fewer steps than a chain.
	SpreadFrom int
	// Rise is the largest reduce, in bytes, that goes up a tree, whole, instead of block by block.
	Rise int
	// Relay is the block of a gather, in bytes, below which it travels along a tree; of a scatter half of that.
	Relay int
	// Doubling is the largest result of an all-gather, in bytes, that is collected in as few messages as possible.
	Doubling int
	// Pass is the block of an all-gather, in bytes, from which five or more ranks pass blocks around a ring if they are more than eight of
	// this size together.
	Pass int
	// Segment is the piece of a large buffer that is in flight at a time.
	Segment int
	// Depth is the number of segments in flight per peer.
	Depth int
	// RingFrom is the number of ranks from which large buffers travel around a ring instead of directly to their owner.
	RingFrom int
}

// manyRanks is the number of ranks that are rarely on one host. Between hosts a message is late by the time of many bytes, so fewer
// steps are worth more bytes.
const manyRanks = 64

// withDefaults fills the zero fields for a group of size ranks, with so many connections between two of them. A segment that travels over
// several is longer, and so takes as long as one that travels over one.
func (t Tuning) withDefaults(size, lanes int) Tuning {
	small, halve := 64<<10, 32<<10
	if size >= manyRanks {
		small, halve = 256<<10-1, 256<<10
	}
	return Tuning{
		Small:      cmp.Or(t.Small, small),
		HalveFrom:  cmp.Or(t.HalveFrom, halve),
		HalveTo:    cmp.Or(t.HalveTo, 1<<20),
		Together:   cmp.Or(t.Together, leastSegment),
		Tree:       cmp.Or(t.Tree, 256<<10),
		SpreadFrom: cmp.Or(t.SpreadFrom, 16),
		Rise:       cmp.Or(t.Rise, 1<<20),
		Relay:      cmp.Or(t.Relay, 32<<10),
		Doubling:   cmp.Or(t.Doubling, 64<<20),
		Pass:       cmp.Or(t.Pass, 512<<10),
		Segment:    cmp.Or(t.Segment, lanes*512<<10),
		Depth:      cmp.Or(t.Depth, 2),
		RingFrom:   cmp.Or(t.RingFrom, 9),
	}
}

// Checker is a mesh that compares what ranks called: between Begin and End every message of the slot carries the call,
// and a message whose sender called something else fails the mesh on all ranks.
type Checker interface {
	Begin(slot uint64, call nativewire.Call)
	End(slot uint64)
}

// Engine runs collectives over a mesh of Go ranks. It implements [collective.Engine].
type Engine struct {
	mesh       transport.Mesh
	checker    Checker // nil when the mesh cannot check
	rank, size int
	tuning     Tuning

	mu struct {
		sync.Mutex
		free      []*run // as many as ever ran at the same time
		suspended map[*collective.Request]*run
		copied    copied // in all collectives that are over
	}
}

// NewEngine returns an engine over mesh.
func NewEngine(mesh transport.Mesh, tuning Tuning) *Engine {
	checker, _ := mesh.(Checker)
	size, lanes := mesh.Size(), 1
	if m, ok := mesh.(interface{ Lanes() int }); ok {
		lanes = m.Lanes()
	}
	return &Engine{mesh: mesh, checker: checker, rank: mesh.Rank(), size: size, tuning: tuning.withDefaults(size, lanes)}
}

// Run executes one collective. An error means that the group is out of step: the mesh was failed, and every peer is told
// where the mesh can tell.
//
// The one exception is the end of ctx, which only interrupts: the error is a [*collective.Interrupted], the buffers stay in
// use, and Run with the same request, from any goroutine, goes on where it stopped.
func (e *Engine) Run(ctx context.Context, q *collective.Request) error {
	if e.size == 1 {
		alone(q)
		return nil
	}
	r := e.take(q)
	if r.req == nil {
		if err := q.Check("group: ", e.rank, e.size); err != nil {
			e.give(r)
			return err
		}
		r.req, r.slot = q, nativewire.CollectiveSlot(q.Tag)
		if e.checker != nil {
			e.checker.Begin(r.slot, nativewire.CallOf(q))
		}
	}
	r.ctx = ctx
	err := r.dispatch()
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) && r.interrupted {
		r.suspend()
		return &collective.Interrupted{Cause: err}
	}
	if err != nil {
		failpoint.At("native.fail")
		// Buffers belong to the mesh until their ops are complete, so nothing may be pending when the caller gets them back.
		e.mesh.Fail(err)
		r.drain()
	}
	if e.checker != nil {
		e.checker.End(r.slot)
	}
	e.give(r)
	return err
}

// Resumable tells that Run may be interrupted; see [collective.Resumable].
func (e *Engine) Resumable() {}

// alone is every collective of a group with one rank.
func alone(q *collective.Request) {
	switch q.Kind {
	case collective.AllGather, collective.AllGatherV, collective.Gather, collective.Scatter, collective.ReduceScatter, collective.AllToAll:
		collective.Copy(q.Out, q.In)
	case collective.AllReduce, collective.Broadcast, collective.Reduce, collective.Barrier:
	}
}

func (r *run) dispatch() error {
	switch r.req.Kind {
	case collective.AllReduce:
		return r.allReduce()
	case collective.Broadcast:
		return r.broadcast()
	case collective.Reduce:
		return r.reduce()
	case collective.AllGather, collective.AllGatherV:
		return r.allGather()
	case collective.Gather:
		return r.gather()
	case collective.Scatter:
		return r.scatter()
	case collective.ReduceScatter:
		return r.reduceScatter()
	case collective.AllToAll:
		return r.allToAll()
	case collective.Barrier:
		return r.barrier()
	}
	return cohort.Newf("group: run", cohort.Internal, "collective of unknown kind %d", r.req.Kind)
}

// run is one collective in progress. It is reused, with its ops and scratch memory.
//
// An algorithm is straight code over a few primitives: send, recv, sent, received, combine, copy, keep, average. Each use of a
// primitive is a numbered step. When the context ends in a wait, the algorithm returns; to go on, it runs again from the
// start with all steps that were done before skipped. So a caller can leave the middle of a collective to another goroutine.
type run struct {
	*Engine
	ctx         context.Context //nolint:containedctx // lives for one Run
	req         *collective.Request
	slot        uint64
	step        int      // of the pass that is running
	done        int      // steps that need not be done again
	log         []handle // per step: what a post returned
	interrupted bool     // a wait ended with the context
	ops         []*transport.Op
	pending     []bool   // per op: posted and not waited for
	idle        []handle // ops that may be posted
	scratch     []byte
	second      []byte
	pipe        pipeline
	copied      copied
}

// first counts a step and reports whether it must be done, or was done in an earlier pass. Who does the step sets done behind it.
func (r *run) first() bool {
	r.step++
	if r.step <= r.done {
		return false
	}
	if len(r.log) < r.step {
		r.log = append(r.log, none)
	}
	return true
}

func (r *run) suspend() {
	failpoint.At("native.suspend")
	r.step, r.interrupted, r.ctx = 0, false, nil
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.suspended == nil {
		r.mu.suspended = map[*collective.Request]*run{}
	}
	r.mu.suspended[r.req] = r
}

// take returns the run of a request that was interrupted, else one without a request.
func (e *Engine) take(q *collective.Request) *run {
	failpoint.At("native.take")
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.mu.suspended[q]; r != nil {
		delete(e.mu.suspended, q)
		return r
	}
	if n := len(e.mu.free); n > 0 {
		r := e.mu.free[n-1]
		e.mu.free = e.mu.free[:n-1]
		return r
	}
	return &run{Engine: e}
}

// maxKeptScratch bounds the memory that an idle run keeps.
const maxKeptScratch = 32 << 20

// give keeps a run for the next request.
func (e *Engine) give(r *run) {
	r.ctx, r.req, r.step, r.done, r.interrupted, r.log = nil, nil, 0, 0, false, r.log[:0]
	if len(r.scratch) > maxKeptScratch {
		r.scratch = nil
	}
	if len(r.second) > maxKeptScratch {
		r.second = nil
	}
	failpoint.At("native.give")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.copied.sent += r.copied.sent
	e.mu.copied.kept += r.copied.kept
	r.copied = copied{}
	e.mu.free = append(e.mu.free, r)
}

// buffer returns n bytes of scratch memory. There is one scratch memory per run: a second call takes back the first.
func (r *run) buffer(n int) []byte {
	if len(r.scratch) < n {
		r.scratch = make([]byte, n)
	}
	return r.scratch[:n]
}

// spare returns n bytes beside buffer.
func (r *run) spare(n int) []byte {
	if len(r.second) < n {
		r.second = make([]byte, n)
	}
	return r.second[:n]
}

// handle names an op of a run.
type handle int

// none is the handle of a message that is not sent because it is empty on both sides.
const none handle = -1

func (r *run) next() (*transport.Op, handle) {
	if len(r.idle) == 0 {
		r.ops = append(r.ops, new(transport.Op))
		r.pending = append(r.pending, false)
		r.idle = append(r.idle, handle(len(r.ops)-1))
	}
	h := r.idle[len(r.idle)-1]
	r.idle = r.idle[:len(r.idle)-1]
	r.pending[h] = true
	return r.ops[h], h
}

// send posts buf to peer in a phase of the collective; messages of one phase between two ranks arrive in order.
func (r *run) send(phase uint8, peer int, buf []byte) handle {
	if !r.first() {
		return r.log[r.step-1]
	}
	op, h := r.next()
	op.Peer, op.Slot, op.Buf = peer, r.slot|uint64(phase), buf
	r.mesh.Send(op)
	r.log[r.step-1] = h
	r.done = r.step
	return h
}

// recv posts room for a message from peer.
func (r *run) recv(phase uint8, peer int, buf []byte) handle {
	if !r.first() {
		return r.log[r.step-1]
	}
	op, h := r.next()
	op.Peer, op.Slot, op.Buf, op.N = peer, r.slot|uint64(phase), buf, 0
	r.mesh.Recv(op)
	r.log[r.step-1] = h
	r.done = r.step
	return h
}

// await waits for an op, which may then be posted again.
func (r *run) await(ctx context.Context, h handle) error {
	if err := r.mesh.Wait(ctx, r.ops[h]); err != nil {
		// Either the op failed or only the wait ended; an op that is complete says so again.
		r.interrupted = ctx.Err() != nil
		return err
	}
	r.pending[h] = false
	r.ops[h].Buf = nil
	r.idle = append(r.idle, h)
	r.done = r.step
	return nil
}

// sent waits until the buffer of a send may be reused. The handle is invalid afterwards.
func (r *run) sent(h handle) error {
	if h == none || !r.first() {
		return nil
	}
	return r.await(r.ctx, h)
}

// received waits for a message and checks that it fills its room: ranks that agree on the call agree on every length. The
// handle is invalid afterwards.
func (r *run) received(h handle) error {
	if h == none || !r.first() {
		return nil
	}
	op := r.ops[h]
	room := len(op.Buf)
	if err := r.await(r.ctx, h); err != nil || op.N == room {
		return err
	}
	e := cohort.Newf("group: "+r.req.Kind.String(), cohort.Mismatch,
		"rank %d sent %d bytes where rank %d expects %d in operation %d; give the same sizes on all ranks",
		op.Peer, op.N, r.rank, room, r.req.Tag)
	e.Rank = cohort.Rank(op.Peer)
	return e
}

// drain ends what is still pending after a failure: the mesh has failed, so every op completes at once.
func (r *run) drain() {
	for i, pending := range r.pending {
		if pending {
			_ = r.mesh.Wait(context.Background(), r.ops[i]) // its error is the one that failed the mesh
			r.pending[i], r.ops[i].Buf, r.idle = false, nil, append(r.idle, handle(i))
		}
	}
}

// leastSegment is the segment below which the system calls cost more than the overlap brings.
const leastSegment = 256 << 10

// segmentSize returns the segment for a block of the given length, in whole elements: large, because each costs system
// calls, but small enough that there are a few to overlap and that many ranks do not take much memory.
func (r *run) segmentSize(elem, block int) int {
	size := r.tuning.Segment
	if size > leastSegment {
		size = min(size, max(block/4, leastSegment), max(8<<20/r.size, leastSegment))
	}
	return max(size/elem, 1) * elem
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// combine sets dst = op(a, b).
func (r *run) combine(dst, a, b []byte) {
	if r.first() {
		reduce.Combine(dst, a, b, r.req.DType, r.req.Op)
		r.done = r.step
	}
}

// copy copies src, which was received or will be sent, to dst.
func (r *run) copy(dst, src []byte) {
	if r.first() {
		r.copied.sent += collective.Copy(dst, src)
		r.done = r.step
	}
}

// keep copies a block of this rank that it does not send from there, to where its result belongs.
func (r *run) keep(dst, src []byte) {
	if r.first() {
		r.copied.kept += collective.Copy(dst, src)
		r.done = r.step
	}
}

// copied is the bytes that a collective copied, beside what the mesh does.
type copied struct {
	sent int // of messages, before they were sent or after they were received
	kept int // of a rank's own block, on the way to its own result
}

// finishAverage divides where the operator is an average.
func (r *run) finishAverage(buf []byte) {
	if r.req.Op == reduce.Avg && r.first() {
		reduce.Divide(buf, r.req.DType, r.size)
		r.done = r.step
	}
}
