// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"slices"
)

// cube is one step of bcube: a group of ranks that split a range of the buffer among themselves.
type cube struct {
	ranks       []int
	me          int // own position in ranks
	off, length int // the range, in elements
	chunk       int // elements per member, the last ones may get less
}

// part returns the range of member i, in elements. It may be empty.
func (c cube) part(i int) (off, length int) {
	return c.off + i*c.chunk, min(c.chunk, max(0, c.length-i*c.chunk))
}

// cubes are the steps of a world: factors of two first, then what is left.
func cubes(rank, size, elements int) []cube {
	var steps []cube
	distance, off, length := 1, 0, elements
	for left := size; left > 1; {
		n := 2
		if left%2 != 0 {
			n = left
		}
		left /= n
		c := cube{me: rank / distance % n, off: off, length: length, chunk: ceilDiv(length, n)}
		base := rank - c.me*distance
		for i := range n {
			c.ranks = append(c.ranks, base+i*distance)
		}
		steps = append(steps, c)
		off, length = c.part(c.me)
		distance *= n
	}
	return steps
}

// bcubeAllReduce is gloo's other all-reduce: in every step the members of a group exchange their parts directly.
// Messages are sent even when they are empty.
func (x *run) bcubeAllReduce(buf []byte, slot uint64) error {
	es := x.req.DType.Size()
	steps := cubes(x.rank, x.size, len(buf)/es)
	// cut returns a range of buf; gloo computes offsets behind the end for empty parts.
	cut := func(off, length int) []byte {
		if length == 0 {
			return nil
		}
		return buf[off*es : (off+length)*es]
	}
	for _, c := range steps {
		off, length := c.part(c.me)
		tmp := x.temp(len(c.ranks) * length * es)
		if err := x.exchange(c, slot,
			func(i int) []byte { return tmp[i*length*es : (i+1)*length*es] },
			func(i int) []byte { return cut(c.part(i)) }); err != nil {
			return err
		}
		for i := range c.ranks {
			if i != c.me && length > 0 {
				x.engine.into(cut(off, length), tmp[i*length*es:(i+1)*length*es], x.req.DType, x.req.Op)
			}
		}
	}
	for _, c := range slices.Backward(steps) {
		if err := x.exchange(c, slot,
			func(i int) []byte { return cut(c.part(i)) },
			func(int) []byte { return cut(c.part(c.me)) }); err != nil {
			return err
		}
	}
	return nil
}

// exchange sends one message to and receives one from every other member of a step.
func (x *run) exchange(c cube, slot uint64, in, out func(i int) []byte) error {
	n := 0
	for i, peer := range c.ranks {
		if i != c.me {
			x.recv(n, peer, slot, in(i))
			n++
		}
	}
	recvs := n
	for i, peer := range c.ranks {
		if i != c.me {
			x.send(n, peer, slot, out(i))
			n++
		}
	}
	for i := range n {
		wait := x.waitRecv
		if i >= recvs {
			wait = x.waitSend
		}
		if err := wait(i); err != nil {
			return err
		}
	}
	return nil
}
