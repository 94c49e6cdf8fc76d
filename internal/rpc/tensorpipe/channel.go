// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"encoding/binary"
	"io"
	"net"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// channel moves storages beside the descriptors and payloads. The basic channel is one connection; mpt cuts each storage
// into as many pieces as it has lanes. A storage without bytes sends nothing on either.
type channel struct {
	control *stream   // the registered connection; of mpt it carries only the hello
	lanes   []*stream // where the bytes go
}

func (c *channel) streams() []*stream {
	if len(c.lanes) == 1 && c.lanes[0] == c.control {
		return c.lanes
	}
	return append([]*stream{c.control}, c.lanes...)
}

// piece returns lane i's part of n bytes.
func piece(n, i, lanes int) (from, to int) {
	at := func(i int) int { return int(int64(n) * int64(i) / int64(lanes)) }
	return at(i), at(i + 1)
}

// write appends the steps that send data.
func (c *channel) write(steps []step, data []byte) []step {
	if len(data) == 0 {
		return steps
	}
	for i, lane := range c.lanes {
		from, to := piece(len(data), i, len(c.lanes))
		head := binary.LittleEndian.AppendUint64(nil, uint64(to-from)) //nolint:gosec // a length
		if k := len(steps) - 1; len(c.lanes) == 1 && k >= 0 && steps[k].to == lane {
			steps[k].bufs = append(steps[k].bufs, head, data[from:to]) // several storages in one writev
			continue
		}
		bufs := net.Buffers{head}
		if to > from {
			bufs = append(bufs, data[from:to])
		}
		steps = append(steps, step{lane, bufs})
	}
	return steps
}

// laneReader reads the next storage of a channel, of n bytes, part by part.
type laneReader struct {
	c     *channel
	n     int
	lane  int
	left  int // of the lane's frame
	begun bool
}

// fill fills b with the next bytes. The last lane of a storage has a byte at least, so all lanes have been read with the
// last one.
func (r *laneReader) fill(b []byte) error {
	for len(b) > 0 {
		s := r.c.lanes[r.lane]
		if !r.begun {
			from, to := piece(r.n, r.lane, len(r.c.lanes))
			s.expect(frameHead + to - from)
			if err := s.readLength(to-from, "a tensor storage"); err != nil {
				return err
			}
			r.left, r.begun = to-from, true
		}
		k := min(len(b), r.left)
		failpoint.At("tensorpipe.lane.read")
		if _, err := io.ReadFull(s.br, b[:k]); err != nil {
			return err
		}
		b = b[k:]
		if r.left -= k; r.left == 0 {
			r.lane, r.begun = r.lane+1, false
		}
	}
	return nil
}
