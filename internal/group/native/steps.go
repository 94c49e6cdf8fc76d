// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"math/bits"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

// ring is the all-reduce for large buffers and many ranks: each rank talks to its two neighbours only. Blocks travel to
// the right and are reduced on their way; then the finished blocks travel once around. Each block is cut into segments, so
// that a segment moves on while the next one arrives.
func (r *run) ring() error {
	out := r.req.Out
	blocks := r.evenly(out)
	if err := r.around(blocks); err != nil {
		return err
	}
	from, to := blocks.Of((r.rank + 1) % r.size)
	r.finishAverage(out[from:to])
	return r.pass(blocks, phaseResult, (r.rank+1)%r.size, out[from:to])
}

// pass hands size-1 finished blocks to the right neighbour, starting with block first, which is data, each rank passing on what
// it got from the left. Room for all of them is announced before it is needed.
func (r *run) pass(blocks collective.Parts, phase uint8, first int, data []byte) error {
	n := r.size
	left, right := (r.rank+n-1)%n, (r.rank+1)%n
	block := func(step int) []byte {
		from, to := blocks.Of((first - step + n) % n)
		return r.req.Out[from:to]
	}
	recvs, sends := r.handles(), r.others()
	for step := range n - 1 {
		if room := block(step + 1); len(room) > 0 {
			recvs[step] = r.recv(phase, left, room)
		}
	}
	for step := range n - 1 {
		if step > 0 {
			data = block(step)
		}
		if len(data) > 0 {
			sends[step] = r.send(phase, right, data)
		}
		if step == 0 {
			r.place(block(0), data)
		}
		if err := r.received(recvs[step]); err != nil {
			return err
		}
	}
	return r.sentAll(sends)
}

// around passes size-1 blocks to the right neighbour, starting with the own one. Each rank merges what it got from the left
// into its part of that block and passes it on.
func (r *run) around(blocks collective.Parts) error {
	out, n := r.req.Out, r.size
	left, right := (r.rank+n-1)%n, (r.rank+1)%n
	size := min(r.segmentSize(blocks.Elem, blocks.Longest()), max(blocks.Longest(), blocks.Elem))
	segments := max(ceilDiv(blocks.Longest(), size), 1)
	depth := min(r.tuning.Depth, segments) // a segment that is passed on was merged already: see items below
	scratch := r.buffer(depth * size)
	span := func(step, s int) (int, int) {
		from, to := blocks.Of((r.rank - step + n) % n)
		return collective.Segment(from, to, size, s)
	}
	sends, recvs := empty(&r.pipe.give, depth), empty(&r.pipe.take, depth)
	// Item i is segment i%segments of step i/segments. Its send needs the merge of item i-segments, which is done since
	// depth <= segments.
	items := (n - 1) * segments
	for i := range items + depth {
		if i < items {
			if err := r.sent(sends[i%depth]); err != nil {
				return err
			}
			sends[i%depth] = none
			if from, to := span(i/segments+1, i%segments); from < to {
				recvs[i%depth] = r.recv(phaseData, left, scratch[i%depth*size:][:to-from])
			}
			if from, to := span(i/segments, i%segments); from < to {
				sends[i%depth] = r.send(phaseData, right, out[from:to])
			}
		}
		if j := i - depth + 1; j >= 0 && j < items {
			if err := r.received(recvs[j%depth]); err != nil {
				return err
			}
			recvs[j%depth] = none
			if from, to := span(j/segments+1, j%segments); from < to {
				r.combine(out[from:to], scratch[j%depth*size:][:to-from], out[from:to])
			}
		}
	}
	return r.sentAll(sends)
}

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

// Which way a collective takes is decided by its steps, which follow one after another: in a step a rank sends at most one message of
// up to stepBytes and receives at most one. Where two ways take as many, the one with fewer messages is taken while the messages are
// small, and the one with fewer copies or more overlap when they are not. TestStepsAndMessages compares with OpenMPI by the same measure.

// stepBytes is what a message may have to take a single step.
const stepBytes = 64 << 10

// units is how many steps a message takes.
func units(bytes int) int { return max(1, ceilDiv(bytes, stepBytes)) }

// doubled is the steps of a tree, or of an exchange between pairs, with messages of 1, 2, 4... blocks until there are n.
func doubled(n, block int) int {
	steps := 0
	for have := 1; have < n; have *= 2 {
		steps += units(min(have, n-have) * block)
	}
	return steps
}

// halved is the steps of a reduce-scatter in which positions exchange halves. A rank that stays out hands over all n blocks before
// and gets its own afterwards.
func halved(p positions, block int) int {
	steps := 0
	for count := p.power / 2; count > 0; count /= 2 {
		steps += units(p.first(count) * block)
	}
	if p.rest > 0 {
		steps += units((p.power+p.rest)*block) + units(block)
	}
	return steps
}

// chained is the steps of segments on their way through n ranks.
func chained(n, segments, size int) int { return (n - 2 + segments) * units(size) }
