// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import "github.com/cohort-dist/cohort/internal/coll"

// Operations with a root. Empty acknowledgements flow against the data, so that a rank which only sends learns that the
// others called the same before it says that it succeeded.

// fromRoot numbers ranks from the root on.
func (r *run) fromRoot() int { return (r.rank - r.req.Root + r.size) % r.size }

func (r *run) atPlace(place int) int { return (place + r.req.Root) % r.size }

func (r *run) broadcast() error {
	if len(r.req.Out) > r.tuning.Small && r.size > 2 {
		return r.chain()
	}
	place := r.fromRoot()
	// The parent's place is the own one without its lowest set bit; children differ in a lower bit.
	lowest := place & -place
	if place != 0 {
		if err := r.received(r.recv(phaseData, r.atPlace(place-lowest), r.req.Out)); err != nil {
			return err
		}
	} else {
		for lowest = 1; lowest < r.size; lowest *= 2 {
		}
	}
	for bit := lowest / 2; bit > 0; bit /= 2 {
		if place+bit < r.size {
			if err := r.sent(r.send(phaseData, r.atPlace(place+bit), r.req.Out)); err != nil {
				return err
			}
		}
	}
	for bit := lowest / 2; bit > 0; bit /= 2 {
		if place+bit < r.size {
			if err := r.received(r.recv(phaseAck, r.atPlace(place+bit), nil)); err != nil {
				return err
			}
		}
	}
	if place != 0 {
		return r.sent(r.send(phaseAck, r.atPlace(place-lowest), nil))
	}
	return nil
}

// chain is the broadcast of a large buffer: it runs through all ranks in segments, each rank passes on what it got.
func (r *run) chain() error {
	out, place := r.req.Out, r.fromRoot()
	elem := r.req.DType.Size()
	size := r.segmentSize(elem, len(out))
	segments := ceilDiv(len(out), size)
	depth := min(r.tuning.Depth, segments)
	before, after := r.atPlace(place-1+r.size), r.atPlace(place+1)
	last := place == r.size-1
	sends, recvs := make([]handle, depth), make([]handle, depth)
	for i := range depth {
		sends[i], recvs[i] = none, none
	}
	for s := range segments + depth {
		if s < segments && place != 0 {
			from, to := coll.Segment(0, len(out), size, s)
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
		from, to := coll.Segment(0, len(out), size, t)
		sends[t%depth] = r.send(phaseData, after, out[from:to])
	}
	for _, h := range sends {
		if err := r.sent(h); err != nil {
			return err
		}
	}
	if !last {
		if err := r.received(r.recv(phaseAck, after, nil)); err != nil {
			return err
		}
	}
	if place != 0 {
		return r.sent(r.send(phaseAck, before, nil))
	}
	return nil
}

func (r *run) reduce() error {
	if len(r.req.Out) <= r.tuning.Small || len(r.req.Out)/r.req.DType.Size() < r.size {
		return r.reduceTree()
	}
	return r.reduceBlocks()
}

// reduceTree sends small buffers up a binomial tree over the real ranks (so that operands stay in the order of ranks) to
// rank 0, which hands the result to the root; the acknowledgement runs down again.
func (r *run) reduceTree() error {
	size := len(r.req.Out)
	scratch := r.buffer(2 * size)
	sum, other := scratch[:size], scratch[size:]
	r.copy(sum, r.req.Out)
	bit := 1
	for ; bit < r.size && r.rank&bit == 0; bit *= 2 {
		if r.rank+bit < r.size {
			if err := r.received(r.recv(phaseData, r.rank+bit, other)); err != nil {
				return err
			}
			r.combine(sum, sum, other)
		}
	}
	root := r.req.Root
	if r.rank != 0 {
		parent := r.rank - bit
		if err := r.sent(r.send(phaseData, parent, sum)); err != nil {
			return err
		}
		if r.rank == root {
			if err := r.received(r.recv(phaseResult, 0, r.req.Out)); err != nil {
				return err
			}
		}
		if err := r.received(r.recv(phaseAck, parent, nil)); err != nil {
			return err
		}
	} else {
		r.finishAverage(sum)
		if root == 0 {
			r.copy(r.req.Out, sum)
		} else if err := r.sent(r.send(phaseResult, root, sum)); err != nil {
			return err
		}
	}
	for bit /= 2; bit > 0; bit /= 2 {
		if r.rank+bit < r.size {
			if err := r.sent(r.send(phaseAck, r.rank+bit, nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

// reduceBlocks is the reduce of a large buffer: every rank reduces one block and sends it to the root. Only the root's
// buffer changes.
func (r *run) reduceBlocks() error {
	q := r.req
	elem := q.DType.Size()
	blocks := coll.Parts{Total: len(q.Out), Elem: elem, Ranks: r.size}
	from, to := blocks.Of(r.rank)
	p := &r.pipe
	p.run, p.data, p.back, p.blocks = r, q.Out, false, blocks
	p.own = q.Out[from:to]
	if r.rank != q.Root {
		own := r.spare(len(p.own))
		r.copy(own, p.own)
		p.own = own
	}
	own := p.own
	if err := p.execute(); err != nil {
		return err
	}
	if r.rank != q.Root {
		if err := r.sent(r.send(phaseResult, q.Root, own)); err != nil {
			return err
		}
		return r.received(r.recv(phaseAck, q.Root, nil))
	}
	handles := r.handles()
	for peer := range r.size {
		if a, b := blocks.Of(peer); peer != r.rank {
			handles[peer] = r.recv(phaseResult, peer, q.Out[a:b])
		}
	}
	if err := r.receivedAll(handles); err != nil {
		return err
	}
	return r.ackAll()
}

func (r *run) gather() error {
	q := r.req
	if r.rank != q.Root {
		if err := r.sent(r.send(phaseData, q.Root, q.In)); err != nil {
			return err
		}
		return r.received(r.recv(phaseAck, q.Root, nil))
	}
	handles := r.handles()
	at := 0
	for peer := range r.size {
		length := coll.BlockSize(len(q.Out), q.OutCounts, r.size, peer)
		if room := q.Out[at : at+length]; peer == r.rank {
			r.copy(room, q.In)
		} else {
			handles[peer] = r.recv(phaseData, peer, room)
		}
		at += length
	}
	if err := r.receivedAll(handles); err != nil {
		return err
	}
	return r.ackAll()
}

func (r *run) scatter() error {
	q := r.req
	if r.rank != q.Root {
		if err := r.received(r.recv(phaseData, q.Root, q.Out)); err != nil {
			return err
		}
		return r.sent(r.send(phaseAck, q.Root, nil))
	}
	handles := r.handles()
	at := 0
	for peer := range r.size {
		length := coll.BlockSize(len(q.In), q.InCounts, r.size, peer)
		if block := q.In[at : at+length]; peer == r.rank {
			r.copy(q.Out, block)
		} else {
			handles[peer] = r.send(phaseData, peer, block)
		}
		at += length
	}
	if err := r.sentAll(handles); err != nil {
		return err
	}
	for peer := range r.size {
		if peer != r.rank {
			handles[peer] = r.recv(phaseAck, peer, nil)
		}
	}
	return r.receivedAll(handles)
}

// ackAll tells every rank that the root has everything.
func (r *run) ackAll() error {
	for i := 1; i < r.size; i++ {
		if err := r.sent(r.send(phaseAck, (r.rank+i)%r.size, nil)); err != nil {
			return err
		}
	}
	return nil
}
