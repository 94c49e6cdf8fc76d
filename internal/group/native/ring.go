// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native

import "github.com/cohort-dist/cohort/internal/group/collective"

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
