// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloowire

// SlotKind is the part of a slot that tells collectives apart.
type SlotKind uint8

// The kinds. Uneven variants share the kind of the even one.
const (
	pointToPoint SlotKind = iota
	Gather
	AllGather
	Reduce
	AllReduce
	Scatter
	Broadcast
	Barrier
	AllToAll
)

// Slot returns the slot of a collective with the given tag.
func Slot(kind SlotKind, tag uint32) uint64 { return uint64(kind)<<56 | uint64(tag)<<24 }

// TagOf returns the tag in a slot, which also selects the device: the counter of a collective, or the user's tag.
func TagOf(slot uint64) uint64 {
	if IsPointToPoint(slot) {
		return slot
	}
	return slot >> 24 & 0xffffffff
}

// IsPointToPoint reports whether a slot is that of a message, and not of a collective.
func IsPointToPoint(slot uint64) bool { return slot>>56 == uint64(pointToPoint) }
