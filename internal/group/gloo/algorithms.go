// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
)

// barrier is a dissemination barrier: in step d, rank r receives from r-d and sends to r+d.
func (x *run) barrier() error {
	slot := x.slot(gloowire.Barrier)
	for d := 1; d < x.size; d <<= 1 {
		x.recv(0, x.mod(x.rank-d), slot, nil)
		x.send(1, x.mod(x.rank+d), slot, nil)
		if err := x.waitRecv(0); err != nil {
			return err
		}
		if err := x.waitSend(1); err != nil {
			return err
		}
	}
	return nil
}

// broadcast is a binomial tree; every message is the whole buffer.
func (x *run) broadcast() error {
	buf, slot := x.req.Out, x.slot(gloowire.Broadcast)
	v := x.mod(x.rank - x.req.Root)
	sends := 0
	for bit := 1; bit < x.size; bit <<= 1 {
		if v >= bit<<1 {
			continue // not reached by the tree yet
		}
		partner := v ^ bit
		if partner >= x.size {
			continue
		}
		peer := x.mod(partner + x.req.Root)
		if v&bit == 0 {
			sends++
			x.send(sends, peer, slot, buf)
			continue
		}
		x.recv(0, peer, slot, buf)
		if err := x.waitRecv(0); err != nil {
			return err
		}
	}
	for i := range sends {
		if err := x.waitSend(i + 1); err != nil {
			return err
		}
	}
	return nil
}

// allGather is a ring upwards: blocks travel from r-1 to r+1 in two halves, two steps in flight. A half may be empty; its
// message is sent all the same.
func (x *run) allGather() error {
	r := x.req
	copy(collective.Block(r.Out, nil, x.size, x.rank), r.In)
	if x.size == 1 || len(r.Out) == 0 {
		return nil
	}
	slot, cut := x.slot(gloowire.AllGather), len(r.In)/2
	half := func(rank, i int) []byte {
		b := collective.Block(r.Out, nil, x.size, x.mod(rank))
		if i&1 == 0 {
			return b[:cut]
		}
		return b[cut:]
	}
	from, to := x.mod(x.rank-1), x.mod(x.rank+1)
	steps := 2 * (x.size - 1)
	for i := range steps + 2 {
		s, rc := 2*(i&1), 2*(i&1)+1
		if i >= 2 {
			if err := x.waitSend(s); err != nil {
				return err
			}
			if err := x.waitRecv(rc); err != nil {
				return err
			}
		}
		if i < steps {
			x.send(s, to, slot, half(x.rank-i/2, i))
			x.recv(rc, from, slot, half(x.rank-i/2-1, i))
		}
	}
	return nil
}

// allGatherV is a ring upwards with whole blocks, one step at a time.
func (x *run) allGatherV() error {
	r := x.req
	copy(collective.Block(r.Out, r.OutCounts, x.size, x.rank), r.In)
	if x.size == 1 || len(r.Out) == 0 && !x.engine.empties {
		return nil
	}
	slot, from, to := x.slot(gloowire.AllGather), x.mod(x.rank-1), x.mod(x.rank+1)
	for i := range x.size - 1 {
		x.send(0, to, slot, collective.Block(r.Out, r.OutCounts, x.size, x.mod(x.rank-i)))
		x.recv(1, from, slot, collective.Block(r.Out, r.OutCounts, x.size, x.mod(x.rank-i-1)))
		if err := x.waitSend(0); err != nil {
			return err
		}
		if err := x.waitRecv(1); err != nil {
			return err
		}
	}
	return nil
}

// gather: every rank sends its block to the root.
func (x *run) gather() error {
	r, slot := x.req, x.slot(gloowire.Gather)
	if x.rank != r.Root {
		x.send(0, r.Root, slot, r.In)
		return x.waitSend(0)
	}
	copy(collective.Block(r.Out, r.OutCounts, x.size, x.rank), r.In)
	return x.receiveAll(slot, func(peer int) []byte { return collective.Block(r.Out, r.OutCounts, x.size, peer) })
}

// receiveAll receives one message from every other rank.
func (x *run) receiveAll(slot uint64, room func(peer int) []byte) error {
	n := 0
	for peer := range x.size {
		if peer != x.rank {
			x.recv(n, peer, slot, room(peer))
			n++
		}
	}
	for i := range n {
		if err := x.waitRecv(i); err != nil {
			return err
		}
	}
	return nil
}

// scatter: the root sends every rank its block.
func (x *run) scatter() error {
	r, slot := x.req, x.slot(gloowire.Scatter)
	if x.rank != r.Root {
		x.recv(0, r.Root, slot, r.Out)
		return x.waitRecv(0)
	}
	n := 0
	for peer := range x.size {
		if peer != x.rank {
			x.send(n, peer, slot, collective.Block(r.In, r.InCounts, x.size, peer))
			n++
		}
	}
	copy(r.Out, collective.Block(r.In, r.InCounts, x.size, x.rank))
	for i := range n {
		if err := x.waitSend(i); err != nil {
			return err
		}
	}
	return nil
}

// allToAll posts everything at once.
func (x *run) allToAll() error {
	r, slot := x.req, x.slot(gloowire.AllToAll)
	copy(collective.Block(r.Out, r.OutCounts, x.size, x.rank), collective.Block(r.In, r.InCounts, x.size, x.rank))
	for i := 1; i < x.size; i++ {
		to, from := x.mod(x.rank+i), x.mod(x.rank-i)
		x.send(2*i-2, to, slot, collective.Block(r.In, r.InCounts, x.size, to))
		x.recv(2*i-1, from, slot, collective.Block(r.Out, r.OutCounts, x.size, from))
	}
	for i := 1; i < x.size; i++ {
		if err := x.waitSend(2*i - 2); err != nil {
			return err
		}
		if err := x.waitRecv(2*i - 1); err != nil {
			return err
		}
	}
	return nil
}
