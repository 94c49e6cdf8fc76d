// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
)

// exchange runs the kinds in which ranks hand blocks to each other: a sender puts blocks where all can read them, whole
// and together with its descriptor when they fit the slot, else piece by piece; a receiver takes what is for it.
//
// In some kinds a sender has one block for all that need it (broadcast, gathers), in the others one for each rank
// (scatters, all-to-all); those share the area in equal parts.
func (e *Engine) exchange(ctx context.Context, r *collective.Request) error {
	data := e.outgoing(r)
	room := e.partRoom(r.Kind)
	flags := uint64(0)
	if len(data) <= e.seg.slot {
		flags |= flagInline
	}
	if e.op.fresh() {
		if err := e.show(ctx, r, flags, data, room); err != nil {
			return err
		}
	}
	if err := e.begin(ctx, r, e.sizeOf(r), flags|countsFlag(r)); err != nil {
		return err
	}
	if !e.op.moved {
		if err := e.compareCounts(r); err != nil {
			return err
		}
		e.copyOwn(r, flags)
		if err := e.take(r, inlinePiece, room); err != nil {
			return err
		}
		if e.needs(r) == needAll { // else everything was inline
			e.op.pieces = e.pieces(r, room)
		}
		e.op.moved, e.op.turn = true, 1 // piece 0 came with step 1
	}
	pieces := e.op.pieces
	for ; e.op.turn <= pieces; e.op.turn++ {
		k := e.op.turn
		if !e.op.waiting {
			if k < pieces {
				e.put(r, flags, k, room)
			}
			if err := e.take(r, k-1, room); err != nil {
				return err
			}
		}
		if k < pieces {
			if err := e.advance(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// show puts what others read after step 1 in its place.
func (e *Engine) show(ctx context.Context, r *collective.Request, flags uint64, data []byte, room int) error {
	tables := r.Kind == collective.AllToAll || tabled(r.Kind) && r.Root == e.rank
	inline := flags&flagInline != 0
	slot := inline && len(data) > 0 && e.wordOf(r) == nil // else it goes into the descriptor
	if tables || slot {
		set, err := e.useSet(ctx)
		if err != nil {
			return err
		}
		if slot {
			copy(e.seg.slotOf(e.rank, set), data)
		}
		if tables {
			e.fillTables(r, set)
		}
	}
	if !inline {
		if err := e.room(ctx, e.steps.last+1-areaTurns); err != nil {
			return err
		}
		e.put(r, flags, 0, room)
	}
	return nil
}

// inlinePiece stands for the data that came with the descriptors.
const inlinePiece = -1

// split reports whether a sender of this kind has a separate block for each rank.
func split(k collective.Kind) bool {
	return k == collective.Scatter || k == collective.ReduceScatter || k == collective.AllToAll
}

// outgoing is all that this rank sends; nothing when it only receives.
func (e *Engine) outgoing(r *collective.Request) []byte {
	root := r.Root == e.rank
	switch r.Kind {
	case collective.Broadcast:
		if root {
			return r.Out
		}
		return nil
	case collective.Gather:
		if root {
			return nil
		}
	case collective.Scatter:
		if !root {
			return nil
		}
	default:
	}
	return r.In
}

// sizeOf is the size that this rank's descriptor states: the buffer that every rank has.
func (e *Engine) sizeOf(r *collective.Request) int {
	if r.Kind == collective.Broadcast || r.Kind == collective.Scatter {
		return len(r.Out)
	}
	return len(r.In)
}

// tabled reports whether ranks publish the sizes of single blocks in operations of this kind.
func tabled(k collective.Kind) bool {
	return k == collective.Gather || k == collective.Scatter || k == collective.AllToAll
}

// countsFlag reports whether a rank gave counts that the others cannot know.
func countsFlag(r *collective.Request) uint64 {
	if tabled(r.Kind) && (r.InCounts != nil || r.OutCounts != nil) {
		return flagCounts
	}
	return 0
}

// fillTables publishes the sizes of single blocks where the others cannot know them.
func (e *Engine) fillTables(r *collective.Request, set uint32) {
	send, recv := e.seg.table(e.rank, set)
	for i := range e.size {
		if r.Kind != collective.Gather {
			send[i] = uint64(collective.BlockSize(len(r.In), r.InCounts, e.size, i)) //nolint:gosec // a length
		}
		if r.Kind != collective.Scatter {
			recv[i] = uint64(collective.BlockSize(len(r.Out), r.OutCounts, e.size, i)) //nolint:gosec // a length
		}
	}
}

// compareCounts checks that what each rank sends to each is what the other expects, as far as this rank has waited for them.
func (e *Engine) compareCounts(r *collective.Request) error {
	differ := func(from, to int, sent, expected uint64) error {
		return e.giveUp(cohort.Newf(e.op.name, cohort.Mismatch,
			"rank %d sends %d bytes to rank %d, which expects %d (rank %d called %v, rank %d called %v)",
			from, sent, to, expected, from, e.descOf(from), to, e.descOf(to)))
	}
	from, to := 0, e.size
	switch e.needs(r) {
	case needNone:
		return nil
	case needRoot:
		from, to = e.rank, e.rank+1
	case needAll:
	}
	switch r.Kind {
	case collective.Gather:
		_, expected := e.seg.table(r.Root, e.setOf(r.Root))
		for i := from; i < to; i++ {
			if size := e.descOf(i).bytes(); size != expected[i] {
				return differ(i, r.Root, size, expected[i])
			}
		}
	case collective.Scatter:
		sent, _ := e.seg.table(r.Root, e.setOf(r.Root))
		for i := from; i < to; i++ {
			if size := e.descOf(i).size; size != sent[i] {
				return differ(r.Root, i, sent[i], size)
			}
		}
	case collective.AllToAll:
		uneven := false
		for i := range e.size {
			d := e.descOf(i)
			uneven = uneven || d.head&flagCounts != 0 || d.size != e.descOf(0).size
		}
		if !uneven {
			return nil
		}
		for i := range e.size {
			sent, _ := e.seg.table(i, e.setOf(i))
			for j := range e.size {
				if _, expected := e.seg.table(j, e.setOf(j)); sent[j] != expected[i] {
					return differ(i, j, sent[j], expected[i])
				}
			}
		}
	default:
	}
	return nil
}

// copyOwn moves the block that a rank sends to itself.
func (e *Engine) copyOwn(r *collective.Request, flags uint64) {
	switch r.Kind {
	case collective.AllGather, collective.AllGatherV:
		if flags&flagInline != 0 { // else put does it, piece by piece
			collective.Copy(collective.Block(r.Out, r.OutCounts, e.size, e.rank), r.In)
		}
	case collective.Gather:
		if r.Root == e.rank {
			collective.Copy(collective.Block(r.Out, r.OutCounts, e.size, e.rank), r.In)
		}
	case collective.Scatter:
		if r.Root == e.rank {
			collective.Copy(r.Out, collective.Block(r.In, r.InCounts, e.size, e.rank))
		}
	case collective.AllToAll:
		collective.Copy(collective.Block(r.Out, r.OutCounts, e.size, e.rank), collective.Block(r.In, r.InCounts, e.size, e.rank))
	default:
	}
}

// partRoom is how much of one block fits an area at a time.
func (e *Engine) partRoom(k collective.Kind) int {
	if split(k) {
		return e.seg.area / e.size / lineSize * lineSize
	}
	return e.seg.area
}

// pieces is the number of turns until the largest block that is not inline has passed. All ranks come to the same number.
func (e *Engine) pieces(r *collective.Request, room int) int {
	largest := uint64(0)
	for i := range e.size {
		d := e.descOf(i)
		if e.operands.inline[i] = d.head&flagInline != 0; e.operands.inline[i] {
			continue
		}
		switch r.Kind {
		case collective.Broadcast:
			largest = max(largest, d.size) // only the root is not inline: the others send nothing
		case collective.Scatter, collective.AllToAll:
			sent, _ := e.seg.table(i, e.setOf(i))
			for _, n := range sent {
				largest = max(largest, n)
			}
		case collective.ReduceScatter:
			for j := range e.size {
				largest = max(largest, uint64(collective.BlockSize(len(r.In), r.InCounts, e.size, j))) //nolint:gosec // a length
			}
		default:
			largest = max(largest, d.size)
		}
	}
	return int((largest + uint64(room) - 1) / uint64(room)) //nolint:gosec // a length
}

// put shows piece k of this rank's blocks with the next step, unless they went inline.
func (e *Engine) put(r *collective.Request, flags uint64, k, room int) {
	data := e.outgoing(r)
	if flags&flagInline != 0 || data == nil {
		return
	}
	area := e.seg.input(e.rank, e.steps.nextArea())
	if !split(r.Kind) {
		piece := pieceOf(data, k, room)
		collective.Copy(area, piece)
		if r.Kind == collective.AllGather || r.Kind == collective.AllGatherV { // while the piece is in the cache
			collective.Copy(pieceOf(collective.Block(r.Out, r.OutCounts, e.size, e.rank), k, room), piece)
		}
		return
	}
	for _, p := range e.peers {
		collective.Copy(area[p*room:], pieceOf(collective.Block(data, r.InCounts, e.size, p), k, room))
	}
}

// pieceOf is piece k of a block; empty past its end.
func pieceOf(b []byte, k, room int) []byte {
	from := min(k*room, len(b))
	return b[from:min(from+room, len(b))]
}

// take receives piece k, or what came inline, from every rank that has something for this one.
func (e *Engine) take(r *collective.Request, k, room int) error {
	switch r.Kind {
	case collective.Broadcast, collective.Scatter:
		if r.Root == e.rank {
			return nil
		}
		return e.takeFrom(r, r.Root, r.Out, k, room)
	case collective.Gather:
		if r.Root != e.rank {
			return nil
		}
	case collective.ReduceScatter:
		return e.takeReduced(r, k, room)
	default:
	}
	for _, p := range e.peers {
		if err := e.takeFrom(r, p, collective.Block(r.Out, r.OutCounts, e.size, p), k, room); err != nil {
			return err
		}
	}
	return nil
}

// takeFrom copies piece k of what rank p has for this rank to its place.
func (e *Engine) takeFrom(r *collective.Request, p int, to []byte, k, room int) error {
	from, err := e.offered(r, p, len(to), k, room)
	if err != nil || from == nil {
		return err
	}
	if k != inlinePiece {
		to = pieceOf(to, k, room)
	}
	collective.Copy(to, from)
	return nil
}

// offered is piece k of the n bytes that rank p has for this rank, which came with the last step, or nil when they do not come in
// this piece.
func (e *Engine) offered(r *collective.Request, p, n, k, room int) ([]byte, error) {
	if k != inlinePiece {
		if e.operands.inline[p] {
			return nil, nil
		}
		from := min(k*room, n)
		size := min(room, n-from)
		at := 0
		if split(r.Kind) {
			at = e.rank * room
		}
		return e.seg.input(p, e.steps.lastArea())[at : at+size], nil
	}
	desc := e.descOf(p)
	if desc.head&flagInline == 0 {
		return nil, nil
	}
	if has := desc.head & maskWord >> wordAt; has != 0 {
		if has != uint64(n) || n > wordRoom { //nolint:gosec // a length
			return nil, cohort.Newf(e.op.name, cohort.Protocol, "rank %d has a word of %d bytes where %d are expected", p, has, n)
		}
		return desc.word(n), nil
	}
	at := uint64(0)
	switch r.Kind {
	case collective.Scatter, collective.AllToAll:
		sent, _ := e.seg.table(p, e.setOf(p))
		for _, c := range sent[:e.rank] {
			at += c
		}
	case collective.ReduceScatter:
		for i := range e.rank {
			at += uint64(collective.BlockSize(len(r.In), r.InCounts, e.size, i)) //nolint:gosec // a length
		}
	default:
	}
	slot := e.seg.slotOf(p, e.setOf(p))
	if at > uint64(len(slot)) || uint64(n) > uint64(len(slot))-at { //nolint:gosec // lengths
		return nil, cohort.Newf(e.op.name, cohort.Protocol, "rank %d placed %d bytes at %d of a slot of %d", p, n, at, len(slot))
	}
	return slot[at : at+uint64(n)], nil //nolint:gosec // checked above
}

// takeReduced combines piece k of this rank's block from all ranks, in rank order.
func (e *Engine) takeReduced(r *collective.Request, k, room int) error {
	own := collective.Block(r.In, r.InCounts, e.size, e.rank)
	out := r.Out
	if k != inlinePiece {
		own, out = pieceOf(own, k, room), pieceOf(out, k, room)
	}
	e.operands.callers = true
	for i := range e.size {
		e.operands.direct[i] = own
		if i == e.rank {
			continue
		}
		from, err := e.offered(r, i, len(r.Out), k, room)
		if err != nil || from == nil && len(r.Out) > 0 {
			return err
		}
		e.operands.direct[i] = from
	}
	if e.size == 1 && k != inlinePiece {
		return nil
	}
	scratch := e.seg.result(e.rank, 0)
	block := min(reduceBlock, len(scratch))
	for from := 0; from < len(out); from += block {
		end := min(from+block, len(out))
		for i := range e.operands.sources {
			e.operands.sources[i] = e.operands.direct[i][from:end]
		}
		e.operands.combine(scratch[:end-from], r) // out may be a part of in
		copy(out[from:end], scratch)
	}
	return nil
}
