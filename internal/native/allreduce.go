// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import "math/bits"

// The phases of a collective: messages of one phase between two ranks match in order, phases are independent.
const (
	phaseData   = 0 // contributions, and data that goes its whole way in one phase
	phaseResult = 1 // finished pieces on their way back
)

func (r *run) allReduce() error {
	out := r.req.Out
	switch {
	case len(out) <= r.tuning.Small || len(out)/r.req.DType.Size() < r.size:
		if err := r.doubling(); err != nil {
			return err
		}
		r.finishAverage(out)
		return nil
	case r.size >= r.tuning.RingFrom:
		return r.ring()
	}
	return r.direct(true)
}

// doubling exchanges the whole buffer with partners at distance 1, 2, 4...: fewest steps, for small buffers.
//
// The operands are always in the order of ranks, and both partners compute the same expression, so results agree bit by
// bit even where the operator does not commute (minimum with NaN). When the number of ranks is no power of two, the first
// ones pair up before and after.
func (r *run) doubling() error {
	out := r.req.Out
	other := r.buffer(len(out))
	power := 1 << (bits.Len(uint(r.size)) - 1)
	rest := r.size - power
	position := r.rank - rest // among the power-of-two many that go on
	if r.rank < 2*rest {
		if r.rank%2 == 0 { // hand everything to the neighbour and wait for the end
			if err := r.sent(r.send(phaseData, r.rank+1, out)); err != nil {
				return err
			}
			return r.received(r.recv(phaseResult, r.rank+1, out))
		}
		if err := r.received(r.recv(phaseData, r.rank-1, other)); err != nil {
			return err
		}
		r.combine(out, other, out)
		position = r.rank / 2
	}
	rankAt := func(position int) int {
		if position < rest {
			return 2*position + 1
		}
		return position + rest
	}
	for distance := 1; distance < power; distance *= 2 {
		partner := rankAt(position ^ distance)
		in := r.recv(phaseData, partner, other)
		if err := r.sent(r.send(phaseData, partner, out)); err != nil {
			return err
		}
		if err := r.received(in); err != nil {
			return err
		}
		if position&distance == 0 {
			r.combine(out, out, other)
		} else {
			r.combine(out, other, out)
		}
	}
	if r.rank < 2*rest {
		return r.sent(r.send(phaseResult, r.rank-1, out))
	}
	return nil
}
