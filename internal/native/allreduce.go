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
	return r.direct(true)
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
		r.merge(partner, out, other)
	}
	r.finishAverage(out)
	return nil
}

// halving is for middle-sized buffers (Rabenseifner's algorithm): with partners at distance n/2, n/4, ... 1 a rank exchanges
// halves of what it still has to reduce, until it has reduced its own block. Then the finished blocks come back the same way.
// It sends as few bytes as the direct algorithm in fewer messages, but does not reduce while data arrives.
func (r *run) halving(p positions) error {
	out := r.req.Out
	blocks := coll.Parts{Total: len(out), Elem: r.req.DType.Size(), Ranks: p.power}
	// half returns the blocks that a position keeps at a distance: as many as the distance, with its own among them.
	half := func(position, distance int) []byte {
		first := position &^ (distance - 1)
		from, _ := blocks.Of(first)
		_, to := blocks.Of(first + distance - 1)
		return out[from:to]
	}
	// Room for everything is announced before it is needed. A finished block lands where a contribution to it was sent from:
	// it cannot come before the contribution has arrived.
	others, results, sends := r.handles(), r.others(), r.more()
	room := r.buffer(len(out))
	for distance, at := p.power/2, 0; distance > 0; distance /= 2 {
		position := p.own ^ distance
		partner, length := p.rank(position), len(half(p.own, distance))
		others[partner] = r.recv(phaseData, partner, room[at:at+length])
		results[partner] = r.recv(phaseResult, partner, half(position, distance))
		at += length
	}
	for distance, at := p.power/2, 0; distance > 0; distance /= 2 {
		position := p.own ^ distance
		partner, mine := p.rank(position), half(p.own, distance)
		sends[partner] = r.send(phaseData, partner, half(position, distance))
		if err := r.received(others[partner]); err != nil {
			return err
		}
		r.merge(partner, mine, room[at:at+len(mine)])
		at += len(mine)
	}
	r.finishAverage(half(p.own, 1))
	if err := r.sentAll(sends); err != nil {
		return err
	}
	for distance := 1; distance < p.power; distance *= 2 {
		partner := p.rank(p.own ^ distance)
		sends[partner] = r.send(phaseResult, partner, half(p.own, distance))
		if err := r.received(results[partner]); err != nil {
			return err
		}
	}
	return r.sentAll(sends)
}

// merge reduces what partner has sent into mine.
func (r *run) merge(partner int, mine, other []byte) {
	if r.rank < partner {
		r.combine(mine, mine, other)
	} else {
		r.combine(mine, other, mine)
	}
}
