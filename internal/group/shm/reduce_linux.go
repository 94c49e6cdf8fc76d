// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// operands is room for lists of what a request reads of each rank, by rank, so that it allocates none.
type operands struct {
	sources [][]byte // of the reduction
	direct  [][]byte // the ranks' buffers in the segment
	inputs  [][]byte // of the piece that is reduced
	inline  []bool   // the rank's data was published with step 1
	callers bool     // the first two have memory of the caller, too, not only of the segment
}

func newOperands(size int) operands {
	return operands{sources: make([][]byte, size), direct: make([][]byte, size), inputs: make([][]byte, size), inline: make([]bool, size)}
}

// clear forgets the caller's memory. Small operations, which have to be fast, use none.
func (o *operands) clear() {
	if o.callers {
		clear(o.sources)
		clear(o.direct)
		o.callers = false
	}
}

// combine reduces the sources into dst, which is none of them.
func (o *operands) combine(dst []byte, r *collective.Request) {
	reduce.Many(dst, o.sources, r.DType, r.Op)
	if r.Op == reduce.Avg {
		reduce.Divide(dst, r.DType, len(o.sources))
	}
}

// reduceAll runs AllReduce and Reduce.
func (e *Engine) reduceAll(ctx context.Context, r *collective.Request) error {
	n := len(r.Out)
	if n <= e.oneShot {
		return e.reduceOnce(ctx, r)
	}
	flags := uint64(0)
	if e.op.fresh() {
		set, err := e.useSet(ctx)
		if err == nil {
			err = e.room(ctx, e.steps.last+1-areaTurns)
		}
		if err != nil {
			return err
		}
		if offset, ok := e.arena.offset(r.Out); ok {
			send, _ := e.seg.table(e.rank, set)
			send[0] = uint64(offset) //nolint:gosec // not negative
			flags = flagDirect
		} else {
			e.copyIn(r.Out[:min(n, e.pieceSize())])
		}
	}
	if err := e.begin(ctx, r, n, flags); err != nil {
		return err
	}
	if !e.op.moved {
		e.op.moved, e.op.direct = true, e.allDirect(n)
		if (!e.op.direct || r.Kind == collective.Reduce) && (e.op.direct || !e.anyDirect()) {
			e.op.turn = 1 // all ranks can read piece 0 of each other since step 1
		}
	}
	if e.op.direct && r.Kind == collective.AllReduce {
		return e.reduceDirect(ctx, r)
	}
	return e.reducePieces(ctx, r)
}

// reduceOnce is for small buffers: everyone publishes all it has, and everyone combines all, in rank order.
func (e *Engine) reduceOnce(ctx context.Context, r *collective.Request) error {
	n := len(r.Out)
	word := e.wordOf(r) != nil
	if e.op.fresh() && !word {
		set, err := e.useSet(ctx)
		if err != nil {
			return err
		}
		copy(e.seg.slotOf(e.rank, set), r.Out)
	}
	err := e.begin(ctx, r, n, flagInline)
	if err != nil || n == 0 || r.Kind == collective.Reduce && r.Root != e.rank {
		return err
	}
	for i := range e.operands.sources {
		if word {
			e.operands.sources[i] = e.descOf(i).word(n)
		} else {
			e.operands.sources[i] = e.seg.slotOf(i, e.setOf(i))[:n]
		}
	}
	e.operands.combine(r.Out, r)
	return nil
}

// share is the part of a piece that rank i reduces: cut into cache lines, so that no element is split.
func share(piece, ranks, i int) (from, to int) {
	per := roundUp((piece+ranks-1)/ranks, lineSize)
	return min(i*per, piece), min((i+1)*per, piece)
}

// reducePieces is for large buffers: a pipeline over pieces in which every rank reduces its share of each. In one turn a
// rank copies a piece in, reduces its share of the piece before and copies out the results of the one before that; the
// step at the end of the turn serves all three. If e.operands.direct has the buffers of all ranks, nothing is copied in.
func (e *Engine) reducePieces(ctx context.Context, r *collective.Request) error {
	n, direct := len(r.Out), e.op.direct
	size := e.pieceSize()
	pieces := (n + size - 1) / size
	wanted := r.Kind == collective.AllReduce || r.Root == e.rank
	piece := func(k int) []byte { return r.Out[k*size : min((k+1)*size, n)] }
	for ; e.op.turn < pieces+2; e.op.turn++ {
		k := e.op.turn
		if !e.op.waiting {
			if k < pieces && !direct {
				e.copyIn(piece(k))
			}
			if k >= 1 && k <= pieces {
				for i := range e.operands.inputs {
					if direct {
						e.operands.inputs[i] = e.operands.direct[i][(k-1)*size:]
					} else {
						e.operands.inputs[i] = e.seg.input(i, e.steps.lastArea())
					}
				}
				e.reduceShare(piece(k-1), r, wanted)
			}
			if k >= 2 && wanted {
				e.copyOut(piece(k - 2))
			}
		}
		if k <= pieces {
			if err := e.advance(ctx); err != nil {
				return err
			}
		}
	}
	if direct {
		return e.fence()
	}
	return nil
}

// pieceSize is how much of a buffer is reduced at a time.
func (e *Engine) pieceSize() int { return e.seg.area / (lineSize * e.size) * (lineSize * e.size) }

// copyIn shows the others their shares of a piece with the next step.
func (e *Engine) copyIn(data []byte) {
	room := e.seg.input(e.rank, e.steps.nextArea())
	for _, p := range e.peers {
		from, to := share(len(data), e.size, p)
		copy(room[from:to], data[from:to])
	}
}

// reduceBlock keeps a block of all operands in the first-level cache.
const reduceBlock = 8 << 10

// reduceShare reduces this rank's share of a piece, which e.operands.inputs holds of each rank, into its result area, and into its own
// buffer when that is wanted.
func (e *Engine) reduceShare(data []byte, r *collective.Request, wanted bool) {
	from, to := share(len(data), e.size, e.rank)
	room := e.seg.result(e.rank, e.steps.nextArea())
	e.operands.callers = true
	for ; from < to; from += reduceBlock {
		end := min(from+reduceBlock, to)
		for i := range e.operands.sources {
			if i == e.rank {
				e.operands.sources[i] = data[from:end]
			} else {
				e.operands.sources[i] = e.operands.inputs[i][from:end]
			}
		}
		e.operands.combine(room[from:end], r)
		if wanted {
			copy(data[from:end], room[from:end])
		}
	}
}

// copyOut takes the others' shares of a piece.
func (e *Engine) copyOut(data []byte) {
	for _, p := range e.peers {
		from, to := share(len(data), e.size, p)
		copy(data[from:to], e.seg.result(p, e.steps.lastArea())[from:to])
	}
}

// anyDirect reports whether a rank's buffer lies in the segment, so that the rank has copied nothing in.
func (e *Engine) anyDirect() bool {
	return slices.ContainsFunc(e.peers, func(p int) bool { return e.descOf(p).head&flagDirect != 0 }) ||
		e.descOf(e.rank).head&flagDirect != 0
}

// allDirect reports whether every rank's buffer lies in the segment, where all can reach it, and fills e.operands.direct.
func (e *Engine) allDirect(n int) bool {
	for i := range e.size {
		if e.descOf(i).head&flagDirect == 0 {
			return false
		}
		send, _ := e.seg.table(i, e.setOf(i))
		from := send[0]
		// A neighbour's word is checked before it is used as an address.
		//nolint:gosec // sizes
		if lo, hi := uint64(e.seg.arenasAt), uint64(e.seg.totalSize); from < lo || from > hi || uint64(n) > hi-from {
			return false
		}
		e.operands.direct[i] = e.seg.mem[from : int(from)+n] //nolint:gosec // checked above
	}
	return true
}

// reduceDirect is the all-reduce of buffers in the segment: every rank reduces its share of all buffers into its own, then
// takes the shares of the others from theirs.
//
// A rank writes nothing but its own memory. One that was stopped for so long that the others declared it lost may continue at any
// moment, when their buffers belong to their owners again.
func (e *Engine) reduceDirect(ctx context.Context, r *collective.Request) error {
	if e.op.turn == 0 {
		if !e.op.waiting {
			e.reduceOwnShare(r)
		}
		if err := e.advance(ctx); err != nil {
			return err
		}
		e.op.turn = 1
	}
	if !e.op.waiting {
		own := e.operands.direct[e.rank]
		for _, p := range e.peers {
			from, to := share(len(own), e.size, p)
			copy(own[from:to], e.operands.direct[p][from:to])
		}
		if err := e.fence(); err != nil {
			return err
		}
	}
	// No rank may change its buffer before all have read it.
	return e.advance(ctx)
}

func (e *Engine) reduceOwnShare(r *collective.Request) {
	from, to := share(len(r.Out), e.size, e.rank)
	room := e.seg.result(e.rank, 0)
	block := min(reduceBlock, len(room))
	for ; from < to; from += block {
		end := min(from+block, to)
		for i := range e.operands.sources {
			e.operands.sources[i] = e.operands.direct[i][from:end]
		}
		e.operands.combine(room[:end-from], r)
		copy(e.operands.direct[e.rank][from:end], room)
	}
}

// fence is called after the last read of other ranks' buffers. A rank that abandons the group reports that before it takes its buffer
// back, so what was read is good if none has.
//
// Only to load the state would not do: where loads are not ordered, those before it may read memory after it. A write that
// releases is ordered behind them, and a rank that gives up reads what it has written. So the state is compared and written as one.
func (e *Engine) fence() error {
	failpoint.At("shm.fence")
	a := &e.seg.header().abort
	if atomic.CompareAndSwapUint32(&a.state, 0, 0) {
		return nil
	}
	for range 256 { // the reason is being written
		if err := e.aborted(); err != nil {
			return err
		}
		spinwait.YieldCore()
	}
	e.failure.err = cohort.New(e.op.name, cohort.Aborted, "another rank has abandoned the group")
	return e.failure.err
}
