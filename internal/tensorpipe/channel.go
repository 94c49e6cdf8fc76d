// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"encoding/binary"
	"net"
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
func piece(n, i, lanes int) (from, to int) { return n * i / lanes, n * (i + 1) / lanes }

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

// read fills data with the next storage.
func (c *channel) read(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	for i, lane := range c.lanes {
		from, to := piece(len(data), i, len(c.lanes))
		lane.expect(frameHead + to - from)
		if err := lane.readInto(data[from:to], "a tensor storage"); err != nil {
			return err
		}
	}
	return nil
}
