// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/moment"
)

// Engine runs collectives through the segment. It implements [coll.Engine]. Requests run one at a time in the order of
// their calls, which must be the order of their tags on every rank; a different order is found as a mismatch.
type Engine struct {
	rank, size int
	config     Config
	seg        *segment
	lines      []*rankSteps
	peers      []int // the other ranks, the next one first

	// turn is held by the request that runs; the fields below it belong to that request.
	turn     chan struct{}
	step     uint32       // the last one that this rank has taken
	target   uint32       // the one that it waits for the others to take
	all      uint32       // one that all have taken
	compared uint32       // up to here, all were asked to do the same
	set      uint32       // the slot and table of the next operation that needs one
	used     [sets]uint32 // with which step each was shown
	wait     waiter
	sources  [][]byte // operands of the reduction, in rank order
	direct   [][]byte // the ranks' buffers in the segment
	inputs   [][]byte // of the piece that is reduced, by rank
	inline   []bool   // the rank's data came with step 1
	op       progress
	deadline time.Time // of the request, once it has waited for long
	opName   string
	failure  error // why the group ended
	reported bool  // an operation has returned failure
	oneShot  int

	closing atomic.Bool
	failed  atomic.Pointer[error] // what Fail was told
	closed  sync.Once
	stop    chan struct{}
	gone    []atomic.Uint32 // by rank; see presence_linux.go
	loss    atomic.Bool     // somebody is gone
	conns   []*net.UnixConn
	tasks   sync.WaitGroup
	arena   arena
	mesh    *Mesh
	release func() // closes the segment's file
}

func newEngine(c Config, seg *segment) *Engine {
	e := &Engine{
		rank: c.Rank, size: c.Size, config: c, seg: seg, lines: make([]*rankSteps, c.Size), turn: make(chan struct{}, 1),
		sources: make([][]byte, c.Size), direct: make([][]byte, c.Size), inputs: make([][]byte, c.Size), inline: make([]bool, c.Size), stop: make(chan struct{}), gone: make([]atomic.Uint32, c.Size),
		conns: make([]*net.UnixConn, c.Size), opName: "shm: join",
	}
	e.wait.engine = e
	for r := range e.lines {
		e.lines[r] = seg.steps(r)
	}
	for i := 1; i < c.Size; i++ {
		e.peers = append(e.peers, (c.Rank+i)%c.Size)
	}
	// Beyond this the second phase costs less than reading everything that everybody has.
	e.oneShot = min(seg.slot, 32<<10/max(1, c.Size/2))
	e.arena.init(seg, c.Rank)
	e.mesh = newMesh(e)
	return e
}

// Rank returns this rank's number.
func (e *Engine) Rank() int { return e.rank }

// Size returns the number of ranks.
func (e *Engine) Size() int { return e.size }

// opNames are the operations as errors spell them, made once so that the hot path does not.
var opNames = func() (names [len(rules)]string) {
	for k := range names {
		names[k] = "shm: " + coll.Kind(k).String()
	}
	return names
}()

// progress is how far the request that runs has come, so that it can be left and taken up again.
type progress struct {
	request *coll.Request
	waiting bool   // the current step is published, and those that this rank needs may not have taken it
	begun   bool   // step 1 is over, and those that were waited for agree
	shown   bool   // this rank shows a slot or table
	moved   bool   // what came with step 1 is in its place
	turn    int    // of the pipeline
	first   uint32 // the number of step 1; what the others showed with it can be read until the next step
	direct  bool   // the buffers of all ranks are in the segment
	pieces  int    // that follow step 1, with the one that came with it
}

// Resumable tells that the end of a context only interrupts Run; see [coll.Resumable].
func (e *Engine) Resumable() {}

// Run takes part in one collective. The end of ctx interrupts it: the error is a [*coll.Interrupted], the buffers stay in
// use, and Run with the same request goes on where it stopped; nothing else can run before. The request's timeout ends
// it for good. After any error other than [dist.InvalidArgument] or [dist.NotSupported] the group is of no more use: the
// ranks are no longer in step, and every later call says so.
func (e *Engine) Run(ctx context.Context, r *coll.Request) error {
	if err := r.Check("shm: ", e.rank, e.size); err != nil {
		return err
	}
	moment.At("shm.turn")
	select {
	case e.turn <- struct{}{}:
	default:
		moment.At("shm.turn.wait")
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			return dist.FromContext(ctx, opNames[r.Kind])
		case <-e.stop:
			return dist.New(opNames[r.Kind], dist.Closed, "the engine is closed")
		}
	}
	err := e.run(ctx, r)
	<-e.turn // no point: it has the turn
	return err
}

func (e *Engine) run(ctx context.Context, r *coll.Request) error {
	e.opName = opNames[r.Kind]
	if e.closing.Load() {
		return dist.New(e.opName, dist.Closed, "the engine is closed")
	}
	if e.failure != nil {
		return e.failedBefore()
	}
	if err := e.aborted(); err != nil {
		e.reported = true
		return err
	}
	if e.op.request != r {
		if e.op.request != nil {
			return dist.Newf(e.opName, dist.InvalidArgument, "a %v was interrupted and has to go on first", e.op.request.Kind)
		}
		if ctx.Err() != nil {
			return dist.FromContext(ctx, e.opName)
		}
		e.op = progress{request: r}
		e.wait.About(max(len(r.In), len(r.Out)))
		e.deadline = time.Time{}
	}
	err := e.proceed(ctx, r)
	if err != nil && errors.As(err, new(*coll.Interrupted)) {
		return err
	}
	e.op.request = nil
	e.reported = err != nil && e.failure != nil
	return err
}

// failedBefore is the error of an operation that begins after the group failed. The operation that found the failure may have
// ended well all the same: then this is the one that reports it.
func (e *Engine) failedBefore() error {
	if e.reported {
		return dist.Newf(e.opName, dist.Aborted, "the group failed before: %w", e.failure)
	}
	e.reported = true
	return e.failure
}

func (e *Engine) proceed(ctx context.Context, r *coll.Request) error {
	switch r.Kind {
	case coll.AllReduce, coll.Reduce:
		return e.reduceAll(ctx, r)
	case coll.Barrier:
		return e.begin(ctx, r, 0, 0)
	default:
		return e.exchange(ctx, r)
	}
}

// Fail ends the operation that runs, and every later one, with err, here and on the other ranks.
func (e *Engine) Fail(err error) {
	if err == nil || !e.failed.CompareAndSwap(nil, &err) {
		return
	}
	moment.At("shm.fail")
	e.mesh.mu.Lock()
	e.mesh.fail(err)
	e.mesh.mu.Unlock()
	e.arena.whileMapped(func() { e.tellAll(reasonOf(err)) })
}

// reasonOf is an error as the other ranks are told of it.
func reasonOf(err error) *dist.Error {
	if e, ok := errors.AsType[*dist.Error](err); ok {
		return e
	}
	return dist.Wrap("shm: fail", dist.Aborted, err)
}

// Two areas take turns, step by step: what a rank shows with a step is read by the others before they take the next one, and its
// place is free for the one after that. This holds across operations, because all ranks take the same steps.

// nextArea is the area of what is shown with the next step.
func (e *Engine) nextArea() int { return int(e.step+1) & 1 }

// lastArea is the area of what was shown with the last step.
func (e *Engine) lastArea() int { return int(e.step) & 1 }

// descOf is what a rank was asked to do in the operation that runs.
func (e *Engine) descOf(rank int) *descriptor { return &e.lines[rank].at(e.op.first).desc }

// setOf is which of its slots and tables a rank has used in it.
func (e *Engine) setOf(rank int) uint32 { return e.lines[rank].at(e.op.first).set }

// begin is step 1: it publishes the request, waits for those whose part this rank needs, and compares. The caller has filled the
// slot, unless the data goes into the descriptor, and the table before, if the operation is fresh.
func (e *Engine) begin(ctx context.Context, r *coll.Request, size int, flags uint64) error {
	o := &e.op
	if o.begun {
		return nil
	}
	if e.fresh() {
		if err := e.room(ctx, e.step+1-window); err != nil {
			return err
		}
		o.first = e.step + 1
		line := e.lines[e.rank].at(o.first)
		line.desc, line.set, line.shape = describe(r, size, flags, e.wordOf(r)), e.set, r.Shape
		if o.shown {
			e.used[e.set] = o.first
			e.set = (e.set + 1) % sets
		}
	}
	var err error
	switch e.needs(r) {
	case needAll:
		e.publish()
		if err = e.awaitAll(ctx, o.first); err == nil {
			err = e.compare(o.first)
		}
	case needRoot:
		e.publish()
		if err = e.await(ctx, r.Root, o.first); err == nil {
			err = e.pair(r.Root, o.first)
		}
	case needNone:
		e.publish()
		err = e.alone()
	}
	if err != nil {
		return err
	}
	o.begun, o.waiting = true, false
	return nil
}

// wordOf is what this rank shows to all others, where it fits its descriptor; nil where it does not.
func (e *Engine) wordOf(r *coll.Request) []byte {
	data := r.Out
	if r.Kind != coll.AllReduce && r.Kind != coll.Reduce {
		if data = e.outgoing(r); split(r.Kind) {
			return nil // something else for each
		}
	}
	if len(data) == 0 || len(data) > wordRoom {
		return nil
	}
	return data
}

// fresh reports whether the operation has not published anything yet.
func (e *Engine) fresh() bool { return !e.op.begun && !e.op.waiting }
