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

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Engine runs collectives through the segment. It implements [collective.Engine]. Requests run one at a time in the order of
// their calls, which must be the order of their tags on every rank; a different order is found as a mismatch.
type Engine struct {
	rank, size int
	config     Config
	seg        *segment
	peers      []int // the other ranks, the next one first
	oneShot    int   // up to this size, a reduction reads everything that every rank has

	// turn is held by the request that runs; the fields below it belong to that request.
	lock     *ctxMutex
	op       progress
	steps    steps
	cases    cases
	wait     waiter
	operands operands

	failure failure
	others  others
	life    lifetime
	arena   arena
	mesh    *Mesh
}

func newEngine(c Config, seg *segment) *Engine {
	e := &Engine{
		rank: c.Rank, size: c.Size, config: c, seg: seg, lock: newCtxMutex(),
		op: progress{name: "shm: join"}, steps: newSteps(seg, c.Rank, c.Size), operands: newOperands(c.Size),
		others: others{states: make([]atomic.Uint32, c.Size), conns: make([]*net.UnixConn, c.Size)},
		life:   lifetime{stop: make(chan struct{})},
	}
	e.wait.engine = e
	for i := 1; i < c.Size; i++ {
		e.peers = append(e.peers, (c.Rank+i)%c.Size)
	}
	// Beyond this the second phase costs less than reading everything that every rank has.
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
		names[k] = "shm: " + collective.Kind(k).String()
	}
	return names
}()

// progress is how far the request that runs has come, so that it can be left and taken up again.
type progress struct {
	request  *collective.Request
	name     string    // of the request as errors spell it
	deadline time.Time // of the request, once it has waited for long
	waiting  bool      // the current step is published, and those that this rank needs may not have taken it
	begun    bool      // step 1 is over, and the ranks that were waited for agree
	shown    bool      // this rank shows a slot or table
	moved    bool      // what was published with step 1 is in its place
	turn     int       // of the pipeline
	first    uint32    // the number of step 1; what the others showed with it can be read until the next step
	direct   bool      // the buffers of all ranks are in the segment
	pieces   int       // that follow step 1, with the one that came with it
}

// fresh reports whether the operation has not published anything yet.
func (o *progress) fresh() bool { return !o.begun && !o.waiting }

// Resumable marks that the end of a context only interrupts Run; see [collective.Resumable].
func (e *Engine) Resumable() {}

// Run takes part in one collective. The end of ctx interrupts it: the error is a [*collective.Interrupted], the buffers stay in
// use, and Run with the same request continues where it stopped; nothing else can run before. The request's timeout ends
// it for good. After any error other than [cohort.InvalidArgument] or [cohort.NotSupported] the group cannot be used any more: the
// ranks no longer are in step, and every later call returns an error about that.
func (e *Engine) Run(ctx context.Context, r *collective.Request) error {
	if err := r.Check("shm: ", e.rank, e.size); err != nil {
		return err
	}
	failpoint.At("shm.lock")
	if !e.lock.Lock(ctx.Done(), e.life.stop) {
		if ctx.Err() != nil {
			return cohort.FromContext(ctx, opNames[r.Kind])
		}
		return cohort.New(opNames[r.Kind], cohort.Closed, "the engine is closed")
	}
	defer e.lock.Unlock()
	return e.run(ctx, r)
}

func (e *Engine) run(ctx context.Context, r *collective.Request) error {
	e.op.name = opNames[r.Kind]
	if err := e.ended(); err != nil {
		e.releaseRequest() // one that was interrupted cannot continue any more
		return err
	}
	if e.op.request != r {
		if e.op.request != nil {
			return cohort.Newf(e.op.name, cohort.InvalidArgument, "a %v was interrupted and has to go on first", e.op.request.Kind)
		}
		if ctx.Err() != nil {
			return cohort.FromContext(ctx, e.op.name)
		}
		e.op = progress{request: r, name: e.op.name}
		e.wait.SetSize(max(len(r.In), len(r.Out)))
	}
	err := e.proceed(ctx, r)
	if err != nil && errors.As(err, new(*collective.Interrupted)) {
		return err
	}
	e.releaseRequest()
	e.failure.reported = err != nil && e.failure.err != nil
	return err
}

// ended is why no operation can run any more, or nil.
func (e *Engine) ended() error {
	if e.life.closing.Load() {
		return cohort.New(e.op.name, cohort.Closed, "the engine is closed")
	}
	if e.failure.err != nil {
		return e.failure.before(e.op.name)
	}
	err := e.aborted()
	if err != nil {
		e.failure.reported = true
	}
	return err
}

// releaseRequest forgets a request and its buffers, which may be all that keeps their memory.
func (e *Engine) releaseRequest() {
	e.op.request = nil
	e.operands.clear()
}

func (e *Engine) proceed(ctx context.Context, r *collective.Request) error {
	switch r.Kind {
	case collective.AllReduce, collective.Reduce:
		return e.reduceAll(ctx, r)
	case collective.Barrier:
		return e.begin(ctx, r, 0, 0)
	default:
		return e.exchange(ctx, r)
	}
}

// descOf is what a rank was asked to do in the operation that runs.
func (e *Engine) descOf(rank int) *descriptor { return &e.steps.line(rank, e.op.first).desc }

// setOf is which of its slots and tables a rank has used in it.
func (e *Engine) setOf(rank int) uint32 { return e.steps.line(rank, e.op.first).set }

// begin is step 1: it publishes the request, waits for those whose part this rank needs, and compares. The caller has filled the
// slot, unless the data goes into the descriptor, and the table before, if the operation is fresh.
func (e *Engine) begin(ctx context.Context, r *collective.Request, size int, flags uint64) error {
	o := &e.op
	if o.begun {
		return nil
	}
	if o.fresh() {
		if err := e.room(ctx, e.steps.last+1-window); err != nil {
			return err
		}
		o.first = e.steps.last + 1
		line := e.steps.line(e.rank, o.first)
		line.desc, line.set, line.shape = describe(r, size, flags, e.wordOf(r)), e.cases.next, r.Shape
		if o.shown {
			e.cases.show(o.first)
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
		err = e.checkLost()
	}
	if err != nil {
		return err
	}
	o.begun, o.waiting = true, false
	return nil
}

// wordOf is what this rank shows to all others, where it fits its descriptor; nil where it does not.
func (e *Engine) wordOf(r *collective.Request) []byte {
	data := r.Out
	if r.Kind != collective.AllReduce && r.Kind != collective.Reduce {
		if data = e.outgoing(r); split(r.Kind) {
			return nil // something else for each
		}
	}
	if len(data) == 0 || len(data) > wordRoom {
		return nil
	}
	return data
}

// lifetime is what ends with the engine.
type lifetime struct {
	once    sync.Once // of Close
	closing atomic.Bool
	stop    chan struct{} // closed by Close
	tasks   sync.WaitGroup
	release func() // closes the segment's file
}

// start begins to watch the others and to send heartbeats, and returns when all ranks have mapped the segment.
func (e *Engine) start(ctx context.Context, j *joining) error {
	e.others.conns = j.conns
	file := j.file
	e.arena.reserve = func(from, size int) error { return reserve(file, from, size) }
	e.life.release = func() { _ = file.Close() }
	for p, c := range e.others.conns {
		if c != nil {
			e.life.tasks.Go(func() { e.watch(p, c) })
		}
	}
	e.life.tasks.Go(e.beat)
	e.life.tasks.Go(e.mesh.keep)
	failpoint.At("shm.join.start")
	err := e.advance(ctx)
	if interrupted, ok := errors.AsType[*collective.Interrupted](err); ok {
		return e.giveUpJoining(interrupted.Cause)
	}
	for _, p := range e.peers {
		shared := e.seg.life(p).pid == e.seg.life(e.rank).pid
		e.wait.shared = e.wait.shared || shared
		e.mesh.wait.shared = e.mesh.wait.shared || shared
	}
	return err
}

// giveUpJoining notifies the ranks that did join that this one stopped waiting.
func (e *Engine) giveUpJoining(err error) error {
	why := cohort.Wrap("shm: join", cohort.Canceled, err)
	var late []int // those that have not mapped the segment: of several, one may delay the others
	for _, p := range e.peers {
		if atomic.LoadUint64(&e.seg.life(p).beats) == 0 {
			late = append(late, p)
		}
	}
	if cause, ok := errors.AsType[*cohort.Error](err); ok && cause.Rank != cohort.NoRank {
		why.Rank = cause.Rank
	} else if len(late) == 1 {
		why.Rank = cohort.Rank(late[0])
	}
	return e.giveUp(why)
}

// Close leaves the group. An operation that runs ends with [cohort.Closed]; the others see that this rank has left. Memory
// from [Engine.Alloc] stays valid until it is released. It is idempotent.
func (e *Engine) Close() error {
	e.life.once.Do(func() {
		e.life.closing.Store(true)
		failpoint.At("shm.close")
		close(e.life.stop)
		for _, c := range e.others.conns {
			if c != nil {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.Write([]byte{goodbye})
				_ = c.Close()
			}
		}
		failpoint.At("shm.close.tasks")
		e.life.tasks.Wait()
		e.arena.whileMapped(e.wakeAll)
		e.mesh.shut()
		failpoint.At("shm.close.lock")
		e.lock.Lock(nil, nil) // the operation that runs, if any, ends first; no other one starts
		e.releaseRequest()
		e.arena.close()
		if e.life.release != nil {
			e.life.release()
		}
	})
	return nil
}
