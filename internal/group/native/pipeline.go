// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
)

// pipeline is the state of the direct algorithm: rank i owns block i, every rank sends its part of the block to the owner,
// which reduces it in the order of ranks while it is hot. Segments of all blocks are in flight at the same time.
type pipeline struct {
	run     *run
	data    []byte // contributions; with back also the result
	blocks  collective.Parts
	own     []byte // where the own block is reduced
	size    int    // bytes per segment
	depth   int    // segments in flight before they are reduced
	rows    int    // segments that have handles at the same time
	back    bool   // send finished segments to everybody
	scratch []byte

	// Handles per row and rank: contributions given and taken, results sent back and fetched.
	give, take, sendBack, fetch []handle
}

// at returns the index of the handle for segment s and peer.
func (p *pipeline) at(s, peer int) int { return s%p.rows*p.run.size + peer }

// span returns segment s of a rank's block; from equals to where the block has no such segment.
func (p *pipeline) span(owner, s int) (from, to int) {
	a, b := p.blocks.Of(owner)
	return collective.Segment(a, b, p.size, s)
}

// room returns where peer's contribution to segment s of the own block lands.
func (p *pipeline) room(s, peer, length int) []byte {
	at := (s%p.depth*p.run.size + peer) * p.size
	return p.scratch[at : at+length]
}

// evenly cuts a buffer into one block for each rank.
func (r *run) evenly(buf []byte) collective.Parts {
	return collective.Parts{Total: len(buf), Elem: r.req.DType.Size(), Ranks: r.size}
}

// pipelined reduces the own block of data into own, which holds this rank's part of it. With back all ranks get all blocks, in data.
func (r *run) pipelined(data []byte, blocks collective.Parts, own []byte, back bool) error {
	_, longest := blocks.Of(0)
	if longest == 0 {
		return nil
	}
	p := &r.pipe
	p.run, p.data, p.blocks, p.own, p.back = r, data, blocks, own, back
	p.size = min(r.segmentSize(blocks.Elem, longest), longest)
	segments := (longest + p.size - 1) / p.size
	p.depth = min(r.tuning.Depth, segments)
	p.rows = 2 * p.depth
	for _, list := range [...]*[]handle{&p.give, &p.take, &p.sendBack, &p.fetch} {
		empty(list, p.rows*r.size)
	}
	p.scratch = r.buffer(p.depth * r.size * p.size)
	defer func() { p.data, p.own, p.scratch = nil, nil, nil }()
	for s := range segments + 2*p.depth {
		if s < segments {
			p.post(s)
		}
		if t := s - p.depth + 1; t >= 0 && t < segments {
			if err := p.reduceSegment(t); err != nil {
				return err
			}
		}
		if u := s - 2*p.depth + 1; u >= 0 && u < segments {
			if err := p.retire(u); err != nil {
				return err
			}
		}
	}
	return nil
}

// post starts all messages of segment s that do not depend on others.
func (p *pipeline) post(s int) {
	r := p.run
	mineFrom, mineTo := p.span(r.rank, s)
	for i := 1; i < r.size; i++ {
		peer := (r.rank + i) % r.size
		if mineFrom < mineTo {
			p.take[p.at(s, peer)] = r.recv(phaseData, peer, p.room(s, peer, mineTo-mineFrom))
		}
		if from, to := p.span(peer, s); from < to {
			if p.back {
				p.fetch[p.at(s, peer)] = r.recv(phaseResult, peer, p.data[from:to])
			}
			p.give[p.at(s, peer)] = r.send(phaseData, peer, p.data[from:to])
		}
	}
}

// reduceSegment waits for all contributions to segment s of the own block, reduces them in the order of ranks and, with
// back, sends the result to everybody.
func (p *pipeline) reduceSegment(s int) error {
	r := p.run
	from, to := p.span(r.rank, s)
	if from == to {
		return nil
	}
	for peer := range r.size {
		if peer == r.rank {
			continue
		}
		if err := r.received(p.take[p.at(s, peer)]); err != nil {
			return err
		}
		p.take[p.at(s, peer)] = none
	}
	start, _ := p.blocks.Of(r.rank)
	own := p.own[from-start : to-start]
	p.fold(own, s)
	if p.back {
		for i := 1; i < r.size; i++ {
			peer := (r.rank + i) % r.size
			p.sendBack[p.at(s, peer)] = r.send(phaseResult, peer, own)
		}
	}
	return nil
}

// foldBlock keeps a block of all operands in the first-level cache.
const foldBlock = 8 << 10

// fold reduces the contributions to segment s into own, in the order of ranks, and divides where the operator is an average. What the
// ranks before the own one gave is combined in the room of the first of them.
func (p *pipeline) fold(own []byte, s int) {
	r := p.run
	if !r.first() {
		return
	}
	op, dt := r.req.Op, r.req.DType
	for from := 0; from < len(own); from += foldBlock {
		to := min(from+foldBlock, len(own))
		mine := own[from:to]
		var before []byte
		for peer := range r.size {
			part := p.room(s, peer, len(own))[from:to]
			switch {
			case peer > r.rank:
				reduce.Combine(mine, mine, part, dt, op)
			case peer == r.rank:
				if before != nil {
					reduce.Combine(mine, before, mine, dt, op)
				}
			case before == nil:
				before = part
			default:
				reduce.Combine(before, before, part, dt, op)
			}
		}
		if op == reduce.Avg {
			reduce.Divide(mine, dt, r.size)
		}
	}
	r.done = r.step
}

// retire waits for the rest of segment s.
func (p *pipeline) retire(s int) error {
	r := p.run
	for peer := range r.size {
		i := p.at(s, peer)
		if err := r.sent(p.give[i]); err != nil {
			return err
		}
		if err := r.sent(p.sendBack[i]); err != nil {
			return err
		}
		if err := r.received(p.fetch[i]); err != nil {
			return err
		}
		p.give[i], p.sendBack[i], p.fetch[i] = none, none, none
	}
	return nil
}

// handles returns one empty handle per rank, reused from collective to collective.
func (r *run) handles() []handle { return empty(&r.pipe.give, r.size) }

// others is a second list beside handles.
func (r *run) others() []handle { return empty(&r.pipe.take, r.size) }

// more is a third list.
func (r *run) more() []handle { return empty(&r.pipe.sendBack, r.size) }

// empty makes a list, whose memory it uses again, one of n empty handles.
func empty(list *[]handle, n int) []handle {
	if cap(*list) < n {
		*list = make([]handle, n)
	}
	*list = (*list)[:n]
	for i := range *list {
		(*list)[i] = none
	}
	return *list
}

func (r *run) receivedAll(handles []handle) error {
	for i, h := range handles {
		if err := r.received(h); err != nil {
			return err
		}
		handles[i] = none
	}
	return nil
}

func (r *run) sentAll(handles []handle) error {
	for i, h := range handles {
		if err := r.sent(h); err != nil {
			return err
		}
		handles[i] = none
	}
	return nil
}
