// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"math/bits"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

// The phases of a collective: messages of one phase between two ranks match in order, phases are independent.
const (
	phaseData   = 0 // contributions, and data that goes its whole way in one phase
	phaseResult = 1 // finished pieces on their way back
)

func (r *run) allReduce() error {
	bytes := len(r.req.Out)
	switch {
	case bytes/r.req.DType.Size() < r.size:
		return r.inPairs(r.doubling)
	case r.size >= 4 && r.tuning.HalveFrom <= bytes &&
		(bytes <= r.tuning.HalveTo || r.positions().rest == 0 && bytes/r.size < r.tuning.Together):
		return r.inPairs(r.halving)
	case bytes <= r.tuning.Small:
		return r.inPairs(r.doubling)
	case r.size >= r.tuning.RingFrom:
		return r.ring()
	}
	out := r.req.Out
	blocks := r.evenly(out)
	from, to := blocks.Of(r.rank)
	return r.pipelined(out, blocks, out[from:to], true)
}

// positions numbers the power of two of ranks that take part in an exchange between pairs. When the number of ranks is no
// power of two, the first ones pair up, and one of each pair stays out.
type positions struct {
	own   int
	power int // how many there are
	rest  int // how many ranks stay out
}

// positions returns those of the group. The own one of a rank that stays out is that of its neighbour.
func (r *run) positions() positions {
	power := 1 << (bits.Len(uint(r.size)) - 1)
	p := positions{power: power, rest: r.size - power}
	p.own = max(r.rank-p.rest, r.rank/2)
	return p
}

// paired reports whether a rank has a neighbour that stays out, or stays out itself.
func (p positions) paired(rank int) bool { return rank < 2*p.rest }

// first returns the first of the ranks at a position, which are two where one stays out.
func (p positions) first(position int) int { return position + min(position, p.rest) }

// rank returns the one that takes part.
func (p positions) rank(position int) int { return p.first(position+1) - 1 }

// inPairs runs an all-reduce among a power of two of ranks. A rank that stays out hands everything to its neighbour before
// and gets the result afterwards.
//
// The operands are always in the order of ranks, and one expression is computed once, or the same by both partners, so results
// agree bit by bit even where the operator does not commute (minimum with NaN).
func (r *run) inPairs(exchange func(positions) error) error {
	out, p := r.req.Out, r.positions()
	if !p.paired(r.rank) {
		return exchange(p)
	}
	if r.rank%2 == 0 {
		return r.staysOut(out, out)
	}
	other := r.buffer(len(out))
	if err := r.received(r.recv(phaseData, r.rank-1, other)); err != nil {
		return err
	}
	r.combine(out, other, out)
	if err := exchange(p); err != nil {
		return err
	}
	return r.sent(r.send(phaseResult, r.rank-1, out))
}

// staysOut is the part of a rank that its neighbour stands in for.
func (r *run) staysOut(in, out []byte) error {
	if err := r.sent(r.send(phaseData, r.rank+1, in)); err != nil {
		return err
	}
	return r.received(r.recv(phaseResult, r.rank+1, out))
}

// doubling exchanges the whole buffer with partners at distance 1, 2, 4...: fewest steps, for small buffers.
func (r *run) doubling(p positions) error {
	out := r.req.Out
	other := r.buffer(len(out))
	for distance := 1; distance < p.power; distance *= 2 {
		partner := p.rank(p.own ^ distance)
		in := r.recv(phaseData, partner, other)
		if err := r.sent(r.send(phaseData, partner, out)); err != nil {
			return err
		}
		if err := r.received(in); err != nil {
			return err
		}
		r.merge(out, partner, out, other)
	}
	r.finishAverage(out)
	return nil
}

// halving is for middle-sized buffers (Rabenseifner's algorithm): halves are exchanged until each rank has reduced its own block,
// then the finished blocks come back the same way. It sends as few bytes as the direct algorithm in fewer messages, but does
// not reduce while data arrives.
func (r *run) halving(p positions) error {
	h := halves{p, collective.Parts{Total: len(r.req.Out), Elem: r.req.DType.Size(), Ranks: p.power}}
	out := r.req.Out
	// Room is announced before it is needed. A finished block lands where a contribution to it was sent from: it cannot come
	// before the contribution has arrived.
	results, sends := r.others(), r.more()
	for distance := p.power / 2; distance > 0; distance /= 2 {
		partner := p.rank(p.own ^ distance)
		results[partner] = r.recv(phaseResult, partner, h.of(out, p.own^distance, distance))
	}
	if err := r.halve(h, out, out); err != nil {
		return err
	}
	r.finishAverage(h.of(out, p.own, 1))
	for distance := 1; distance < p.power; distance *= 2 {
		partner := p.rank(p.own ^ distance)
		sends[partner] = r.send(phaseResult, partner, h.of(out, p.own, distance))
		if err := r.received(results[partner]); err != nil {
			return err
		}
	}
	return r.sentAll(sends)
}

// halves are the parts of a buffer that positions exchange.
type halves struct {
	positions
	blocks collective.Parts // one for each position, or one for each rank
}

// cut returns where the part of a position begins.
func (h halves) cut(position int) int {
	if h.blocks.Ranks > h.power {
		position = h.first(position)
	}
	from, _ := h.blocks.Of(position)
	return from
}

// of returns the parts that a position keeps at a distance: as many as the distance, with its own among them.
func (h halves) of(buf []byte, position, distance int) []byte {
	first := position &^ (distance - 1)
	return buf[h.cut(first):h.cut(first+distance)]
}

// halve reduces the own part of in into out, which may be in: with partners at distance n/2, n/4, ... 1 a rank exchanges
// halves of what it still has to reduce. The rest of out is undefined.
func (r *run) halve(h halves, in, out []byte) error {
	others, sends := r.handles(), r.more()
	length := 0
	for distance := h.power / 2; distance > 0; distance /= 2 {
		length += len(h.of(out, h.own, distance))
	}
	room := r.buffer(length)
	for distance, at := h.power/2, 0; distance > 0; distance /= 2 {
		partner, length := h.rank(h.own^distance), len(h.of(out, h.own, distance))
		others[partner] = r.recv(phaseData, partner, room[at:at+length])
		at += length
	}
	from := in
	for distance, at := h.power/2, 0; distance > 0; distance /= 2 {
		partner, mine := h.rank(h.own^distance), h.of(out, h.own, distance)
		sends[partner] = r.send(phaseData, partner, h.of(from, h.own^distance, distance))
		if err := r.received(others[partner]); err != nil {
			return err
		}
		r.merge(mine, partner, h.of(from, h.own, distance), room[at:at+len(mine)])
		at += len(mine)
		from = out
	}
	return r.sentAll(sends)
}

// halvesBlocks reports whether a reduce-scatter exchanges halves. Where a rank stays out, its neighbour gets all its blocks first,
// which pays only while they fit in few steps.
func (r *run) halvesBlocks(block int) bool {
	p := r.positions()
	switch {
	case r.size < 4:
		return false
	case p.rest == 0 && block*r.size <= r.tuning.HalveTo:
		return true
	}
	return block < r.tuning.Together && halved(p, block) <= (r.size-1)*units(block)
}

// scatterHalves is a reduce-scatter in which ranks exchange halves.
func (r *run) scatterHalves() error {
	q, p := r.req, r.positions()
	paired := p.paired(r.rank)
	if paired && r.rank%2 == 0 {
		return r.staysOut(q.In, q.Out)
	}
	in, sum := q.In, r.spare(len(q.In))
	if paired {
		other := r.buffer(len(in))
		if err := r.received(r.recv(phaseData, r.rank-1, other)); err != nil {
			return err
		}
		r.combine(sum, other, in)
		in = sum
	}
	h := halves{p, r.evenly(q.In)}
	if err := r.halve(h, in, sum); err != nil {
		return err
	}
	own := h.of(sum, p.own, 1)
	r.finishAverage(own)
	r.keep(q.Out, own[len(own)-len(q.Out):]) // a neighbour's block is before the own one
	if paired {
		return r.sent(r.send(phaseResult, r.rank-1, own[:len(q.Out)]))
	}
	return nil
}

// merge sets dst to the reduction of the own data and what partner has sent.
func (r *run) merge(dst []byte, partner int, own, other []byte) {
	if r.rank < partner {
		r.combine(dst, own, other)
	} else {
		r.combine(dst, other, own)
	}
}
