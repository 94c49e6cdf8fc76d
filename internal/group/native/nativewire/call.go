// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package nativewire is the format of the native wire between Go ranks: the hello of a connection, the header of a frame and the
// description of a collective that travels with its messages. It does no I/O.
package nativewire

import (
	"fmt"
	"strings"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Call says what a rank called, in 32 bytes, so that each message of a collective can carry it and a receiver can tell
// whether both sides mean the same operation.
type Call struct {
	Kind  collective.Kind
	Op    reduce.Op
	DType tensor.DType
	Root  uint16
	// Bytes is the size that all ranks must agree on, or a hash of the sizes where each rank has its own.
	Bytes uint64
	// Shape is the shape that ranks must agree on; it has no opinion where PyTorch compares none.
	Shape collective.Shape
}

// Agrees reports whether rank, which called c, and peer, which called o, may run the operation together.
//
// Beside their bytes, shapes are compared where both have one; with uneven blocks only with the root, which knows the blocks of
// all ranks.
func (c *Call) Agrees(o *Call, rank, peer int) bool {
	if c.Kind != o.Kind || c.Op != o.Op || c.DType != o.DType || c.Root != o.Root || c.Bytes != o.Bytes {
		return false
	}
	if c.Shape == o.Shape || !c.Shape.Known() || !o.Shape.Known() {
		return true
	}
	return c.Bytes == unevenBlocks && rank != int(c.Root) && peer != int(c.Root)
}

// unevenBlocks stands for the size of blocks of which only the root of a gather or scatter knows the sizes.
const unevenBlocks = 1 << 63

// monitored tells a monitored barrier from a plain one, in the place of the root.
const monitored = 1

// MonitoredBarrier describes a monitored barrier, whose own messages carry no call.
func MonitoredBarrier() Call { return Call{Kind: collective.Barrier, Root: monitored} }

// Name returns PyTorch's name of the collective.
func (c *Call) Name() string {
	if c.Kind == collective.Barrier && c.Root == monitored {
		return "monitored_barrier"
	}
	return c.Kind.String()
}

// CallOf describes a request. Sizes that may differ from rank to rank (uneven gather and scatter, all-to-all) are left out: there
// each message's length is checked against its room.
func CallOf(q *collective.Request) Call {
	c := Call{Kind: q.Kind, DType: q.DType, Shape: q.Shape}
	if q.Kind.Reduces() {
		c.Op = q.Op
	}
	if q.Kind.Rooted() {
		c.Root = uint16(q.Root) //nolint:gosec // bounded by MaxRanks
	}
	switch q.Kind {
	case collective.AllReduce, collective.Broadcast, collective.Reduce:
		c.Bytes = uint64(len(q.Out))
	case collective.AllGather:
		c.Bytes = uint64(len(q.In))
	case collective.AllGatherV:
		c.Bytes = hashCounts(q.OutCounts)
	case collective.ReduceScatter:
		c.Bytes = uint64(len(q.In))
		if q.InCounts != nil {
			c.Bytes = hashCounts(q.InCounts)
		}
	case collective.Gather, collective.Scatter:
		switch {
		case q.Uneven:
			c.Bytes = unevenBlocks
		case q.Kind == collective.Gather:
			c.Bytes = uint64(len(q.In))
		default:
			c.Bytes = uint64(len(q.Out))
		}
	case collective.AllToAll, collective.Barrier:
	}
	return c
}

// hashCounts is FNV-1a over the counts, with the highest bit set so that it never looks like a size.
func hashCounts(counts []int) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range counts {
		for shift := 0; shift < 64; shift += 8 {
			h = (h ^ uint64(c)>>shift&0xff) * 1099511628211 //nolint:gosec // counts are not negative
		}
	}
	return h | 1<<63
}

// String returns the call as a user would write it.
func (c *Call) String() string {
	var b strings.Builder
	if c.Kind > collective.Barrier {
		return fmt.Sprintf("collective(%d)", c.Kind)
	}
	b.WriteString(c.Name())
	b.WriteByte('(')
	var list []string
	if c.Kind.Reduces() && c.Op.Valid() {
		list = append(list, c.Op.String())
	}
	if c.Kind != collective.Barrier {
		list = append(list, c.DType.String())
	}
	if c.Bytes == unevenBlocks {
		list = append(list, "uneven")
	}
	switch {
	case c.Shape.Known():
		list = append(list, "shape "+c.Shape.String())
	case c.Bytes == unevenBlocks:
	case c.Bytes>>63 != 0:
		list = append(list, fmt.Sprintf("uneven blocks #%04x", c.Bytes&0xffff))
	case c.Bytes != 0 || c.Kind == collective.AllReduce || c.Kind == collective.Broadcast:
		if size := uint64(c.DType.Size()); size != 0 && c.Bytes%size == 0 { //nolint:gosec // small
			list = append(list, fmt.Sprintf("%d elements", c.Bytes/size))
		} else {
			list = append(list, fmt.Sprintf("%d bytes", c.Bytes))
		}
	}
	if c.Kind.Rooted() {
		list = append(list, fmt.Sprintf("root %d", c.Root))
	}
	b.WriteString(strings.Join(list, ", "))
	b.WriteByte(')')
	return b.String()
}

// collectiveBit tells slots of collectives from those of point-to-point messages, whose slot is the user's tag.
const collectiveBit = 1 << 63

// CollectiveSlot is the first slot of the collective with this tag; the low eight bits are its phases.
func CollectiveSlot(tag uint32) uint64 { return collectiveBit | uint64(tag)<<8 }

// LaneSlot is the slot of the messages in which ranks send each other the addresses of their other lanes. No user's tag has it.
const LaneSlot = 1 << 62

// IsCollective reports whether a slot belongs to a collective.
func IsCollective(slot uint64) bool { return slot&collectiveBit != 0 }

// BaseSlot strips the phase of a collective's slot.
func BaseSlot(slot uint64) uint64 { return slot &^ 0xff }

// TagOf returns the tag of a collective's slot.
func TagOf(slot uint64) uint32 { return uint32(slot >> 8) } //nolint:gosec // the tag's 32 bits
