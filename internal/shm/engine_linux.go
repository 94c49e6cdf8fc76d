// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/reduce"
)

const (
	goneDied = 1 // the socket ended without a word
	goneLeft = 2 // the rank closed its engine
)

// Engine runs collectives through the segment. It implements [coll.Engine]. Requests run one at a time in the order of
// their calls, which must be the order of their tags on every rank; a different order is found as a mismatch.
type Engine struct {
	rank, size int
	config     Config
	seg        *segment
	lines      []*syncLine
	peers      []int // the other ranks, the next one first

	// turn is held by the request that runs; the fields below it belong to that request.
	turn     chan struct{}
	step     uint32
	seq      uint64
	wait     waiter
	sources  [][]byte // operands of the reduction, in rank order
	direct   [][]byte // the ranks' buffers in the segment
	deadline time.Time
	timeout  time.Duration
	opName   string
	failure  error
	oneShot  int

	closing atomic.Bool
	closed  sync.Once
	stop    chan struct{}
	gone    []atomic.Uint32
	conns   []*net.UnixConn
	tasks   sync.WaitGroup
	arena   arena
	mesh    *Mesh
	release func() // closes the segment's file
}

func newEngine(c Config, seg *segment) *Engine {
	e := &Engine{
		rank: c.Rank, size: c.Size, config: c, seg: seg, lines: make([]*syncLine, c.Size), turn: make(chan struct{}, 1),
		wait: newWaiter(c.Size), sources: make([][]byte, c.Size), direct: make([][]byte, c.Size), stop: make(chan struct{}), gone: make([]atomic.Uint32, c.Size),
		conns: make([]*net.UnixConn, c.Size), opName: "shm: join",
	}
	for r := range e.lines {
		e.lines[r] = seg.sync(r)
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

// Run takes part in one collective. When it returns an error other than [dist.InvalidArgument], [dist.NotSupported] or
// [dist.Mismatch], the group is of no more use: the ranks are no longer in step, and every later call says so.
func (e *Engine) Run(ctx context.Context, r *coll.Request) error {
	if err := e.validate(r); err != nil {
		return err
	}
	select {
	case e.turn <- struct{}{}:
	default:
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			return dist.FromContext(opNames[r.Kind], ctx)
		case <-e.stop:
			return dist.New(opNames[r.Kind], dist.Closed, "the engine is closed")
		}
	}
	err := e.run(ctx, r)
	<-e.turn
	return err
}

func (e *Engine) run(ctx context.Context, r *coll.Request) error {
	e.opName = opNames[r.Kind]
	if e.closing.Load() {
		return dist.New(e.opName, dist.Closed, "the engine is closed")
	}
	if e.failure != nil {
		return dist.Newf(e.opName, dist.Aborted, "the group failed before: %w", e.failure)
	}
	if err := e.aborted(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return dist.FromContext(e.opName, ctx)
	}
	e.deadline, e.timeout = time.Time{}, r.Timeout
	if r.Timeout > 0 {
		e.deadline = time.Now().Add(r.Timeout)
	}
	if d, ok := ctx.Deadline(); ok && (e.deadline.IsZero() || d.Before(e.deadline)) {
		e.deadline = d
	}
	switch r.Kind {
	case coll.AllReduce, coll.Reduce:
		return e.reduceAll(ctx, r)
	case coll.Barrier:
		_, err := e.begin(ctx, r, 0, 0)
		return err
	default:
		return e.exchange(ctx, r)
	}
}

// parity is which of the two slots, descriptors and tables the next operation uses.
func (e *Engine) parity() int { return int(e.seq+1) & 1 } //nolint:gosec // one bit

// begin is step 1: it publishes the request, waits for the others' and compares. The caller has filled the slot and the
// table before.
func (e *Engine) begin(ctx context.Context, r *coll.Request, size int, flags uint64) (parity int, err error) {
	parity = e.parity()
	e.seq++
	mine := &e.lines[e.rank].desc[parity]
	*mine = describe(r, size, flags)
	if err := e.advance(ctx); err != nil {
		return parity, err
	}
	// Every rank compares with rank 0, so that all report the same pair.
	first := &e.lines[0].desc[parity]
	for rank := 1; rank < e.size; rank++ {
		if d := &e.lines[rank].desc[parity]; !first.agrees(d) {
			return parity, mismatch(e.opName, 0, first, rank, d)
		}
	}
	return parity, nil
}

// validate refuses a request before a step is taken. The group has checked it too; a wrong length here would corrupt
// other processes.
func (e *Engine) validate(r *coll.Request) error {
	if int(r.Kind) >= len(rules) {
		return dist.Newf("shm: run", dist.NotSupported, "operation %d", r.Kind)
	}
	bad := func(format string, args ...any) error {
		return dist.Newf(opNames[r.Kind], dist.InvalidArgument, format, args...)
	}
	if r.Root < 0 || r.Root >= e.size {
		return bad("root %d of %d ranks", r.Root, e.size)
	}
	if rules[r.Kind].head&maskOp != 0 {
		if !reduce.Supported(r.DType, r.Op) {
			return dist.Newf(opNames[r.Kind], dist.NotSupported, "%v of %v is not defined", r.Op, r.DType)
		}
		if (len(r.In)|len(r.Out))%r.DType.Size() != 0 {
			return bad("%d and %d bytes are not whole %v elements", len(r.In), len(r.Out), r.DType)
		}
	}
	for _, c := range [2][]int{r.InCounts, r.OutCounts} {
		if c != nil && len(c) != e.size {
			return bad("%d counts for %d ranks", len(c), e.size)
		}
	}
	return e.validateLengths(r, bad)
}

func (e *Engine) validateLengths(r *coll.Request, bad func(string, ...any) error) error {
	fits := func(buf []byte, counts []int) bool {
		if counts == nil {
			return len(buf)%e.size == 0
		}
		total := 0
		for _, c := range counts {
			if c < 0 || c > len(buf)-total {
				return false
			}
			total += c
		}
		return total == len(buf)
	}
	root := r.Root == e.rank
	ok := true
	switch r.Kind {
	case coll.AllGather:
		ok = len(r.Out) == e.size*len(r.In)
	case coll.AllGatherV:
		ok = r.OutCounts != nil && fits(r.Out, r.OutCounts) && r.OutCounts[e.rank] == len(r.In)
	case coll.Gather:
		ok = !root || fits(r.Out, r.OutCounts) && part(r.Out, r.OutCounts, e.size, e.rank) == len(r.In)
	case coll.Scatter:
		ok = !root || fits(r.In, r.InCounts) && part(r.In, r.InCounts, e.size, e.rank) == len(r.Out)
	case coll.ReduceScatter:
		ok = fits(r.In, r.InCounts) && part(r.In, r.InCounts, e.size, e.rank) == len(r.Out)
		if ok && r.InCounts != nil {
			for _, c := range r.InCounts {
				ok = ok && c%r.DType.Size() == 0
			}
		} else if ok {
			ok = len(r.Out)%r.DType.Size() == 0
		}
	case coll.AllToAll:
		ok = fits(r.In, r.InCounts) && fits(r.Out, r.OutCounts) &&
			part(r.In, r.InCounts, e.size, e.rank) == part(r.Out, r.OutCounts, e.size, e.rank)
	case coll.AllReduce, coll.Broadcast, coll.Reduce, coll.Barrier:
	}
	if !ok {
		return bad("%d bytes in (counts %v) and %d bytes out (counts %v) do not fit %d ranks", len(r.In), r.InCounts, len(r.Out), r.OutCounts, e.size)
	}
	return nil
}

// part is the bytes of rank i's block in buf.
func part(buf []byte, counts []int, ranks, i int) int {
	if counts == nil {
		return len(buf) / ranks
	}
	return counts[i]
}
