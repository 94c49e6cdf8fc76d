// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"math/bits"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

// spread is the broadcast of a buffer that would keep a long chain waiting: the root deals out one block for each place along a
// binomial tree, and then all collect what they lack from places at distance 1, 2, 4... No place gets a block twice.
func (r *run) spread() error {
	n, place := r.size, r.fromRoot()
	blocks := r.evenly(r.req.Out)
	rounds := bits.Len(uint(n - 1))
	recvs, sends := empty(&r.pipe.give, 2*rounds), empty(&r.pipe.take, 2*rounds)
	for i := range rounds { // room is announced before it is needed
		distance := 1 << i
		for j, room := range r.lacks(blocks, place, distance) {
			if len(room) > 0 {
				recvs[2*i+j] = r.recv(phaseResult, r.atPlace(place+distance), room)
			}
		}
	}
	children := r.more()[:0]
	count, span := r.subtree(place)
	if place != 0 {
		if err := r.received(r.recv(phaseData, r.atPlace(place-span), r.places(blocks, place, place+count))); err != nil {
			return err
		}
	}
	for bit := span / 2; bit > 0; bit /= 2 {
		if bit < count {
			part := r.places(blocks, place+bit, place+min(2*bit, count))
			children = append(children, r.send(phaseData, r.atPlace(place+bit), part))
		}
	}
	for i := range rounds {
		distance := 1 << i
		to := (place - distance + n) % n
		for j, part := range r.lacks(blocks, to, distance) {
			if len(part) > 0 {
				sends[2*i+j] = r.send(phaseResult, r.atPlace(to), part)
			}
		}
		if err := r.receivedAll(recvs[2*i : 2*i+2]); err != nil {
			return err
		}
		if err := r.sentAll(sends[2*i : 2*i+2]); err != nil {
			return err
		}
	}
	if err := r.sentAll(children); err != nil {
		return err
	}
	return r.sentAll(sends)
}

// lacks returns what a place gets from the one at a distance: the blocks from there on that it has neither from the tree nor from
// places at smaller distances. Behind the last block comes the first, so they may be two pieces.
func (r *run) lacks(blocks collective.Parts, place, distance int) [2][]byte {
	n := r.size
	count, _ := r.subtree(place)
	first, last := place+max(distance, count), place+min(2*distance, n)
	switch {
	case first >= last:
		return [2][]byte{}
	case last <= n:
		return [2][]byte{r.places(blocks, first, last)}
	case first >= n:
		return [2][]byte{r.places(blocks, first-n, last-n)}
	}
	return [2][]byte{r.places(blocks, first, n), r.places(blocks, 0, last-n)}
}

// places returns the blocks of the places from first to before last.
func (r *run) places(blocks collective.Parts, first, last int) []byte {
	from, _ := blocks.Of(first)
	to, _ := blocks.Of(last)
	return r.req.Out[from:to]
}
