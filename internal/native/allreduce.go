// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"math/bits"

	"github.com/cohort-dist/cohort/internal/coll"
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
	case r.size >= 4 && r.tuning.HalveFrom <= bytes && bytes <= r.tuning.HalveTo:
		return r.inPairs(r.halving)
	case bytes <= r.tuning.Small:
		return r.inPairs(r.doubling)
	case r.size >= r.tuning.RingFrom:
		return r.ring()
	}
	return r.direct()
}

// positions numbers the power of two of ranks that take part in an exchange between pairs. When the number of ranks is no
// power of two, the first ones pair up, and one of each pair stays out.
type positions struct {
	own   int
	power int // how many there are
	rest  int // how many ranks stay out
}

func (p positions) rank(position int) int {
	if position < p.rest {
		return 2*position + 1
	}
	return position + p.rest
}

// inPairs runs an all-reduce among a power of two of ranks. A rank that stays out hands everything to its neighbour before
// and gets the result afterwards.
//
// The operands are always in the order of ranks, and one expression is computed once, or the same by both partners, so results
// agree bit by bit even where the operator does not commute (minimum with NaN).
func (r *run) inPairs(exchange func(positions) error) error {
	out := r.req.Out
	power := 1 << (bits.Len(uint(r.size)) - 1)
	p := positions{power: power, rest: r.size - power}
	p.own = r.rank - p.rest
	if r.rank >= 2*p.rest {
		return exchange(p)
	}
	if r.rank%2 == 0 {
		if err := r.sent(r.send(phaseData, r.rank+1, out)); err != nil {
			return err
		}
		return r.received(r.recv(phaseResult, r.rank+1, out))
	}
	other := r.buffer(len(out))
	if err := r.received(r.recv(phaseData, r.rank-1, other)); err != nil {
		return err
	}
	r.combine(out, other, out)
	p.own = r.rank / 2
	if err := exchange(p); err != nil {
		return err
	}
	return r.sent(r.send(phaseResult, r.rank-1, out))
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
	h := halves{p, coll.Parts{Total: len(r.req.Out), Elem: r.req.DType.Size(), Ranks: p.power}}
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
	blocks coll.Parts // one for each position
}

// of returns the blocks that a position keeps at a distance: as many as the distance, with its own among them.
func (h halves) of(buf []byte, position, distance int) []byte {
	first := position &^ (distance - 1)
	from, _ := h.blocks.Of(first)
	_, to := h.blocks.Of(first + distance - 1)
	return buf[from:to]
}

// halve reduces the own block of in into out, which may be in: with partners at distance n/2, n/4, ... 1 a rank exchanges
// halves of what it still has to reduce. The rest of out is undefined.
func (r *run) halve(h halves, in, out []byte) error {
	others, sends := r.handles(), r.more()
	room := r.buffer(len(in))
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

// merge sets dst to the reduction of the own data and what partner has sent.
func (r *run) merge(dst []byte, partner int, own, other []byte) {
	if r.rank < partner {
		r.combine(dst, own, other)
	} else {
		r.combine(dst, other, own)
	}
}
