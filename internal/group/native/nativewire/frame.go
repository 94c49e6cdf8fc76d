// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativewire

import (
	"encoding/binary"
	"fmt"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// HeaderSize is the length of every frame's header.
const HeaderSize = 56

// MaxRanks bounds the ranks of a group on this wire.
const MaxRanks = 1 << 16

// Type is the type of a frame.
type Type uint8

// The frames.
const (
	// Eager is a whole small message, sent without asking. It uses up credit until the receiver has taken it.
	Eager Type = 1 + iota
	// Request asks for room for a message of Total bytes.
	Request
	// Ready grants it: a receive with room for Total bytes is posted. In a collective it is sent unasked.
	Ready
	// Data is a piece of a message of Total bytes that was granted; the flag More says that others follow. Where a
	// message is cut into a part for each lane, Total is the length of the whole message here and in Ready.
	Data
	// Beat says that the sender is alive, and returns credit.
	Beat
	// Abort says that the group has failed: Total is the code, Slot the rank it is about plus one, the payload the text.
	Abort
	// Bye says that the sender leaves and will send nothing any more. If its group has lost a rank or failed, Total and Slot say
	// why, as in Abort; else they are 0.
	Bye
	// Notice says what the sender called, and nothing else. A rank that has waited for a while sends it, so that ranks
	// which wait for each other in different operations find out.
	Notice
)

// Flags of a frame.
const (
	// More follows in the next Data frame of the slot.
	More uint8 = 1 << iota
	// Called says that Call is set.
	Called
)

// Header is the fixed part of a frame.
type Header struct {
	Type   Type
	Flags  uint8
	Core   uint16 // where the sender ran lately, plus one; 0 is not known
	Length uint32 // payload bytes that follow
	Credit uint32 // eager bytes of the other side that were taken since the last frame
	Slot   uint64
	Total  uint64 // see the types
	Call   Call
}

// MaxText bounds the text of an Abort.
const MaxText = 4 << 10

// MaxPiece bounds the payload of one frame.
const MaxPiece = 1 << 20

// Put encodes h into b, which has HeaderSize bytes.
func (h *Header) Put(b []byte) {
	_ = b[HeaderSize-1]
	b[0], b[1] = byte(h.Type), h.Flags
	binary.LittleEndian.PutUint16(b[2:], h.Core)
	binary.LittleEndian.PutUint32(b[4:], h.Length)
	binary.LittleEndian.PutUint32(b[8:], h.Credit)
	b[12], b[13], b[14], b[15] = 0, 0, 0, 0
	binary.LittleEndian.PutUint64(b[16:], h.Slot)
	if h.Flags&Called != 0 {
		binary.LittleEndian.PutUint64(b[24:], uint64(h.Call.Kind)|uint64(h.Call.Op)<<8|uint64(h.Call.DType)<<16|uint64(h.Call.Root)<<24)
		binary.LittleEndian.PutUint64(b[32:], h.Call.Bytes)
		binary.LittleEndian.PutUint64(b[40:], h.Call.Shape.Lo)
		binary.LittleEndian.PutUint64(b[48:], h.Call.Shape.Hi)
		binary.LittleEndian.PutUint32(b[12:], uint32(min(h.Total, 1<<32-1)))
	} else {
		binary.LittleEndian.PutUint64(b[24:], h.Total)
		clear(b[32:HeaderSize])
	}
}

// Parse decodes and checks a header.
func Parse(b []byte) (Header, error) {
	_ = b[HeaderSize-1]
	h := Header{
		Type: Type(b[0]), Flags: b[1], Core: binary.LittleEndian.Uint16(b[2:]), Length: binary.LittleEndian.Uint32(b[4:]),
		Credit: binary.LittleEndian.Uint32(b[8:]),
		Slot:   binary.LittleEndian.Uint64(b[16:]),
	}
	if h.Flags&Called != 0 {
		word := binary.LittleEndian.Uint64(b[24:])
		h.Call = Call{
			//nolint:gosec // parts of it
			Kind: collective.Kind(word), Op: reduce.Op(word >> 8), DType: tensor.DType(word >> 16), Root: uint16(word >> 24),
			Bytes: binary.LittleEndian.Uint64(b[32:]),
			Shape: collective.Shape{Lo: binary.LittleEndian.Uint64(b[40:]), Hi: binary.LittleEndian.Uint64(b[48:])},
		}
		h.Total = uint64(binary.LittleEndian.Uint32(b[12:]))
	} else {
		h.Total = binary.LittleEndian.Uint64(b[24:])
	}
	limit := uint32(0)
	switch h.Type {
	case Eager, Data:
		limit = MaxPiece
	case Abort:
		limit = MaxText
	case Request, Ready, Beat, Bye, Notice:
	default:
		return h, cohort.Newf("native: frame", cohort.Protocol, "unknown frame type %d", b[0])
	}
	if h.Length > limit {
		return h, cohort.Newf("native: frame", cohort.Protocol, "frame of type %d with %d payload bytes, at most %d are allowed",
			h.Type, h.Length, limit)
	}
	if h.Flags&^(More|Called) != 0 {
		return h, cohort.Newf("native: frame", cohort.Protocol, "frame of type %d with unknown flags %#x", h.Type, b[1])
	}
	return h, nil
}

// String is for logs and tests.
func (h *Header) String() string {
	return fmt.Sprintf("type %d flags %d length %d slot %#x total %d call %v", h.Type, h.Flags, h.Length, h.Slot, h.Total, h.Call.String())
}

// Version is the version of the wire and of the algorithms over it: which messages a collective consists of. A connection is
// refused when the versions differ.
const Version = 7

// HelloSize is the length of a hello, and of its answer.
const HelloSize = 48

// MaxLanes bounds the connections between two ranks.
const MaxLanes = 8

var helloMagic = [8]byte{'c', 'o', 'h', 'o', 'r', 't', 'n', '1'}

// Hello opens a connection: the dialing side sends it, the accepting one answers with its own.
type Hello struct {
	Version  uint32
	Group    [16]byte // drawn by rank 0 for this group; a stale or foreign address does not know it
	From, To uint32   // ranks
	Size     uint32   // ranks in the group
	Window   uint32   // bytes of unexpected messages that the sender of this hello will hold
	Lanes    uint32   // connections between two ranks that the sender of this hello asks for
}

// Put encodes h into HelloSize bytes.
func (h *Hello) Put(b []byte) {
	clear(b[:HelloSize])
	copy(b, helloMagic[:])
	binary.LittleEndian.PutUint32(b[8:], h.Version)
	copy(b[12:28], h.Group[:])
	binary.LittleEndian.PutUint32(b[28:], h.From)
	binary.LittleEndian.PutUint32(b[32:], h.To)
	binary.LittleEndian.PutUint32(b[36:], h.Size)
	binary.LittleEndian.PutUint32(b[40:], h.Window)
	binary.LittleEndian.PutUint32(b[44:], h.Lanes)
}

// ParseHello decodes a hello and checks what can be checked without knowing the group.
func ParseHello(b []byte) (Hello, error) {
	_ = b[HelloSize-1]
	if [8]byte(b[:8]) != helloMagic {
		return Hello{}, cohort.New("native: hello", cohort.Protocol, "the other side does not speak the native wire of cohort")
	}
	h := Hello{
		Version: binary.LittleEndian.Uint32(b[8:]), Group: [16]byte(b[12:28]), From: binary.LittleEndian.Uint32(b[28:]),
		To: binary.LittleEndian.Uint32(b[32:]), Size: binary.LittleEndian.Uint32(b[36:]), Window: binary.LittleEndian.Uint32(b[40:]),
		Lanes: binary.LittleEndian.Uint32(b[44:]),
	}
	if h.Version != Version {
		return h, cohort.Newf("native: hello", cohort.Protocol,
			"rank %d speaks version %d of the native wire, this rank %d; use the same release on all ranks", h.From, h.Version, Version)
	}
	if h.Size > MaxRanks || h.From >= h.Size || h.To >= h.Size {
		return h, cohort.Newf("native: hello", cohort.Protocol, "rank %d to rank %d of %d", h.From, h.To, h.Size)
	}
	if h.Lanes < 1 || h.Lanes > MaxLanes {
		return h, cohort.Newf("native: hello", cohort.Protocol, "rank %d asks for %d connections, from 1 to %d are possible",
			h.From, h.Lanes, MaxLanes)
	}
	return h, nil
}
