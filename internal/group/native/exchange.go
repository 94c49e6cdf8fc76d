// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import "github.com/cohort-dist/cohort/internal/group/collective"

// allGather collects blocks of one size in as few messages as possible while they are small. Where the number of ranks is not a power
// of two that takes a copy more, which pays only while it saves steps. All others go to everybody at once, or around a ring where there are
// many ranks or much data: the next message of a rank is what has just come, which is in its cache, where those of half the result are not.
func (r *run) allGather() error {
	q := r.req
	own := collective.Block(q.Out, q.OutCounts, r.size, r.rank)
	even := q.OutCounts == nil
	switch {
	case even && r.size > 4 && len(q.In) >= r.tuning.Pass && len(q.Out) > 8*r.tuning.Pass:
		// Blocks of one size are the even parts of the output.
		return r.pass(r.evenly(q.Out), phaseData, r.rank, q.In)
	case even && r.size&(r.size-1) == 0 && len(q.Out) <= r.tuning.Doubling:
		r.place(own, q.In)
		return r.gatherDoubling()
	case even && len(q.Out) <= r.tuning.Doubling && len(q.In) < stepBytes:
		return r.gatherRotated()
	case even && r.size >= r.tuning.RingFrom && len(q.In) > r.tuning.Small:
		return r.pass(r.evenly(q.Out), phaseData, r.rank, q.In)
	}
	recvs, sends := r.handles(), r.others()
	at := 0
	for peer := range r.size {
		length := collective.BlockSize(len(q.Out), q.OutCounts, r.size, peer)
		if peer != r.rank {
			recvs[peer] = r.recv(phaseData, peer, q.Out[at:at+length])
		}
		at += length
	}
	for i := 1; i < r.size; i++ {
		peer := (r.rank + i) % r.size
		sends[peer] = r.send(phaseData, peer, q.In)
	}
	r.place(own, q.In)
	if err := r.receivedAll(recvs); err != nil {
		return err
	}
	return r.sentAll(sends)
}

// place puts a block where it belongs in the result, unless it is there.
func (r *run) place(room, block []byte) {
	if len(block) > 0 && &room[0] != &block[0] {
		r.keep(room, block)
	}
}

// gatherDoubling is the all-gather of a power of two of ranks: all that two halves have is exchanged, at distance 1, 2, 4...
func (r *run) gatherDoubling() error {
	out := r.req.Out
	block := len(out) / r.size
	// The blocks from rank&^(distance-1) on, as many as the distance, are where they belong.
	have := func(rank, distance int) []byte {
		from := rank &^ (distance - 1)
		return out[from*block : (from+distance)*block]
	}
	recvs, sends := r.handles(), r.others()
	for distance := 1; distance < r.size; distance *= 2 { // room is announced before it is needed
		partner := r.rank ^ distance
		recvs[partner] = r.recv(phaseData, partner, have(partner, distance))
	}
	for distance := 1; distance < r.size; distance *= 2 {
		partner := r.rank ^ distance
		sends[partner] = r.send(phaseData, partner, have(r.rank, distance))
		if err := r.received(recvs[partner]); err != nil {
			return err
		}
	}
	return r.sentAll(sends)
}

// gatherRotated is the same for any number of ranks (Bruck's algorithm): each rank collects the blocks from its own on, and puts
// them in their places at the end.
func (r *run) gatherRotated() error {
	q, n := r.req, r.size
	block := len(q.Out) / n
	all := r.buffer(n * block)
	recvs, sends := r.handles(), r.others()
	for distance := 1; distance < n; distance *= 2 { // room is announced before it is needed
		right := (r.rank + distance) % n
		recvs[right] = r.recv(phaseData, right, all[distance*block:min(2*distance, n)*block])
	}
	r.copy(all, q.In)
	for distance := 1; distance < n; distance *= 2 {
		left, right := (r.rank-distance+n)%n, (r.rank+distance)%n
		sends[left] = r.send(phaseData, left, all[:min(distance, n-distance)*block])
		if err := r.received(recvs[right]); err != nil {
			return err
		}
	}
	r.copy(q.Out[r.rank*block:], all)
	r.copy(q.Out, all[(n-r.rank)*block:])
	return r.sentAll(sends)
}

func (r *run) allToAll() error {
	q := r.req
	recvs, sends := r.handles(), r.others()
	at := 0
	for peer := range r.size {
		length := collective.BlockSize(len(q.Out), q.OutCounts, r.size, peer)
		if peer != r.rank {
			recvs[peer] = r.recv(phaseData, peer, q.Out[at:at+length])
		}
		at += length
	}
	for i := range r.size {
		peer := (r.rank + i) % r.size
		block := collective.Block(q.In, q.InCounts, r.size, peer)
		if peer == r.rank {
			r.keep(collective.Block(q.Out, q.OutCounts, r.size, peer), block)
			continue
		}
		sends[peer] = r.send(phaseData, peer, block)
	}
	if err := r.receivedAll(recvs); err != nil {
		return err
	}
	return r.sentAll(sends)
}

// reduceScatter exchanges halves while blocks are small. Else each block goes to its owner, which reduces it in the order of ranks.
func (r *run) reduceScatter() error {
	q := r.req
	own := collective.Block(q.In, q.InCounts, r.size, r.rank)
	if collective.Even(q.InCounts) && len(q.Out) > 0 {
		if r.halvesBlocks(len(q.Out)) {
			return r.scatterHalves()
		}
		r.keep(q.Out, own)
		return r.pipelined(q.In, r.evenly(q.In), q.Out, false)
	}
	// Uneven blocks: one message per pair.
	recvs, sends := r.handles(), r.others()
	scratch := r.buffer(len(own) * r.size)
	for i := 1; i < r.size; i++ {
		peer := (r.rank + i) % r.size
		recvs[peer] = r.recv(phaseData, peer, scratch[peer*len(own):(peer+1)*len(own)])
		sends[peer] = r.send(phaseData, peer, collective.Block(q.In, q.InCounts, r.size, peer))
	}
	if err := r.receivedAll(recvs); err != nil {
		return err
	}
	r.keep(scratch[r.rank*len(own):], own)
	sum := scratch[:len(own)]
	for peer := 1; peer < r.size; peer++ {
		r.combine(q.Out, sum, scratch[peer*len(own):(peer+1)*len(own)])
		sum = q.Out
	}
	r.finishAverage(q.Out)
	return r.sentAll(sends)
}

// barrier is a dissemination barrier: after round k everybody knows of 2^k ranks. With four to seven ranks the first one receives from all
// others and answers, which takes fewer messages: ranks that share cores wait less for each other.
func (r *run) barrier() error {
	if r.size >= 4 && r.size < 8 {
		return r.barrierAtOne()
	}
	for distance := 1; distance < r.size; distance *= 2 {
		in := r.recv(phaseData, (r.rank-distance+r.size)%r.size, nil)
		if err := r.sent(r.send(phaseData, (r.rank+distance)%r.size, nil)); err != nil {
			return err
		}
		if err := r.received(in); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) barrierAtOne() error {
	if r.rank != 0 {
		out := r.recv(phaseResult, 0, nil)
		if err := r.sent(r.send(phaseData, 0, nil)); err != nil {
			return err
		}
		return r.received(out)
	}
	recvs, sends := r.handles(), r.others()
	for peer := 1; peer < r.size; peer++ {
		recvs[peer] = r.recv(phaseData, peer, nil)
	}
	if err := r.receivedAll(recvs); err != nil {
		return err
	}
	for peer := 1; peer < r.size; peer++ {
		sends[peer] = r.send(phaseResult, peer, nil)
	}
	return r.sentAll(sends)
}

var _ collective.Engine = (*Engine)(nil)
