// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import "github.com/cohort-dist/cohort/internal/group/collective"

// Operations with a root. Data flows one way and nothing flows back: a rank whose part is done does not wait for the others.
// If one of them called something else, it fails the mesh, and this rank learns of it in its next call at the latest.

// fromRoot numbers ranks from the root on.
func (r *run) fromRoot() int { return (r.rank - r.req.Root + r.size) % r.size }

func (r *run) atPlace(place int) int { return (place + r.req.Root) % r.size }

// subtree returns the shape of the binomial tree at a place. The parent's place is the own one without its lowest set bit, which
// is span; children are at the distances 1, 2, 4... below span. count is the number of places from this one down.
func (r *run) subtree(place int) (count, span int) {
	if span = place & -place; place == 0 {
		for span = 1; span < r.size; span *= 2 {
		}
	}
	return min(span, r.size-place), span
}

func (r *run) broadcast() error {
	bytes := len(r.req.Out)
	if bytes <= r.tuning.Tree || r.size == 2 {
		return r.broadcastTree()
	}
	size := r.segmentSize(r.req.DType.Size(), bytes)
	segments := ceilDiv(bytes, size)
	if r.size >= r.tuning.SpreadFrom && 2*doubled(r.size, ceilDiv(bytes, r.size)) < chained(r.size, segments, size) {
		return r.spread()
	}
	return r.chain(size, segments)
}

// broadcastTree sends the whole buffer down a binomial tree.
func (r *run) broadcastTree() error {
	place := r.fromRoot()
	count, span := r.subtree(place)
	if place != 0 {
		if err := r.received(r.recv(phaseData, r.atPlace(place-span), r.req.Out)); err != nil {
			return err
		}
	}
	children := r.handles()[:0]
	for bit := span / 2; bit > 0; bit /= 2 {
		if bit < count {
			children = append(children, r.send(phaseData, r.atPlace(place+bit), r.req.Out))
		}
	}
	return r.sentAll(children)
}

// chain is the broadcast of a large buffer: it runs through all ranks in segments, each rank passes on what it got.
func (r *run) chain(size, segments int) error {
	out, place := r.req.Out, r.fromRoot()
	depth := min(r.tuning.Depth, segments)
	before, after := r.atPlace(place-1+r.size), r.atPlace(place+1)
	last := place == r.size-1
	sends, recvs := empty(&r.pipe.give, depth), empty(&r.pipe.take, depth)
	for s := range segments + depth {
		if s < segments && place != 0 {
			from, to := collective.Segment(0, len(out), size, s)
			recvs[s%depth] = r.recv(phaseData, before, out[from:to])
		}
		t := s - depth + 1
		if t < 0 || t >= segments {
			continue
		}
		if err := r.received(recvs[t%depth]); err != nil {
			return err
		}
		recvs[t%depth] = none
		if last {
			continue
		}
		if err := r.sent(sends[t%depth]); err != nil {
			return err
		}
		from, to := collective.Segment(0, len(out), size, t)
		sends[t%depth] = r.send(phaseData, after, out[from:to])
	}
	return r.sentAll(sends)
}

func (r *run) reduce() error {
	rise := r.tuning.Rise
	if r.size == 2 {
		rise *= 4 // blocks take as many steps, and half as many bytes more
	}
	if len(r.req.Out) <= rise || len(r.req.Out)/r.req.DType.Size() < r.size {
		return r.reduceTree()
	}
	return r.reduceBlocks()
}

// reduceTree sends buffers up a binomial tree to the root. The operands are in the order of ranks, from the root on.
func (r *run) reduceTree() error {
	out, place := r.req.Out, r.fromRoot()
	count, span := r.subtree(place)
	if count == 1 {
		return r.sent(r.send(phaseData, r.atPlace(place-span), out))
	}
	scratch := r.buffer(2 * len(out))
	sum, other := scratch[:len(out)], scratch[len(out):]
	if place == 0 {
		sum = out // only the root's buffer changes
	}
	from := out
	for bit := 1; bit < count; bit *= 2 {
		if err := r.received(r.recv(phaseData, r.atPlace(place+bit), other)); err != nil {
			return err
		}
		r.combine(sum, from, other)
		from = sum
	}
	if place != 0 {
		return r.sent(r.send(phaseData, r.atPlace(place-span), sum))
	}
	r.finishAverage(sum)
	return nil
}

// reduceBlocks is the reduce of a large buffer: every rank reduces one block and sends it to the root. Only the root's
// buffer changes.
func (r *run) reduceBlocks() error {
	q := r.req
	blocks := r.evenly(q.Out)
	from, to := blocks.Of(r.rank)
	own := q.Out[from:to]
	if r.rank != q.Root {
		own = r.spare(len(own))
		r.keep(own, q.Out[from:to])
	}
	if err := r.pipelined(q.Out, blocks, own, false); err != nil {
		return err
	}
	if r.rank != q.Root {
		return r.sent(r.send(phaseResult, q.Root, own))
	}
	handles := r.handles()
	for peer := range r.size {
		if a, b := blocks.Of(peer); peer != r.rank {
			handles[peer] = r.recv(phaseResult, peer, q.Out[a:b])
		}
	}
	return r.receivedAll(handles)
}

// relays reports whether blocks below a limit travel along a tree. Only the root knows the sizes of uneven blocks, so no other rank
// could pass them on. With two or three ranks the root has as many steps either way. A tree of eight or more ranks saves more of them,
// which is worth longer blocks.
func (r *run) relays(block, limit int) bool {
	if r.size >= 8 {
		limit += limit / 2
	}
	return !r.req.Uneven && r.size > 3 && block < limit
}

func (r *run) gather() error {
	q := r.req
	if r.relays(len(q.In), r.tuning.Relay) {
		return r.gatherTree(len(q.In))
	}
	if r.rank != q.Root {
		return r.sent(r.send(phaseData, q.Root, q.In))
	}
	handles := r.handles()
	at := 0
	for peer := range r.size {
		length := collective.BlockSize(len(q.Out), q.OutCounts, r.size, peer)
		if room := q.Out[at : at+length]; peer == r.rank {
			r.keep(room, q.In)
		} else {
			handles[peer] = r.recv(phaseData, peer, room)
		}
		at += length
	}
	return r.receivedAll(handles)
}

func (r *run) scatter() error {
	q := r.req
	if r.relays(len(q.Out), r.tuning.Relay/2) {
		return r.scatterTree(len(q.Out))
	}
	if r.rank != q.Root {
		return r.received(r.recv(phaseData, q.Root, q.Out))
	}
	handles := r.handles()
	at := 0
	for peer := range r.size {
		length := collective.BlockSize(len(q.In), q.InCounts, r.size, peer)
		if block := q.In[at : at+length]; peer == r.rank {
			r.keep(q.Out, block)
		} else {
			handles[peer] = r.send(phaseData, peer, block)
		}
		at += length
	}
	return r.sentAll(handles)
}

// gatherTree sends small blocks up a binomial tree: each rank passes on what it got from its children with its own block in front.
func (r *run) gatherTree(block int) error {
	q := r.req
	place := r.fromRoot()
	count, span := r.subtree(place)
	all := q.In
	switch {
	case place == 0 && r.rank == 0:
		all = q.Out // places are ranks
	case count > 1:
		all = r.buffer(count * block)
	}
	if count > 1 {
		r.copy(all, q.In)
	}
	handles := r.handles()[:0]
	for bit := 1; bit < count; bit *= 2 {
		handles = append(handles, r.recv(phaseData, r.atPlace(place+bit), all[bit*block:min(2*bit, count)*block]))
	}
	if err := r.receivedAll(handles); err != nil {
		return err
	}
	if place != 0 {
		return r.sent(r.send(phaseData, r.atPlace(place-span), all[:count*block]))
	}
	if r.rank != 0 {
		r.copy(q.Out[r.rank*block:], all)
		r.copy(q.Out, all[(r.size-r.rank)*block:])
	}
	return nil
}

// scatterTree is the way back: each rank gets the blocks of its part of the tree.
func (r *run) scatterTree(block int) error {
	q := r.req
	place := r.fromRoot()
	count, span := r.subtree(place)
	all := q.Out
	switch {
	case place == 0 && r.rank == 0:
		all = q.In
	case count > 1:
		all = r.buffer(count * block)
	}
	if place != 0 {
		if err := r.received(r.recv(phaseData, r.atPlace(place-span), all)); err != nil {
			return err
		}
	} else if r.rank != 0 {
		r.copy(all, q.In[r.rank*block:])
		r.copy(all[(r.size-r.rank)*block:], q.In)
	}
	handles := r.handles()[:0]
	for bit := span / 2; bit > 0; bit /= 2 {
		if bit < count {
			handles = append(handles, r.send(phaseData, r.atPlace(place+bit), all[bit*block:min(2*bit, count)*block]))
		}
	}
	if count > 1 {
		r.copy(q.Out, all)
	}
	return r.sentAll(handles)
}
